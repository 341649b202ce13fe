#pragma once
// Rounds of a kernel, and the HBM buffers of the operands that rotate.

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/kernel_spec.hpp"
#include "annulus/nki/kernels/operand_loads.hpp"
#include "annulus/nki/program/builder.hpp"

namespace annulus::nki {

/// Kind of a round: shared if both cores work on one item, else one item per core; repeated if the round runs more than
/// once, so that an earlier one may have used the same buffers.
struct RoundKind {
  bool shared = false;
  bool repeated = false;

  /// Number of items in a buffer, and the index of this core's.
  Index parts(KernelSpec const& spec) const { return shared || spec.cores == 1 ? 1 : 2; }
  Affine part(KernelSpec const& spec) const {
    return shared || spec.cores == 1 ? Affine(0) : Affine::of(core_variable);
  }
  std::string suffix() const { return shared ? "_shared" : ""; }
};

/// One pass of a kernel over the ring: one item per core, or one that the cores of a pair share.
struct Round {
  Affine item;
  RoundKind kind;
  std::vector<RowTile> tiles;  ///< of the queries of a head
  std::string bounds_name;     ///< prefix of the names of the bounds tiles
};

/// Emits the rounds of a kernel: write(round) for all items that the cores process in parallel, then for an odd one.
template <class Write>
void for_each_round(Builder& builder, KernelSpec const& spec, Write&& write) {
  Index const paired = spec.items() / spec.cores;
  if (paired > 0)
    builder.loop("round", paired, [&](Affine const& round) {
      Affine const item = round * spec.cores + (spec.cores == 2 ? Affine::of(core_variable) : Affine(0));
      write(Round{item, {false, paired > 1}, row_tiles(spec.local_queries, false), "bounds"});
    });
  if (spec.items() % spec.cores == 1)
    write(Round{spec.items() - 1, {true, false}, row_tiles(spec.local_queries, true), "shared_bounds"});
}

/// Operands of one side at each step: the kernel's arguments or, if there are several steps, prefetched operands with
/// two buffers each, permuted one step ahead.
class RotatingBuffers {
 public:
  struct Operand {
    std::string name;
    TensorHandle argument;
    Index heads = 0, rows = 0, dim = 0;  ///< of one item
    ElementType type = ElementType::float32;
    bool by_token = true;

    Index size() const { return heads * rows * dim; }
  };

  RotatingBuffers() = default;
  RotatingBuffers(Builder& builder, KernelSpec const& spec, Round const& round, std::vector<Operand> operands,
                  int steps)
      : builder_(&builder), spec_(&spec), item_(round.item), kind_(round.kind), operands_(std::move(operands)),
        steps_(steps) {
    if (!travels()) return;
    for (Operand const& operand : operands_) {
      std::array<TensorHandle, 2>& sides = buffers_.emplace_back();
      for (std::size_t side : {0, 1})
        sides[side] = builder.tensor(operand.name + kind_.suffix() + (side == 0 ? "_a" : "_b"),
                                     {kind_.parts(spec), operand.size()}, operand.type);
    }
  }

  bool travels() const { return steps_ > 1; }
  /// Buffer of an operand at a step.
  TensorHandle const& at(std::size_t operand, int step) const {
    return buffers_[operand][static_cast<std::size_t>(step % 2)];
  }
  /// One head of an operand in that buffer.
  HeadSource in_buffer(std::size_t operand, int step, Index head) const {
    return source(operand, at(operand, step), kind_.part(*spec_), head);
  }
  /// One head of an operand at a step: in the kernel's argument at first, then in the buffers.
  HeadSource head(std::size_t operand, int step, Index head = 0) const {
    if (travels() && step > 0) return in_buffer(operand, step, head);
    return source(operand, operands_[operand].argument, item_, head);
  }

  /// Waits for both cores before fill() overwrites the buffers of an earlier round.
  void before_filling() {
    if (travels() && kind_.repeated)
      for (auto const& sides : buffers_) barrier(sides[0]);
  }

  /// Copies rows [first, first + count) of an operand to its send buffer, as no document says that a collective may
  /// read a kernel's argument. Cores that share an item copy different operands.
  void fill(std::size_t operand, Index first, Index count) {
    if (!travels() || count == 0) return;
    Operand const& of = operands_[operand];
    auto const copy = [&] {
      builder_->emit(DmaCopy{rows_at(at(operand, 0), kind_.part(*spec_) * of.size() + first * of.dim, count, of.dim),
                             rows_at(of.argument, item_ * of.size() + first * of.dim, count, of.dim)});
    };
    kind_.shared ? builder_->on_core(static_cast<int>(operand % 2), copy) : copy();
  }
  void fill(std::size_t operand) { fill(operand, 0, operands_[operand].heads * operands_[operand].rows); }

  /// Starts sending the operands of step `step` to the successor.
  void send(int step) {
    for (std::size_t operand = 0; operand < operands_.size(); ++operand) send(step, operand);
  }
  void send(int step, std::size_t operand) {
    if (step + 1 >= steps_) return;
    TensorHandle const &here = at(operand, step), &next = at(operand, step + 1);
    if (step == 0) barrier(here);
    // The other core may still be reading what is about to be overwritten.
    if (step > 0 || kind_.repeated) barrier(next);
    builder_->emit(CollectivePermute{here.whole(), next.whole(), 0});
  }

 private:
  HeadSource source(std::size_t operand, TensorHandle const& tensor, Affine const& item, Index head) const {
    Operand const& of = operands_[operand];
    return {tensor, item * of.size() + head * of.rows * of.dim, of.rows, of.dim, of.by_token};
  }

  void barrier(TensorHandle const& tensor) {
    if (spec_->cores == 2) builder_->emit(CoreBarrier{tensor.whole()});
  }

  Builder* builder_ = nullptr;
  KernelSpec const* spec_ = nullptr;
  Affine item_;
  RoundKind kind_;
  std::vector<Operand> operands_;
  int steps_ = 1;
  std::vector<std::array<TensorHandle, 2>> buffers_;
};

}  // namespace annulus::nki
