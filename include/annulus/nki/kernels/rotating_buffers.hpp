#pragma once
// Rounds of a kernel, and the HBM buffers of the operands that rotate.

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/row_tiles.hpp"

namespace annulus::nki {

/// One pass of a kernel over the ring: one item per core, or one that the cores of a pair share.
struct Round {
  Builder* builder;
  Affine item;
  bool shared = false;
  bool repeated = false;       ///< runs more than once, so that an earlier run may have used the same buffers
  std::vector<RowTile> tiles;  ///< of the queries of a head
  Index parts = 1;             ///< number of items in a buffer
  Affine part{};               ///< index of this core's item in a buffer

  std::string suffix() const { return shared ? "_shared" : ""; }
  /// First head of the item in an argument [.., heads of an item, rows, dim].
  HeadRows in_argument(TensorHandle const& tensor, Index heads, Index rows, Index dim, bool by_token = true) const {
    return {tensor, item * (heads * rows * dim), rows, dim, by_token};
  }
};

/// Emits the rounds of a kernel: write(round) for all items that the cores process in parallel, then for an odd one.
/// `pieces`: of the queries; no row tile crosses the end of one.
template <class Write>
void for_each_round(Builder& builder, KernelSpec const& spec, std::vector<RowRange> const& pieces, Write&& write) {
  Index const paired = spec.items() / spec.cores;
  Affine const core = spec.cores == 2 ? Affine::of(core_variable) : Affine(0);
  if (paired > 0)
    builder.loop("round", paired, [&](Affine const& round) {
      write(Round{&builder, round * spec.cores + core, false, paired > 1, row_tiles(pieces, false), spec.cores, core});
    });
  if (spec.items() % spec.cores == 1)
    write(Round{.builder = &builder, .item = spec.items() - 1, .shared = true, .tiles = row_tiles(pieces, true)});
}

/// Rows of an item: in an argument or result of the kernel and, if they rotate, in two buffers that alternate.
struct RotatingRows {
  Round const* round;
  HeadRows argument;  ///< first head of the item; without tensor: only the buffers hold the rows
  Index heads;        ///< of an item
  bool rotates;
  std::array<HeadRows, 2> buffers{};  ///< first head of this core's item, at even and odd steps

  /// `tensor`: the argument or result, [.., heads of an item, rows, dim].
  RotatingRows(Round const& of, std::string const& name, TensorHandle const& tensor, Index item_heads, Index rows,
               Index dim, int steps, ElementType type = ElementType::float32, bool by_token = true)
      : round(&of),
        argument(of.in_argument(tensor, item_heads, rows, dim, by_token)),
        heads(item_heads),
        rotates(steps > 1) {
    if (!rotates) return;
    for (std::size_t side : {0, 1}) buffers[side] = buffer(name + of.suffix() + (side == 0 ? "_a" : "_b"), type);
  }

  /// Declares a buffer of the same rows.
  HeadRows buffer(std::string const& name, ElementType type = ElementType::float32) const {
    HeadRows const& like = argument;
    TensorHandle const tensor = round->builder->tensor(
        name, {round->parts, heads * (like.by_token ? like.rows : like.dim), like.by_token ? like.dim : like.rows},
        type);
    return {tensor, round->part * (all_rows() * like.dim), like.rows, like.dim, like.by_token};
  }
  HeadRows const& at(int step) const { return nth(buffers, step % 2); }
  Index all_rows() const { return heads * argument.rows; }
  void barrier(HeadRows const& of) const {
    if (round->builder->program().cores == 2) round->builder->emit(CoreBarrier{of.tensor.whole()});
  }
};

/// Operands of one side at each step: the kernel's arguments or, if there are several steps, prefetched operands,
/// permuted one step ahead.
class RotatingBuffers {
 public:
  RotatingBuffers() = default;
  RotatingBuffers(std::vector<RotatingRows> operands, int steps) : operands_(std::move(operands)), steps_(steps) {}

  RotatingRows& operator[](std::size_t operand) { return operands_[operand]; }
  bool travels() const { return steps_ > 1; }
  /// One head of an operand at a step: in the kernel's argument at first, then in the buffers.
  HeadRows head(std::size_t operand, int step, Index head = 0) const {
    RotatingRows const& rows = operands_[operand];
    bool const in_argument = !travels() || (step == 0 && rows.argument.tensor.buffer >= 0);
    return (in_argument ? rows.argument : rows.at(step)).head(head);
  }

  /// Waits for both cores before fill() overwrites the buffers of an earlier round.
  void before_filling() const {
    for (RotatingRows const& rows : operands_)
      if (travels() && rows.round->repeated) rows.barrier(rows.buffers[0]);
  }

  /// Copies part `part` of `parts` of the arguments to the send buffers, as no document says that a collective may read
  /// a kernel's argument. Cores that share an item copy different operands.
  void fill(Index part = 0, Index parts = 1) const {
    int core = 0;
    for (RotatingRows const& rows : operands_) {
      Index const first = rows.all_rows() * part / parts, count = rows.all_rows() * (part + 1) / parts - first;
      auto const copy = [&] {
        rows.round->builder->emit(DmaCopy{rows.buffers[0].block(first, count), rows.argument.block(first, count)});
      };
      if (travels() && count > 0 && rows.argument.tensor.buffer >= 0)
        rows.round->shared ? rows.round->builder->on_core(core, copy) : copy();
      core = 1 - core;
    }
  }

  /// Starts sending the operands, or one of them, of step `step` to the successor.
  void send(int step) const {
    for (std::size_t operand = 0; operand < operands_.size(); ++operand) send(step, operand);
  }
  /// Returns the bytes that the permute moves.
  Index send(int step, std::size_t operand) const {
    if (step + 1 >= steps_) return 0;
    RotatingRows const& rows = operands_[operand];
    HeadRows const &here = rows.at(step), &next = rows.at(step + 1);
    if (step == 0) rows.barrier(here);
    // The other core may still be reading what is about to be overwritten.
    if (step > 0 || rows.round->repeated) rows.barrier(next);
    rows.round->builder->emit(CollectivePermute{here.tensor.whole(), next.tensor.whole()});
    return rows.round->builder->program().buffer(here.tensor.whole()).bytes();
  }

 private:
  std::vector<RotatingRows> operands_;
  int steps_ = 1;
};

}  // namespace annulus::nki
