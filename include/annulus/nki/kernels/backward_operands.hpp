#pragma once
// Operands of the backward pass in SBUF, in both layouts: one is loaded, the other made of it by TensorE.

#include <string>
#include <utility>

#include "annulus/nki/kernels/operand_loads.hpp"

namespace annulus::nki {

/// Tiles of an operand in both layouts, by feature and by token.
class OperandTiles {
 public:
  RotatingTile features;  ///< partitions are features, rows are adjacent
  RotatingTile tokens;    ///< partitions are rows, features are adjacent

  OperandTiles() = default;
  /// Rows of `width` elements; `rows`: of a tile; by_token: the layout of HBM.
  OperandTiles(Builder& builder, OperandLoads& loads, KernelSpec const& spec, std::string const& name, Index width,
               Index rows, bool by_token)
      : builder_(&builder), loads_(&loads), chunks_{width}, by_token_(by_token) {
    auto const layout = [&](std::string const& layout_name, Index count, bool token) {
      return RotatingTile(builder, layout_name, token ? count / tile_rows * width : chunks_.count() * count, spec.type,
                          2, Memory::sbuf, token ? tile_rows : chunks_.largest());
    };
    features = layout(name + "_features", rows, false);
    tokens = layout(name + "_tokens", rows, true);
  }

  /// Allocates both tiles and returns their number.
  Index make() {
    features.make();
    return tokens.make();
  }

  /// Starts to load rows of a source in the layout that HBM has, from block `block` of 128 rows of a tile on.
  void load(HeadRows const& source, Affine const& begin, Index rows, Index number, Index block) {
    TileHandle const tile = loaded(number);
    if (by_token_)
      loads_->by_token(source, begin, rows, tile, block);
    else
      loads_->by_feature(source, begin, rows, tile, tile.elements / chunks_.count(), block * tile_rows);
  }

  /// Multiplies a block of loaded rows by a factor, and transposes it to the layout that HBM does not have.
  void other_layout(Index rows, Index number, Index block, float factor) {
    for (Index c = 0; c < chunks_.count(); ++c) {
      Access const from = part(loaded(number), by_token_, block, c, rows),
                   to = part((by_token_ ? features : tokens)[number], !by_token_, block, c, rows);
      if (factor != 1) builder_->emit(TensorScalar{.dst = from, .data = from, .operand0 = factor});
      loads_->transpose(
          from.partitions(), from.elements(), 1, [&](Index) { return from; }, to, Engine::scalar);
    }
  }

 private:
  TileHandle loaded(Index number) const { return (by_token_ ? tokens : features)[number]; }

  /// Chunk c of the features of a block of rows.
  Access part(TileHandle const& tile, bool by_token, Index block, Index c, Index rows) const {
    return by_token ? tile.part(0, rows, block * chunks_.dim + c * tile_rows, chunks_.size(c))
                    : tile.part(0, chunks_.size(c), c * (tile.elements / chunks_.count()) + block * tile_rows, rows);
  }

  Builder* builder_ = nullptr;
  OperandLoads* loads_ = nullptr;
  Chunks chunks_;
  bool by_token_ = true;
};

}  // namespace annulus::nki
