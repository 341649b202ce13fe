#pragma once
// What goes round the ring in HBM: operands that leave a step ahead of their use, and gradients that are summed on the way.

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "annulus/backend/nki/lower/kernel_spec.hpp"
#include "annulus/backend/nki/program/builder.hpp"

namespace annulus::nki {

/// Who uses the buffers: one item per core, or one that both cores share; and whether another round has used them before.
struct RoundKind {
  bool shared = false;
  bool repeated = false;

  Index parts(KernelSpec const& spec) const { return shared || spec.cores == 1 ? 1 : 2; }
  Affine part(KernelSpec const& spec) const {
    return shared || spec.cores == 1 ? Affine(0) : Affine::of(core_variable);
  }
  std::string suffix() const { return shared ? "_shared" : ""; }
};

/// Operands: two buffers each, permuted one step ahead.
class TravelBuffers {
 public:
  struct Operand {
    std::string name;
    Index size = 0;  ///< elements of one item
    ElementType type = ElementType::float32;
  };

  TravelBuffers() = default;
  TravelBuffers(Builder& builder, KernelSpec const& spec, RoundKind kind, std::vector<Operand> operands, int steps)
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
  TensorHandle const& at(std::size_t operand, int step) const {
    return buffers_[operand][static_cast<std::size_t>(step % 2)];
  }
  Affine offset(std::size_t operand) const { return kind_.part(*spec_) * operands_[operand].size; }

  /// Before what the rank holds is written to where it is sent from.
  void before_filling() {
    if (travels() && kind_.repeated)
      for (auto const& sides : buffers_) meet(sides[0]);
  }

  /// Copies rows of an operand, each `row` elements long, to where it is sent from. Whether a collective may read a
  /// kernel's argument is nowhere said. Cores that share an item copy different operands.
  void fill(std::size_t operand, TensorHandle const& from, Affine const& from_offset, Index row, Index first,
            Index count) {
    if (!travels() || count == 0) return;
    auto const copy = [&] {
      builder_->emit(DmaCopy{at(operand, 0).pattern(offset(operand) + first * row, {{row, count}, {1, row}}),
                             from.pattern(from_offset + first * row, {{row, count}, {1, row}})});
    };
    kind_.shared ? builder_->on_core(static_cast<int>(operand % 2), copy) : copy();
  }

  /// What step `step` works on starts to travel on to the next.
  void send(int step) {
    for (std::size_t operand = 0; operand < operands_.size(); ++operand) send(step, operand);
  }
  void send(int step, std::size_t operand) {
    if (step + 1 >= steps_) return;
    TensorHandle const &here = at(operand, step), &next = at(operand, step + 1);
    if (step == 0) meet(here);
    // The other core may still be reading what is about to be overwritten.
    if (step > 0 || kind_.repeated) meet(next);
    builder_->emit(CollectivePermute{here.whole(), next.whole(), 0});
  }

 private:
  void meet(TensorHandle const& tensor) {
    if (spec_->cores == 2) builder_->emit(CoreBarrier{tensor.whole()});
  }

  Builder* builder_ = nullptr;
  KernelSpec const* spec_ = nullptr;
  RoundKind kind_;
  std::vector<Operand> operands_;
  int steps_ = 1;
  std::vector<std::array<TensorHandle, 2>> buffers_;
};

/// A gradient that is carried: what each step adds meets what comes from the predecessor on its way to the successor. After as
/// many hops as there are ranks it is home.
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
  /// Where a step writes what it adds.
  TensorHandle const& target(int step) const { return step == 0 ? carried_[0] : share_; }
  Affine offset() const { return kind_.part(*spec_) * size_; }

  /// Before a step writes: what was sent from there must be gone.
  void begin_step(int step) {
    if (!travels() || spec_->cores == 1) return;
    if (step == 0 ? kind_.repeated : step >= 2 || kind_.repeated) builder_->emit(CoreBarrier{target(step).whole()});
  }

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

  /// Where it is after the last step.
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
