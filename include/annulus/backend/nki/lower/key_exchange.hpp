#pragma once
// Keys and values on their way round the ring: two pairs of buffers, permuted one step ahead of their use.

#include <string>
#include <utility>

#include "annulus/backend/nki/lower/operand_loads.hpp"

namespace annulus::nki {

class KeyExchange {
 public:
  struct Inputs {
    TensorHandle k, v;
  };

  /// repeated: the round is one of several that use the same buffers.
  KeyExchange(Builder& builder, KernelSpec const& spec, Inputs inputs, Affine item, bool shared, bool repeated, int steps)
      : builder_(&builder), spec_(&spec), inputs_(std::move(inputs)), item_(std::move(item)), shared_(shared), repeated_(repeated), steps_(steps) {
    if (steps_ <= 1) return;
    Index const parts = shared || spec.cores == 1 ? 1 : 2;
    for (std::size_t side = 0; side < 2; ++side) {
      std::string const suffix = std::string(shared ? "_shared" : "") + (side == 0 ? "_a" : "_b");
      k_[side] = builder.tensor("k" + suffix, {parts, key_size()}, spec.type);
      v_[side] = builder.tensor("v" + suffix, {parts, value_size()}, spec.type);
    }
    register_ = builder.make_register();
  }

  /// Copies a part of what the rank holds to where it is sent from. Whether a collective may read a kernel's argument is
  /// nowhere said.
  void copy(Index part, Index parts) {
    if (steps_ <= 1) return;
    if (part == 0 && repeated_ && spec_->cores == 2) {
      // The round before sent from here.
      builder_->emit(CoreBarrier{k_[0].whole()});
      builder_->emit(CoreBarrier{v_[0].whole()});
    }
    copy_own(part, parts);
  }

  /// The keys, or values, of the step after this one start to travel.
  void send_keys(int step) { send(k_, step); }
  void send_values(int step) { send(v_, step); }

  /// Register with the id of the rank whose keys step `step` works on; -1 where there is no ring.
  int owner(int step) {
    if (builder_->program().ranks == 1) return -1;
    if (register_ < 0) register_ = builder_->make_register();
    builder_->emit(ProcessingRank{register_, step, 0});
    return register_;
  }

  HeadSource keys(int step) const {
    return {step == 0 ? inputs_.k : k_[static_cast<std::size_t>(step % 2)], (step == 0 ? item_ : part()) * key_size(), spec_->local_keys,
            spec_->shape.head_dim, spec_->keys_by_token};
  }
  HeadSource values(int step) const {
    return {step == 0 ? inputs_.v : v_[static_cast<std::size_t>(step % 2)], (step == 0 ? item_ : part()) * value_size(), spec_->local_keys,
            spec_->shape.value_dim, true};
  }

 private:
  void send(std::array<TensorHandle, 2> const& buffers, int step) {
    if (step + 1 >= steps_) return;
    TensorHandle const &here = buffers[static_cast<std::size_t>(step % 2)], &next = buffers[static_cast<std::size_t>((step + 1) % 2)];
    if (step == 0 && spec_->cores == 2) builder_->emit(CoreBarrier{here.whole()});
    // The other core may still be reading what is about to be overwritten.
    if ((step > 0 || repeated_) && spec_->cores == 2) builder_->emit(CoreBarrier{next.whole()});
    builder_->emit(CollectivePermute{here.whole(), next.whole(), 0});
  }

  Index key_size() const { return spec_->local_keys * spec_->shape.head_dim; }
  Index value_size() const { return spec_->local_keys * spec_->shape.value_dim; }
  Affine part() const { return shared_ || spec_->cores == 1 ? Affine(0) : Affine::of(core_variable); }

  void copy_own(Index piece, Index pieces) {
    Index const rows = spec_->local_keys, first = rows * piece / pieces, count = rows * (piece + 1) / pieces - first;
    if (count == 0) return;
    auto const copy = [&](TensorHandle const& to, TensorHandle const& from, Index size) {
      Index const row = size / rows;
      builder_->emit(DmaCopy{to.pattern(part() * size + first * row, {{row, count}, {1, row}}),
                             from.pattern(item_ * size + first * row, {{row, count}, {1, row}})});
    };
    auto const copy_keys = [&] { copy(k_[0], inputs_.k, key_size()); };
    auto const copy_values = [&] { copy(v_[0], inputs_.v, value_size()); };
    if (shared_) {
      builder_->on_core(0, copy_keys);
      builder_->on_core(1, copy_values);
    } else {
      copy_keys();
      copy_values();
    }
  }

  Builder* builder_;
  KernelSpec const* spec_;
  Inputs inputs_;
  Affine item_;
  bool shared_, repeated_;
  int steps_;
  int register_ = -1;
  std::array<TensorHandle, 2> k_, v_;
};

}  // namespace annulus::nki
