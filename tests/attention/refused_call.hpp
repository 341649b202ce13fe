#pragma once
// Calls that are valid on every rank, changes that make them invalid, and the outcome on each rank.

#include <array>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "annulus/attention/ring_attention.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "support/refusal.hpp"

namespace annulus_test {

using annulus::Index;
using annulus::Rank;
using annulus::TensorView;

/// Arguments of one rank. Views refer to memory_.
struct Call {
  static constexpr Index batch = 2, rows = 3, query_heads = 4, kv_heads = 2, head_dim = 4, value_dim = 3;
  static constexpr float untouched = -77.0f;

  Rank rank = 0;
  int ranks = 1;
  annulus::Pass pass = annulus::Pass::forward;
  annulus::Options options{};
  annulus::Operands<float> operands{};
  TensorView<float, 4> q, k, v, output, dout;
  TensorView<float, 3> lse;
  annulus::GradientViews<float, annulus::HostMemory> gradients;
  /// Function to call instead of the pass with the reference backend; may be empty.
  std::function<void(annulus::SimulatedRing&, Call&)> instead{};

  Index global_rows() const { return rows * ranks; }

  template <class T = float, std::size_t N>
  TensorView<T, N> tensor(std::array<Index, N> const& extents, T value = T(1)) {
    Index count = 1;
    for (Index extent : extents) count *= extent;
    auto& bytes = memory_.emplace_back(static_cast<std::size_t>(count) * sizeof(T));
    T* const data = reinterpret_cast<T*>(bytes.data());
    for (Index i = 0; i < count; ++i) data[i] = value;
    return {data, extents};
  }
  /// The memory of `view` under other extents.
  template <class T, std::size_t N>
  static auto as(TensorView<T, N> const& view, std::convertible_to<Index> auto... extents) {
    return TensorView<T, sizeof...(extents)>(view.data(), {static_cast<Index>(extents)...});
  }
  template <class T, std::size_t N>
  static TensorView<T, N> without_data(TensorView<T, N> const& view) {
    return {nullptr, view.extents()};
  }
  auto varied(std::convertible_to<Index> auto... extents) { return varied(std::array{static_cast<Index>(extents)...}); }
  template <std::size_t N>
  TensorView<float, N> varied(std::array<Index, N> const& extents) {
    auto const view = tensor<float>(extents);
    for (Index i = 0; i < view.size(); ++i)
      view.data()[i] = static_cast<float>((i * 37 + rank * 11) % 19) / 19.0f - 0.5f;
    return view;
  }
  TensorView<float, 4> bias_of(Index keys) { return varied(batch, query_heads, rows, keys); }
  TensorView<bool, 4> mask_of(Index keys, Index items = 1, Index queries = rows) {
    return tensor<bool, 4>({items, 1, queries, keys}, true);
  }
  TensorView<std::int32_t, 2> ids(Index items, Index count) { return tensor<std::int32_t, 2>({items, count}, 1); }

  void give_keys(Index keys, Index heads) {
    k = varied(batch, keys, heads, head_dim);
    v = varied(batch, keys, heads, value_dim);
  }
  void give_bias_with_gradient() {
    operands.bias = bias_of(global_rows());
    operands.bias_gradient = true;
  }
  void give_ids(TensorView<std::int32_t, 2> const& of_queries, TensorView<std::int32_t, 2> const& of_keys) {
    operands.query_documents = of_queries;
    operands.key_documents = of_keys;
  }

  template <class Attention>
  void run(Attention& attention) {
    if (pass == annulus::Pass::forward)
      attention.forward_into(q, k, v, output, lse, operands);
    else
      attention.backward_into(dout, output, lse, q, k, v, gradients, operands);
  }

  /// True if no element of the results has been written.
  bool results_untouched() const {
    if (output.data() == nullptr || lse.data() == nullptr) return true;
    bool same = true;
    for (Index i = 0; i < output.size(); ++i) same = same && output.data()[i] == untouched;
    for (Index i = 0; i < lse.size(); ++i) same = same && lse.data()[i] == untouched;
    for (auto const& gradient : {gradients.dq, gradients.dk, gradients.dv})
      for (Index i = 0; i < gradient.size() && gradient.data(); ++i) same = same && gradient.data()[i] == untouched;
    return same;
  }

 private:
  std::list<std::vector<std::byte>> memory_;
};

/// The extents of a call, by the names that tables of calls use.
namespace call_extents {

inline constexpr Index b = Call::batch, rows = Call::rows, heads = Call::query_heads, kv = Call::kv_heads,
                       dim = Call::head_dim, value = Call::value_dim;

}  // namespace call_extents

/// Makes `call` a valid call of this rank. It is not returned by value, because its views refer to its memory.
inline void make_good(Call& call, int ranks, Rank rank) {
  call.rank = rank;
  call.ranks = ranks;
  call.q = call.varied(Call::batch, Call::rows, Call::query_heads, Call::head_dim);
  call.give_keys(Call::rows, Call::kv_heads);
  call.dout = call.varied(Call::batch, Call::rows, Call::query_heads, Call::value_dim);
  call.output = call.tensor<float, 4>(call.dout.extents(), Call::untouched);
  call.lse = call.tensor<float, 3>({Call::batch, Call::query_heads, Call::rows}, Call::untouched);
  call.gradients.dq = call.tensor<float, 4>(call.q.extents(), Call::untouched);
  call.gradients.dk = call.tensor<float, 4>(call.k.extents(), Call::untouched);
  call.gradients.dv = call.tensor<float, 4>(call.v.extents(), Call::untouched);
}

/// What a call on one rank threw and left behind.
struct Outcome : Thrown {
  bool untouched = false, good_call_works = false;

  Outcome(Thrown thrown = {}) : Thrown(std::move(thrown)) {}
};

/// True if a valid forward pass succeeds on this ring and writes a finite lse.
inline bool good_call_works(annulus::SimulatedRing& ring) {
  Call call;
  make_good(call, ring.size(), ring.rank());
  annulus::ReferenceBackend backend;
  annulus::RingAttention attention(ring, backend, {.mask = annulus::causal()});
  Outcome const outcome = attempt([&] { call.run(attention); });
  for (Index i = 0; i < call.lse.size(); ++i)
    if (!(std::abs(call.lse.data()[i]) < 10)) return false;
  return outcome.type == "nothing";
}

using Spoil = std::function<void(Call&)>;

/// Gives a map of the positions, altered by `change`.
inline Spoil mapped(std::function<void(std::vector<std::vector<Index>>&)> const& change) {
  return [change](Call& c) {
    std::vector<std::vector<Index>> positions(static_cast<std::size_t>(c.ranks));
    for (Index p = 0; p < c.global_rows(); ++p) positions[static_cast<std::size_t>(p / Call::rows)].push_back(p);
    change(positions);
    c.options.sharding = annulus::ExplicitMap{.queries = positions, .keys = {}};
  };
}

/// Every rank makes a call, changed by `spoil` on all ranks or on `odd` alone, then a valid one. Outcomes by rank.
inline std::vector<Outcome> outcomes_of(int ranks, Spoil const& spoil, std::optional<Rank> odd = std::nullopt) {
  return annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    Call call;
    make_good(call, ranks, ring.rank());
    if (!odd || ring.rank() == *odd) spoil(call);
    annulus::ReferenceBackend backend;
    Outcome outcome = attempt([&] {
      if (call.instead) return call.instead(ring, call);
      annulus::RingAttention attention(ring, backend, call.options);
      call.run(attention);
    });
    outcome.untouched = call.results_untouched();
    outcome.good_call_works = good_call_works(ring);
    return outcome;
  });
}

/// On rings of `fewest` to 4 ranks all ranks or, if one suffices, the last one alone make the call of a row: all throw
/// the same, nothing is written, and the ring can be used again.
inline void check_refused_on_rings(std::vector<Refusal<Call&>> const& table, bool one_suffices = true, int fewest = 1) {
  check_refused(table, [&](Spoil const& spoil) {
    std::vector<Thrown> all;
    for (int ranks = fewest; ranks <= 4; ++ranks)
      for (std::optional<Rank> odd : {std::optional<Rank>{}, std::optional<Rank>{ranks - 1}}) {
        if (odd && !one_suffices) continue;
        auto const outcomes = outcomes_of(ranks, spoil, odd);
        for (Outcome const& outcome : outcomes) {
          CAPTURE(ranks, odd.value_or(-1), outcome.text);
          CHECK(outcome.text == outcomes[0].text);
          CHECK((outcome.untouched && outcome.good_call_works));
          all.push_back(outcome);
        }
      }
    return all;
  });
}

}  // namespace annulus_test
