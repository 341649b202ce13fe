#pragma once
// HBM buffers of the operands and results that rotate.

#include <array>
#include <string>
#include <vector>

#include "annulus/nki/kernels/round.hpp"

namespace annulus::nki {

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
