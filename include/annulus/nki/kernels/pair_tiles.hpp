#pragma once
// Operands of each pair of query and key: the bias of the logits, and the weights that dropout keeps. Tiles of them for
// a row tile and a run of keys; and the gradient of the bias, of the same pairs.

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/round.hpp"

namespace annulus::nki {

/// An operand of pairs and its gradient in HBM, [other ranks, heads or 1, queries or 1, keys or 1], and tiles of the
/// operand in SBUF.
class PairTiles {
 public:
  /// `pairs`: without buffer there are none. `gradient`: without buffer not requested. `columns`: of a tile.
  PairTiles(Builder& builder, KernelSpec const& spec, char const* name, TensorHandle pairs, TensorHandle gradient,
            Index columns)
      : builder_(&builder),
        heads_(spec.query_heads_per_item()),
        pairs_(std::move(pairs)),
        gradient_(std::move(gradient)) {
    if (!given()) return;
    // A bias that is the same for all keys is an operand of one element per partition, which must be float32.
    ElementType const type = builder.program().buffer(pairs_.buffer).type;
    tiles_ = RotatingTile(builder, name, columns, by_key() ? type : ElementType::float32, 3);
    if (builder.program().ranks > 1)
      for (int& owner : owners_) owner = builder.make_register();
  }

  /// Lets TensorE add the operand times `factor`: add_to_product() applies, not add().
  void use_tensor_engine(float factor) {
    std::string const name = builder_->program().buffer(pairs_.buffer).name;
    TileHandle const distances =
        builder_->tile(name + "_distances", Memory::sbuf, tile_rows, tile_rows, ElementType::float32);
    builder_->emit(Iota{distances.whole(), {{1, tile_rows}}, 0, -1});
    for (float part : bfloat16_parts(factor)) {
      if (part == 0) continue;
      diagonals_.push_back(builder_->tile(name + "_factors_" + std::to_string(diagonals_.size()), Memory::sbuf,
                                          tile_rows, tile_rows, ElementType::bfloat16));
      builder_->emit(
          TensorScalar{diagonals_.back().whole(), distances.whole(), Operator::equal, 0.0f, Operator::multiply, part});
    }
  }

  bool given() const { return pairs_.buffer >= 0; }            ///< there is such an operand
  bool adds() const { return given() && diagonals_.empty(); }  ///< add() applies
  bool has_gradient() const { return gradient_.buffer >= 0; }  ///< store_gradient() and clear_gradient() apply

  void begin_round(Round const& round) {
    first_head_ = round.item * heads_;
    held_ = {-1, -1};
  }

  /// Makes the tile into which load() loads, if there is an operand.
  void make() {
    if (given()) tiles_.make();
  }

  /// Loads the pairs of a row tile and some keys to columns from `column` on of the newest tile. `head`: of the item.
  /// Returns the number of the tile, -1 without an operand.
  Index load(int step, Index head, RowTile const& rows, RowRange keys, Index column) {
    if (!given()) return -1;
    Access const from = at(pairs_, step, head, rows.begin, rows.count, keys);
    builder_->emit(DmaCopy{tiles_.newest().part(0, rows.count, column, from.elements()), from});
    return tiles_.newest_number();
  }

  /// The elements of tile `number` for the pairs of `like`, whose columns begin at `column`.
  Access part(Index number, Access const& like, Index column) const {
    return tiles_[number].part(0, like.partitions(), column, like.elements());
  }

  /// to = from * factor + operand, if there is one; returns whether. The operand: columns from `column` on, plus `at`,
  /// of a tile.
  bool add(Access const& to, Access const& from, float factor, Index number, Index column, Index at = 0) {
    if (!adds()) return false;
    if (by_key())
      builder_->emit(
          ScalarTensorTensor{to, from, Operator::multiply, factor, Operator::add, part(number, to, column + at)});
    else
      builder_->emit(TensorScalar{to, from, Operator::multiply, factor, Operator::add,
                                  tiles_[number].part(0, to.partitions(), column, 1)});
    return true;
  }

  /// product += the operand times the factor, if TensorE adds it: columns from `column` on of a tile, times diagonal
  /// matrices.
  void add_to_product(Access const& product, Index number, Index column) {
    for (TileHandle const& diagonal : diagonals_)
      builder_->emit(MatMul{product, diagonal.part(0, product.partitions(), 0, product.partitions()),
                            part(number, product, column), true});
  }

  /// Stores the gradient of a row tile and some keys, which `gradient` holds from column `column` on.
  void store_gradient(int step, Index head, RowTile const& rows, RowRange keys, TileHandle const& gradient,
                      Index column) {
    if (keys.empty()) return;
    owner_at(step);
    store_once(*builder_, rows, [&](Index row, Index count) {
      builder_->emit(DmaCopy{at(gradient_, step, head, rows.begin + row, count, keys),
                             gradient.part(row, count, column, keys.size())});
    });
  }

  /// Zeroes the gradient, if there is one, of the round's queries with the keys of all ranks: no unit may touch a pair.
  void clear_gradient(Round const& round) {
    if (!has_gradient()) return;
    Index const keys = gradient_.shape[3], width = std::min(keys, Index{2048});
    TileHandle const zeros =
        builder_->tile("no_bias_gradient" + round.suffix(), Memory::sbuf, tile_rows, width, ElementType::float32);
    builder_->emit(Memset{zeros.whole(), 0.0f, Engine::gpsimd});
    for (Index rank = 0; rank < gradient_.shape[0]; ++rank)
      for (Index head = 0; head < heads_; ++head)
        emit_rolled(*builder_, "row_tile", 0, std::ssize(round.tiles), [&](Index i) {
          for (Index begin = 0; begin < keys; begin += width)
            clear_gradient(rank, head, nth(round.tiles, i), {begin, std::min(begin + width, keys)}, zeros);
        });
  }

 private:
  void clear_gradient(Index rank, Index head, RowTile const& tile, RowRange keys, TileHandle const& zeros) {
    store_once(*builder_, tile, [&](Index row, Index count) {
      Access to = at(gradient_, -1, head, tile.begin + row, count, keys);
      to.offset += rank * gradient_.size() / gradient_.shape[0];
      builder_->emit(DmaCopy{to, zeros.part(row, count, 0, keys.size())});
    });
  }

  bool by_key() const { return pairs_.shape[3] > 1; }

  /// Register that holds the other rank of a step: the owner of the keys or, if queries rotate, of the queries.
  int owner_at(int step) {
    auto const place = static_cast<std::size_t>(step % 2);
    if (owners_[place] >= 0 && std::exchange(held_[place], step) != step)
      builder_->emit(ProcessingRank{owners_[place], step});
    return owners_[place];
  }

  /// Pairs of query rows [begin, begin + count) and keys; step -1: of the first rank. One column if all keys share it.
  Access at(TensorHandle const& of, int step, Index head, Affine const& begin, Index count, RowRange keys) {
    auto const& shape = of.shape;
    Index const column = shape[3] > 1 ? 1 : 0, row = shape[2] > 1 ? shape[3] : 0;
    Affine offset = begin * row + keys.begin * column;
    if (shape[1] > 1) offset += (first_head_ + head) * (shape[2] * shape[3]);
    Access access = of.pattern(offset, {{row, count}, {1, column == 1 ? keys.size() : 1}});
    if (int const owner = step < 0 ? -1 : owner_at(step); owner >= 0) access.register_offset = RegisterOffset{owner, 0};
    return access;
  }

  Builder* builder_;
  Index heads_;
  TensorHandle pairs_, gradient_;
  RotatingTile tiles_;
  std::vector<TileHandle> diagonals_;  ///< matrices with the parts of the factor
  Affine first_head_;
  std::array<int, 2> owners_{-1, -1}, held_{-1, -1};  ///< registers for even and odd steps, and the steps they hold
};

}  // namespace annulus::nki
