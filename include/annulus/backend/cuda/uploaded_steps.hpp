#pragma once
// What kernels read of a step's host data: positions, block lists and block masks, uploaded once and found again when a
// step of equal content is made.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <list>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "annulus/backend/cuda/complete/block_lists.hpp"
#include "annulus/backend/cuda/visible_ranges.hpp"
#include "annulus/core/cuda/memory.hpp"
#include "annulus/mask/attention_rules.hpp"

namespace annulus::cuda::detail {

/// Host data of a step, as its views are in Step.
struct StepPlaces {
  std::span<Tile const> tiles;
  std::span<Index const> query_positions, key_positions;
  Mask mask;
  BlockMask block_mask;
};

/// A step in device memory. Pointers are valid until the next call of UploadedSteps::find().
struct UploadedStep {
  BlockRuns of_queries, of_keys;
  Index const* query_positions = nullptr;
  Index const* key_positions = nullptr;
  BlockGrid blocks{};
  std::optional<VisibleForm> visible{};  ///< form_of_positions()
};

/// Parts of one allocation, each aligned to 16 bytes.
class PackedBytes {
 public:
  /// Appends a copy of the elements; returns its offset.
  template <class T>
  std::size_t append(std::span<T const> elements) {
    std::size_t const offset = (bytes_.size() + 15) / 16 * 16;
    bytes_.resize(offset + elements.size_bytes());
    if (!elements.empty()) std::memcpy(bytes_.data() + offset, elements.data(), elements.size_bytes());
    return offset;
  }
  std::vector<std::byte> const& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// The steps that a stream of kernels has read. A step that is found again costs a comparison of its positions, and no
/// upload, allocation or wait; so repeated calls can be captured in a CUDA graph, which is valid while the steps are kept.
/// When a new step would make them exceed their limit, all are forgotten, after a wait for the stream.
class UploadedSteps {
 public:
  /// Keeps up to `limit` bytes, or one step. Without a limit, `memory` of the caller is used, which must outlive it.
  explicit UploadedSteps(std::span<std::byte> memory = {}, Index limit = Index{64} << 20)
      : memory_(memory), limit_(memory.empty() ? limit : std::ssize(memory)) {}

  /// The step in device memory. Work that is put on the stream from now on may read it.
  UploadedStep const& find(StepPlaces const& places, cudaStream_t stream) {
    for (Kept const& kept : kept_)
      if (kept.equals(places)) return kept.step;
    return upload(places, stream);
  }

  Index bytes() const { return bytes_; }  ///< in device memory
  std::size_t size() const { return kept_.size(); }

 private:
  struct Kept {
    std::vector<Tile> tiles;
    std::vector<Index> query_positions, key_positions;
    Mask mask;
    BlockMask block_mask;
    PinnedBytes source;  ///< of the upload, which may not have begun
    DeviceBytes own;
    UploadedStep step;

    /// Positions of keys, in which steps differ most, are compared first.
    bool equals(StepPlaces const& other) const {
      return std::ranges::equal(key_positions, other.key_positions) &&
             std::ranges::equal(query_positions, other.query_positions) && std::ranges::equal(tiles, other.tiles) &&
             mask == other.mask && block_mask == other.block_mask;
    }
  };

  /// Offsets of the parts of a step.
  struct Layout {
    std::size_t query_positions, key_positions, first[2], runs[2], blocks;
  };

  UploadedStep const& upload(StepPlaces const& places, cudaStream_t stream) {
    PackedBytes packed;
    Layout const layout = pack(places, packed);
    auto const size = std::ssize(packed.bytes());
    if (bytes_ + size > limit_ && !kept_.empty()) forget(stream);
    Kept kept{{places.tiles.begin(), places.tiles.end()},
              {places.query_positions.begin(), places.query_positions.end()},
              {places.key_positions.begin(), places.key_positions.end()},
              places.mask,
              places.block_mask,
              allocate_pinned(size),
              {},
              {}};
    std::byte* const target = place_of(size, kept.own);
    std::memcpy(kept.source.data(), packed.bytes().data(), packed.bytes().size());
    check(cudaMemcpyAsync(target, kept.source.data(), packed.bytes().size(), cudaMemcpyDefault, stream),
          "cudaMemcpyAsync");
    kept.step = step_at(target, layout, places.block_mask);
    kept.step.visible = form_of_positions(places.mask, places.query_positions, places.key_positions);
    bytes_ += (size + alignment - 1) / alignment * alignment;
    kept_.push_back(std::move(kept));
    return kept_.back().step;
  }

  static Layout pack(StepPlaces const& places, PackedBytes& packed) {
    BlockLists const lists(places.tiles, places.mask, std::ssize(places.query_positions),
                           std::ssize(places.key_positions));
    Layout layout{};
    layout.query_positions = packed.append(places.query_positions);
    layout.key_positions = packed.append(places.key_positions);
    int side = 0;
    for (BlockList const* list : {&lists.of_queries(), &lists.of_keys()}) {
      layout.first[side] = packed.append(std::span<int const>(list->first));
      layout.runs[side++] = packed.append(std::span<BlockRun const>(list->runs));
    }
    layout.blocks = packed.append(std::span<unsigned char const>(grid_of(places.block_mask)));
    return layout;
  }

  static std::vector<unsigned char> grid_of(BlockMask const& mask) {
    std::vector<unsigned char> grid;
    if (mask)
      for (Index query = 0; query < mask.queries(); query += mask.query_block())
        for (Index key = 0; key < mask.keys(); key += mask.key_block()) grid.push_back(mask.visible(query, key));
    return grid;
  }

  static UploadedStep step_at(std::byte const* data, Layout const& layout, BlockMask const& mask) {
    auto const at = [data]<class T>(std::size_t offset, T const*) { return reinterpret_cast<T const*>(data + offset); };
    auto const runs = [&](int side) {
      return BlockRuns{at(layout.first[side], static_cast<int const*>(nullptr)),
                       at(layout.runs[side], static_cast<BlockRun const*>(nullptr))};
    };
    UploadedStep step{runs(0), runs(1), at(layout.query_positions, static_cast<Index const*>(nullptr)),
                      at(layout.key_positions, static_cast<Index const*>(nullptr))};
    if (mask)
      step.blocks = {at(layout.blocks, static_cast<unsigned char const*>(nullptr)), mask.query_block(),
                     mask.key_block(), mask.keys() / mask.key_block()};
    return step;
  }

  /// Memory for a step: the next of the caller's, or `own`.
  std::byte* place_of(Index size, DeviceBytes& own) {
    if (!memory_.empty()) {
      annulus::detail::check<Error>(bytes_ + size <= limit_, "CudaBackend: a step requires ", size,
                                    " bytes of workspace; given: ", limit_);
      return memory_.data() + bytes_;
    }
    own = allocate_device(size);
    return own.data();
  }

  void forget(cudaStream_t stream) {
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    kept_.clear();
    bytes_ = 0;
  }

  static constexpr Index alignment = 256;

  std::span<std::byte> memory_;
  Index limit_, bytes_ = 0;
  std::list<Kept> kept_;
};

}  // namespace annulus::cuda::detail
