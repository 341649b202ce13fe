#pragma once
// The decode path of CudaBackend: steps with few query rows, whose keys are split over the GPU, and the memory for partial
// results. The rules of a step by position are ranges of key rows in the parameters of the kernels: nothing is uploaded.

#include <algorithm>
#include <concepts>
#include <limits>
#include <span>

#include "annulus/backend/cuda/decode/arguments.hpp"
#include "annulus/backend/cuda/strided.hpp"
#include "annulus/backend/step.hpp"
#include "annulus/core/cuda/memory.hpp"

namespace annulus::cuda::detail {

/// The tiles of a step as kernels read them, as many at a time as their parameters have room for.
class KeyTileLists {
 public:
  KeyTileLists(std::span<Tile const> tiles, Mask const& mask, Index queries)
      : tiles_(tiles), mask_(mask), queries_(queries) {}

  /// Fills the next list; false if there is none.
  bool next(KeyTiles& list) {
    list.count = list.units = 0;
    while (!tiles_.empty() && list.count < KeyTiles::most_tiles &&
           (list.count + 1) * queries_ <= KeyTiles::most_ranges) {
      append(list, tiles_.front());
      tiles_ = tiles_.subspan(1);
    }
    return list.count > 0;
  }

 private:
  void append(KeyTiles& list, Tile const& tile) const {
    int2* const ranges = list.ranges + list.count * queries_;
    RowRange any, all{0, tile.key_begin + tile.key_count};
    for (Index i = 0; i < queries_; ++i) {
      Index const of_tile = i - tile.query_begin;
      RowRange seen;
      if (0 <= of_tile && of_tile < tile.query_count) seen = tile.keys_of(mask_, of_tile);
      seen = seen.empty() ? RowRange{} : RowRange{tile.key_begin + seen.begin, tile.key_begin + seen.end};
      ranges[i] = {static_cast<int>(seen.begin), static_cast<int>(seen.end)};
      any = annulus::detail::hull(any, seen);
      all = annulus::detail::intersection(all, seen);
    }
    list.tiles[list.count++] = {static_cast<int>(any.begin), static_cast<int>(any.end), static_cast<int>(all.begin),
                                static_cast<int>(all.end), list.units};
    list.units += static_cast<int>(annulus::detail::ceil_divide(any.size(), Index{key_unit}));
  }

  std::span<Tile const> tiles_;
  Mask const& mask_;
  Index queries_;
};

class DecodePath {
 public:
  /// True if the kernels take steps of these rules and numbers of rows, unless a tile is tested by element: each pair is visible by position or by
  /// document, no other rule changes its logit or weight, and no backward pass needs the same bits.
  template <class T, class Predicate>
  static bool takes(Step<T, Predicate, CudaMemory> const& step, Index queries, Index keys) {
    return std::same_as<Predicate, EveryPair> && !step.recomputed && queries <= most_queries && keys <= most_keys &&
           !step.bias.data() && !step.boolean_mask.data() && !step.rules.block_mask && !step.rules.dropout.active();
  }
  /// The same for a step with its tiles and operands.
  template <class T, class Predicate>
  static bool takes(Step<T, Predicate, CudaMemory> const& step, StepOperands<T, CudaMemory> const& operands) {
    auto const is_elementwise = [](Tile const& tile) { return tile.coverage == annulus::Coverage::elements; };
    return takes(step, operands.q.extent(axis::sequence), operands.k.extent(axis::sequence)) &&
           std::ranges::none_of(step.tiles, is_elementwise);
  }

  /// Adds the keys of a step that is taken.
  template <class T, class A>
  void fold(cudaStream_t stream, Step<T, EveryPair, CudaMemory> const& step,
            StepOperands<T, CudaMemory> const& operands, RunningState<A, CudaMemory> const& state) {
    auto const &q = operands.q, &k = operands.k, &v = operands.v;
    auto const extent = [](auto const& view, std::size_t a) { return static_cast<int>(view.extent(a)); };
    DecodeStep<DeviceElementOf<T>> decode{
        .extents = {extent(q, axis::batch), extent(q, axis::sequence), extent(k, axis::sequence),
                    extent(q, axis::heads), extent(k, axis::heads), extent(q, axis::dim), extent(v, axis::dim)},
        .softmax_scale = step.softmax_scale(),
        .logit_softcap = step.rules.logit_softcap,
        .q = strided(q),
        .k = strided(k),
        .v = strided(v),
        .query_documents = strided(step.query_documents),
        .key_documents = strided(step.key_documents)};
    if (decode.extents.batch == 0 || decode.rows() == 0) return;
    KeyTileLists lists(step.tiles, step.rules.mask, q.extent(axis::sequence));
    while (lists.next(decode.visible)) {
      PartialResults<A> const partial = partial_results<A>(decode);
      split_keys(stream, decode, partial);
      merge_splits(stream, decode.extents, partial,
                   {strided(state.accumulator), strided(state.maximum), strided(state.sum)});
    }
  }

  Index bytes() const { return memory_.size(); }  ///< of partial results

 private:
  static constexpr Index most_queries = 16, most_keys = std::numeric_limits<int>::max() - key_unit;

  /// Memory for as many splits as the GPU can run at a time; fewer where keys are few.
  template <class A, class T>
  PartialResults<A> partial_results(DecodeStep<T> const& step) {
    StepExtents const& e = step.extents;
    DecodeShape const shape = decode_shape(step);
    Index const groups = annulus::detail::ceil_divide(Index{step.rows()}, Index{shape.rows_of_block});
    Index const blocks = groups * e.kv_heads * e.batch, places = multiprocessors() * shape.blocks_of_multiprocessor;
    // Many blocks without splits would leave places empty at the end; parts of their keys fill these.
    Index const most = std::max(Index{1}, (4 * blocks > places ? 4 * places : places) / blocks);
    Index const rows = Index{e.batch} * e.kv_heads * step.rows(), results = rows * most;
    Index const bytes = results * (e.value_dim + 2) * Index{sizeof(A)};
    if (memory_.size() < bytes) memory_ = allocate_device(bytes);
    A* const outputs = reinterpret_cast<A*>(memory_.data());
    A* const maximum = outputs + results * e.value_dim;
    Index const splits = std::clamp(Index{step.visible.units} / least_units, Index{1}, most);
    return {outputs, maximum, maximum + results, static_cast<int>(splits)};
  }

  Index multiprocessors() {
    if (multiprocessors_ > 0) return multiprocessors_;
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
    return multiprocessors_;
  }

  static constexpr Index least_units = 8;  ///< of a split: two for each warp of a block

  int multiprocessors_ = 0;
  DeviceBytes memory_;
};

}  // namespace annulus::cuda::detail
