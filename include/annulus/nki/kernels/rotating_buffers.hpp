#pragma once
// HBM buffers of the payloads that rotate: prefetched operands, sent one step ahead, and carried gradients.

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/kernel_spec.hpp"
#include "annulus/nki/kernels/row_tiles.hpp"
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
  std::string bounds_name;  ///< prefix of the names of the bounds tiles
};

/// Emits the rounds of a kernel: write(round) for all items that the cores process in parallel, then for an odd one.
template <class Write>
void for_each_round(Builder& builder, KernelSpec const& spec, Write&& write) {
  Index const paired = spec.items() / spec.cores;
  if (paired > 0)
    builder.loop("round", paired, [&](Affine const& round) {
      write(Round{round * spec.cores + (spec.cores == 2 ? Affine::of(core_variable) : Affine(0)),
                  {false, paired > 1},
                  "bounds"});
    });
  if (spec.items() % spec.cores == 1) write(Round{spec.items() - 1, {true, false}, "shared_bounds"});
}

/// Prefetched operands: two buffers each, permuted one step ahead.
class RotatingBuffers {
 public:
  struct Operand {
    std::string name;
    Index size = 0;  ///< elements of one item
    ElementType type = ElementType::float32;
  };

  RotatingBuffers() = default;
  RotatingBuffers(Builder& builder, KernelSpec const& spec, RoundKind kind, std::vector<Operand> operands, int steps)
      : builder_(&builder), spec_(&spec), kind_(kind), operands_(std::move(operands)), steps_(steps) {
    if (steps_ <= 1) return;
    for (Operand const& operand : operands_) {
      std::array<TensorHandle, 2> sides;
      for (std::size_t side = 0; side < 2; ++side)
        sides[side] = builder.tensor(operand.name + kind.suffix() + (side == 0 ? "_a" : "_b"),
                                     {kind.parts(spec), operand.size}, operand.type);
      buffers_.push_back(std::move(sides));
    }
  }

  bool travels() const { return steps_ > 1; }
  /// Buffer of an operand at a step, and the offset of this core's item in it.
  TensorHandle const& at(std::size_t operand, int step) const {
    return buffers_[operand][static_cast<std::size_t>(step % 2)];
  }
  Affine offset(std::size_t operand) const { return kind_.part(*spec_) * operands_[operand].size; }
  /// Tensor and offset of an operand of `item` at a step: in the kernel's argument at first, then in the buffers.
  std::pair<TensorHandle, Affine> place(std::size_t operand, int step, TensorHandle const& argument,
                                        Affine const& item) const {
    if (step == 0) return {argument, item * operands_[operand].size};
    return {at(operand, step), offset(operand)};
  }

  /// Waits for both cores before fill() overwrites the buffers of an earlier round.
  void before_filling() {
    if (travels() && kind_.repeated)
      for (auto const& sides : buffers_) barrier(sides[0]);
  }

  /// Copies `count` rows of `row` elements of an operand to its send buffer, as no document says that a collective may
  /// read a kernel's argument. Cores that share an item copy different operands.
  void fill(std::size_t operand, TensorHandle const& from, Affine const& from_offset, Index row, Index first,
            Index count) {
    if (!travels() || count == 0) return;
    auto const copy = [&] {
      builder_->emit(DmaCopy{rows_at(at(operand, 0), offset(operand) + first * row, count, row),
                             rows_at(from, from_offset + first * row, count, row)});
    };
    kind_.shared ? builder_->on_core(static_cast<int>(operand % 2), copy) : copy();
  }

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
  void barrier(TensorHandle const& tensor) {
    if (spec_->cores == 2) builder_->emit(CoreBarrier{tensor.whole()});
  }

  Builder* builder_ = nullptr;
  KernelSpec const* spec_ = nullptr;
  RoundKind kind_;
  std::vector<Operand> operands_;
  int steps_ = 1;
  std::vector<std::array<TensorHandle, 2>> buffers_;
};

/// A carried gradient. Each step adds its contribution to the sum received from the predecessor and sends the result to
/// the successor; after as many hops as ranks the sum is back at its owner.
class CarriedGradient {
 public:
  CarriedGradient() = default;
  CarriedGradient(Builder& builder, KernelSpec const& spec, RoundKind kind, std::string const& name, Index size,
                  int steps)
      : builder_(&builder), spec_(&spec), kind_(kind), size_(size), steps_(steps) {
    if (steps_ <= 1) return;
    for (std::size_t side = 0; side < 2; ++side)
      carried_[side] = builder.tensor(name + kind.suffix() + (side == 0 ? "_a" : "_b"), {kind.parts(spec), size},
                                      ElementType::float32);
    share_ = builder.tensor(name + "_share" + kind.suffix(), {kind.parts(spec), size}, ElementType::float32);
  }

  bool travels() const { return steps_ > 1; }
  /// Tensor to which a step writes its contribution.
  TensorHandle const& target(int step) const { return step == 0 ? carried_[0] : share_; }
  Affine offset() const { return kind_.part(*spec_) * size_; }

  /// Call before a step writes to target(): waits until what was last sent from it has been read.
  void begin_step(int step) {
    if (!travels() || spec_->cores == 1) return;
    if (step == 0 ? kind_.repeated : step >= 2 || kind_.repeated) builder_->emit(CoreBarrier{target(step).whole()});
  }

  /// Call after a step has written target(): sends the sum to the successor.
  void send(int step) {
    if (!travels()) return;
    auto const here = static_cast<std::size_t>(step % 2), next = 1 - here;
    if (spec_->cores == 2) {
      builder_->emit(CoreBarrier{target(step).whole()});
      if (kind_.repeated && step == 0) builder_->emit(CoreBarrier{carried_[next].whole()});
    }
    if (step == 0)
      builder_->emit(CollectivePermute{carried_[0].whole(), carried_[1].whole(), 0});
    else
      builder_->emit(
          CollectivePermuteReduce{share_.whole(), carried_[here].whole(), carried_[next].whole(), Operator::add, 0});
  }

  /// Tensor that holds the complete sum after the last step.
  TensorHandle const& home() const { return carried_[static_cast<std::size_t>(steps_ % 2)]; }

 private:
  Builder* builder_ = nullptr;
  KernelSpec const* spec_ = nullptr;
  RoundKind kind_;
  Index size_ = 0;
  int steps_ = 1;
  std::array<TensorHandle, 2> carried_;
  TensorHandle share_;
};

}  // namespace annulus::nki
