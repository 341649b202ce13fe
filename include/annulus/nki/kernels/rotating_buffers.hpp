#pragma once
// Rounds of a kernel, and the HBM buffers of the operands that rotate.

#include <array>
#include <string>
#include <vector>

#include "annulus/nki/kernels/row_tiles.hpp"

namespace annulus::nki {

/// One pass of a kernel over the ring: one item per core, or one that the cores of a pair share.
struct Round {
  Builder* builder;
  Index items;  ///< number of items of the kernel
  Affine item;
  bool shared = false;
  bool repeated = false;       ///< runs more than once, so that an earlier run may have used the same buffers
  std::vector<RowTile> tiles;  ///< of the queries of a head
  Index parts = 1;             ///< number of items in a buffer
  Affine part{};               ///< index of this core's item in a buffer

  std::string suffix() const { return shared ? "_shared" : ""; }
  /// First head of the item in an argument [.., rows, dim] or, not by_token, [.., dim, rows] of all items.
  HeadRows in_argument(TensorHandle const& tensor, bool by_token = true) const {
    Index const inner = tensor.shape.back(), outer = *(tensor.shape.end() - 2);
    return {tensor, item * (tensor.size() / items), by_token ? outer : inner, by_token ? inner : outer, by_token};
  }
};

/// Emits the rounds of a kernel: write(round) for all items that the cores process in parallel, then for an odd one.
/// `pieces`: of the queries; no row tile crosses the end of one.
template <class Write>
void for_each_round(Builder& builder, KernelSpec const& spec, std::vector<RowRange> const& pieces, Write&& write) {
  Index const items = spec.items(), paired = items / spec.cores;
  Affine const core = spec.cores == 2 ? Affine::of(core_variable) : Affine(0);
  if (paired > 0)
    builder.loop("round", paired, [&](Affine const& round) {
      write(Round{&builder, items, round * spec.cores + core, false, paired > 1, row_tiles(pieces, false), spec.cores,
                  core});
    });
  if (items % spec.cores == 1)
    write(Round{
        .builder = &builder, .items = items, .item = items - 1, .shared = true, .tiles = row_tiles(pieces, true)});
}

/// An operand or result of an item: the kernel's argument and, if there are several ring steps, two buffers that
/// alternate. Operands are sent one step ahead.
struct RotatingRows {
  Round const* round;
  HeadRows argument;  ///< first head of the item; without tensor: only the buffers hold the rows
  int steps;
  Index all_rows;                     ///< of all heads of the item
  std::array<HeadRows, 2> buffers{};  ///< first head of this core's item, at even and odd steps

  /// `tensor`: the argument or result, as for Round::in_argument().
  RotatingRows(Round const& of, std::string const& name, TensorHandle const& tensor, int of_steps, bool by_token = true)
      : round(&of),
        argument(of.in_argument(tensor, by_token)),
        steps(of_steps),
        all_rows(tensor.size() / of.items / argument.dim) {
    if (!travels()) return;
    for (std::size_t side : {0, 1}) buffers[side] = buffer(name + of.suffix() + (side == 0 ? "_a" : "_b"));
  }

  bool travels() const { return steps > 1; }
  bool in_argument() const { return argument.tensor.buffer >= 0; }
  HeadRows const& at(int step) const { return nth(buffers, step % 2); }
  /// One head at a step: in the kernel's argument at first, then in the buffers.
  HeadRows head(int step, Index head = 0) const {
    return (!travels() || (step == 0 && in_argument()) ? argument : at(step)).head(head);
  }

  /// Declares a buffer of the same rows.
  HeadRows buffer(std::string const& name) const {
    auto const& [tensor, offset, rows, dim, by_token, moved_by] = argument;
    std::vector<Index> const shape{round->parts, by_token ? all_rows : all_rows / rows * dim, by_token ? dim : rows};
    ElementType const type =
        in_argument() ? round->builder->program().buffer(tensor.buffer).type : ElementType::float32;
    return {round->builder->tensor(name, shape, type), round->part * (all_rows * dim), rows, dim, by_token};
  }
  void barrier(HeadRows const& of) const {
    if (round->builder->program().cores == 2) round->builder->emit(CoreBarrier{of.tensor.whole()});
  }

  /// Starts sending the rows of a step to the successor, unless it is the last one; returns the bytes that move.
  Index send(int step) const {
    if (step + 1 >= steps) return 0;
    HeadRows const &here = at(step), &next = at(step + 1);
    if (step == 0) barrier(here);
    // The other core may still be reading what is about to be overwritten.
    if (step > 0 || round->repeated) barrier(next);
    round->builder->emit(CollectivePermute{here.tensor.whole(), next.tensor.whole()});
    return round->builder->program().buffer(here.tensor.buffer).bytes();
  }
};

/// Waits for both cores before fill_buffers() overwrites the buffers of an earlier round.
inline void before_filling(std::vector<RotatingRows> const& operands) {
  for (RotatingRows const& rows : operands)
    if (rows.travels() && rows.round->repeated) rows.barrier(rows.buffers[0]);
}

/// Copies part `part` of `parts` of the arguments to the send buffers, as no document says that a collective may read
/// a kernel's argument. Cores that share an item copy different operands.
inline void fill_buffers(std::vector<RotatingRows> const& operands, Index part = 0, Index parts = 1) {
  int core = 1;
  for (RotatingRows const& rows : operands) {
    core = 1 - core;
    Index const first = rows.all_rows * part / parts, count = rows.all_rows * (part + 1) / parts - first;
    if (!rows.travels() || count == 0 || !rows.in_argument()) continue;
    Builder& builder = *rows.round->builder;
    auto const copy = [&] {
      builder.emit(DmaCopy{rows.buffers[0].block(first, count), rows.argument.block(first, count)});
    };
    rows.round->shared ? builder.on_core(core, copy) : copy();
  }
}

}  // namespace annulus::nki
