#pragma once
// Row tiles (the query rows of one head, up to 128 at a time), rows of a head in HBM, and numbered tiles in SBUF.

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "annulus/mask/mask.hpp"
#include "annulus/nki/kernels/kernel_spec.hpp"
#include "annulus/nki/program/roll.hpp"

namespace annulus::nki {

/// Query rows [begin, begin + count) of a shard; `begin` may depend on the core.
struct RowTile {
  Affine begin;
  Index count = 0;
  RowRange rows_of_all_cores;
  bool overlaps = false;  ///< the last row of core 0 is the first of core 1
};

/// Cuts each piece of the rows into tiles. Tiles of shared rows alternate between the cores, which balances causal
/// work; a remainder of less than two tiles is halved. Both cores run the same program, so an odd row is computed by
/// both and stored by one.
inline std::vector<RowTile> row_tiles(std::vector<RowRange> const& pieces, bool shared) {
  std::vector<RowTile> tiles;
  for (auto [begin, end] : pieces)
    for (Index all = 0; begin < end; begin += all) {
      Index const left = end - begin;
      all = shared && left >= 2 * tile_rows ? 2 * tile_rows : std::min(tile_rows, left);
      Index const mine = shared ? detail::ceil_divide(all, 2) : all;
      tiles.push_back(
          {Affine::of(core_variable, all - mine) + begin, mine, {begin, begin + all}, shared && all % 2 == 1});
    }
  return tiles;
}

/// Calls act(first block, rows, blocks) for the whole blocks of 128 of some rows, then for a last one of fewer.
template <class Act>
void for_row_blocks(Index rows, Act&& act) {
  Index const whole = rows / tile_rows, rest = rows % tile_rows;
  if (whole > 0) act(Index{0}, tile_rows, whole);
  if (rest > 0) act(whole, rest, Index{1});
}

/// Calls store(first, count) to write rows [first, first + count) of a tile such that exactly one core writes each row.
template <class Store>
void store_once(Builder& builder, RowTile const& tile, Store&& store) {
  if (!tile.overlaps) {
    store(Index{0}, tile.count);
    return;
  }
  builder.on_core(0, [&] { store(Index{0}, tile.count); });
  if (tile.count > 1) builder.on_core(1, [&] { store(Index{1}, tile.count - 1); });
}

/// Tiles [first, first + count): one tile, or several of 128 rows each at equal distances, which one instruction can
/// process.
struct TileRun {
  RowTile tile;  ///< the first
  Index first = 0, count = 1;
  Index stride = tile_rows;
};
/// Groups the tiles into maximal runs; a tile with fewer than 128 rows is a run of its own.
inline std::vector<TileRun> runs_of(std::vector<RowTile> const& tiles) {
  std::vector<TileRun> runs;
  for (RowTile const& tile : tiles) {
    Index const stride = tile.rows_of_all_cores.size();
    if (!runs.empty() && tile.count == tile_rows && runs.back().tile.count == tile_rows && runs.back().stride == stride)
      ++runs.back().count;
    else
      runs.push_back({tile, runs.empty() ? 0 : runs.back().first + runs.back().count, 1, stride});
  }
  return runs;
}

/// One head of a tensor in HBM: [rows, dim] or, by feature, [dim, rows]. Per-row values are [128, columns], with row
/// c * 128 + p at (p, c).
struct HeadRows {
  TensorHandle tensor;
  Affine offset;
  Index rows = 0, dim = 0;
  bool by_token = true;
  std::optional<RegisterOffset> moved_by{};

  /// The head that follows this one at a distance of `by` heads.
  HeadRows head(Affine const& by) const { return {tensor, offset + by * (rows * dim), rows, dim, by_token, moved_by}; }
  /// The same rows moved by the value of a register minus `distance`.
  HeadRows moved(Index distance, int register_number) const {
    HeadRows result = *this;
    result.offset += -distance * (by_token ? dim : 1);
    result.moved_by = RegisterOffset{register_number, static_cast<int>(tensor.shape.size()) - (by_token ? 2 : 1)};
    return result;
  }
  /// Rows [begin, begin + count).
  Access block(Affine const& begin, Index count) const { return at(begin * dim, {{dim, count}, {1, dim}}); }
  /// Columns [begin, begin + count) of the first row.
  Access columns(Index begin, Index count) const { return at(begin, {{dim, 1}, {1, count}}); }
  /// `blocks` blocks of `count` rows each, whose first rows are `stride` rows apart.
  Access blocks(Affine const& begin, Index count, Index blocks, Index stride = tile_rows) const {
    return at(begin * dim, {{dim, count}, {stride * dim, blocks}, {1, dim}});
  }
  /// By feature: features [first, first + count) of rows [begin, begin + row_count).
  Access features(Index first, Index count, Affine const& begin, Index row_count) const {
    return at(begin + first * rows, {{rows, count}, {1, row_count}});
  }
  /// Calls act(first, values) for the per-row values of rows [first, first + count) of each row tile of a run: once, or
  /// for two parts where the rows end in the next column. core: the only one that executes this; -1: all do.
  template <class Act>
  void for_columns(Builder& builder, TileRun const& run, Index first, Index count, int core, Act&& act) const {
    Affine const begin = run.tile.begin + first;
    Index const moves = begin.coefficient(core_variable), place = begin.constant() % tile_rows;
    if (moves % tile_rows != 0 && place + moves + count > tile_rows) {  // the column depends on the core
      for (int one : {0, 1}) {
        TileRun own = run;
        own.tile.begin = run.tile.begin.with(core_variable, one);
        auto const emit = [&] { for_columns(builder, own, first, count, one, act); };
        if (core < 0) builder.on_core(one, emit);
        if (core == one) emit();
      }
      return;
    }
    // In whole columns core 1 is as many columns after core 0, else as many partitions.
    Affine const on_core = Affine::of(core_variable, moves % tile_rows == 0 ? moves / tile_rows : moves * dim);
    for (Index from = 0, next = 0; from < count; from = next) {
      next = std::min(count, from + tile_rows - (place + from) % tile_rows);
      Index const row = begin.constant() + from;
      act(first + from, at(on_core + (row % tile_rows * dim + row / tile_rows),
                           {{dim, next - from}, {run.stride / tile_rows, run.count}}));
    }
  }

 private:
  Access at(Affine const& place, std::initializer_list<Axis> axes) const {
    Access access = tensor.pattern(offset + place, axes);
    access.register_offset = moved_by;
    return access;
  }
};

/// Emits write(i) for i in [begin, end) in a form in which repetitions of up to `longest_period` of them become loops.
template <class Write>
void emit_rolled(Builder& builder, std::string const& loop_name, Index begin, Index end, Write&& write,
                 std::size_t longest_period = 1) {
  std::vector<Body> bodies;
  for (Index i = begin; i < end; ++i) bodies.push_back(builder.collect([&] { write(i); }));
  append_rolled(builder, loop_name, std::move(bodies), longest_period);
}

/// Bytes of each SBUF partition that the tiles of a program take.
inline Index sbuf_bytes_of(Program const& program) {
  Index bytes = 0;
  for (Buffer const& buffer : program.buffers)
    if (buffer.memory == Memory::sbuf) bytes += bytes_per_partition(buffer);
  return bytes;
}

/// Numbers the tiles of a buffer and raises its rotation as older tiles are used.
class RotatingTile {
 public:
  RotatingTile() = default;
  RotatingTile(Builder& builder, std::string name, Index elements, ElementType type = ElementType::float32,
               int rotation = 2, Memory memory = Memory::sbuf, Index partitions = tile_rows)
      : builder_(&builder), newest_(builder.declare(std::move(name), memory, partitions, elements, type, rotation)) {}

  /// Allocates a tile and returns its sequence number.
  Index make() {
    builder_->allocate(newest_);
    return made_++;
  }
  /// Allocates a tile and returns it.
  TileHandle make_tile() {
    make();
    return newest_;
  }
  /// The tile of that number; raises the rotation of the buffer so that it is still held.
  TileHandle operator[](Index number) const {
    int const age = static_cast<int>(made_ - 1 - number);
    builder_->keep(newest_, age + 1);
    return newest_.before(age);
  }
  TileHandle newest() const { return newest_; }
  Index newest_number() const { return made_ - 1; }
  Index made() const { return made_; }

 private:
  Builder* builder_ = nullptr;
  TileHandle newest_;
  Index made_ = 0;
};

/// dst = data times one factor per row. GpSimdE has no tensor_scalar for it: there the factor's column is read again
/// for each element, with stride 0.
inline void multiply_rows(Builder& builder, Access const& dst, Access const& data, Access const& factor,
                          Engine engine) {
  if (engine != Engine::gpsimd)
    return builder.emit(TensorScalar{.dst = dst, .data = data, .operand0 = factor, .engine = engine});
  Access repeated(factor.buffer, factor.axis(0), std::array{Axis{0, dst.elements()}});
  repeated.age = factor.age;
  repeated.start_partition = factor.start_partition;
  repeated.offset = factor.offset;
  builder.emit(TensorTensor{dst, data, repeated, Operator::multiply, engine});
}

/// Loads the per-row values of the tiles into columns of an SBUF tile, from `first_column` on.
inline void load_columns(Builder& builder, HeadRows const& from, std::vector<RowTile> const& tiles,
                         TileHandle const& to, Index first_column = 0) {
  for (TileRun const& run : runs_of(tiles))
    from.for_columns(builder, run, 0, run.tile.count, -1, [&](Index row, Access const& values) {
      builder.emit(DmaCopy{to.part(row, values.partitions(), first_column + run.first, run.count), values});
    });
}

/// Stores columns of an SBUF tile, from `first_column` on, as the values of rows [first, first + rows) of each tile of a
/// run.
inline void store_columns(Builder& builder, TileHandle const& from, TileRun const& run, Index first, Index rows,
                          HeadRows const& to, Index first_column) {
  // Of a tile that overlaps, row i is stored by core i.
  int const core = run.tile.overlaps ? static_cast<int>(first) : -1;
  to.for_columns(builder, run, first, rows, core, [&](Index row, Access const& values) {
    builder.emit(DmaCopy{values, from.part(row, values.partitions(), first_column + run.first, run.count)});
  });
}

/// Stores columns of an SBUF tile, from `first_column` on, as per-row values of the tiles; exactly one core stores each
/// row.
inline void store_columns(Builder& builder, TileHandle const& from, std::vector<RowTile> const& tiles,
                          HeadRows const& to, Index first_column = 0) {
  for (TileRun const& run : runs_of(tiles))
    store_once(builder, run.tile,
               [&](Index first, Index rows) { store_columns(builder, from, run, first, rows, to, first_column); });
}

/// Zeroes the places of the per-row values of `heads` heads beyond the last of `rows` rows. `zeros`: a tile of one
/// column, zeroed here; `shared`: the cores share the heads.
inline void pad_columns(Builder& builder, TileHandle const& zeros, HeadRows const& to, Index heads, Index rows,
                        bool shared) {
  Index const used = rows % tile_rows, rest = tile_rows - used;
  builder.emit(Memset{zeros.whole(), 0.0f, Engine::gpsimd});
  for (Index head = 0; head < heads; ++head) {
    auto const pad = [&] {
      builder.emit(
          DmaCopy{to.tensor.pattern(to.head(head).offset + used * to.dim + to.dim - 1, {{to.dim, rest}, {1, 1}}),
                  zeros.part(0, rest, 0, 1)});
    };
    shared ? builder.on_core(0, pad) : pad();
  }
}

}  // namespace annulus::nki
