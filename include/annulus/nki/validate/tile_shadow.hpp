#pragma once
// Shadow of the SBUF and PSUM tiles of one core: which elements are defined, and which a matmul wrote.

#include "annulus/nki/program/program.hpp"
#include "annulus/nki/validate/partition_map.hpp"

namespace annulus::nki::validate_detail {

/// State of the elements of one tile.
struct TileState {
  PartitionMap defined;
  PartitionMap by_matmul;  ///< last written by a matmul, so another one may accumulate onto it
};

/// The tiles of every on-chip buffer, one for each place of its rotation.
class TileShadow {
 public:
  explicit TileShadow(Program const& program) {
    first_place_.reserve(program.buffers.size());
    for (Buffer const& buffer : program.buffers) {
      first_place_.push_back(tiles_.size());
      if (!on_chip(buffer.memory)) continue;
      Index const elements = buffer.elements_per_partition();
      for (int place = 0; place < buffer.rotation; ++place)
        tiles_.push_back({PartitionMap(elements), PartitionMap(elements)});
    }
  }

  TileState& tile(int buffer, int place) {
    return tiles_[first_place_[static_cast<std::size_t>(buffer)] + static_cast<std::size_t>(place)];
  }
  /// Allocates the tile anew: all its elements become undefined.
  void make(int buffer, int place) {
    TileState& allocated = tile(buffer, place);
    allocated.defined.clear();
    allocated.by_matmul.clear();
  }

 private:
  std::vector<std::size_t> first_place_;
  std::vector<TileState> tiles_;
};

}  // namespace annulus::nki::validate_detail
