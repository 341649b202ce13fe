#pragma once
// TileShadow: what the tiles on the chip of one core hold.

#include "annulus/backend/nki/program/program.hpp"
#include "annulus/backend/nki/validate/partition_map.hpp"

namespace annulus::nki::validate_detail {

struct TileState {
  PartitionMap defined;
  PartitionMap by_matmul;  ///< matmuls may add to it; kept in PSUM only
};

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
  void make(int buffer, int place) {
    TileState& made = tile(buffer, place);
    made.defined.clear();
    made.by_matmul.clear();
  }

 private:
  std::vector<std::size_t> first_place_;
  std::vector<TileState> tiles_;
};

}  // namespace annulus::nki::validate_detail
