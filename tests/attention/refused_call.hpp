#pragma once
// Calls that are valid on every rank, changes that make them invalid, and the outcome on each rank.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "annulus/attention/ring_attention.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "support/catch.hpp"

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
  template <std::size_t N>
  TensorView<float, N> varied(std::array<Index, N> const& extents) {
    auto const view = tensor<float>(extents);
    for (Index i = 0; i < view.size(); ++i)
      view.data()[i] = static_cast<float>((i * 37 + rank * 11) % 19) / 19.0f - 0.5f;
    return view;
  }
  TensorView<float, 4> bias_of(Index keys) { return varied<4>({batch, query_heads, rows, keys}); }
  TensorView<bool, 4> mask_of(Index keys) { return tensor<bool, 4>({1, 1, rows, keys}, true); }
  TensorView<std::int32_t, 2> ids(Index items, Index count) { return tensor<std::int32_t, 2>({items, count}, 1); }

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

/// Makes `call` a valid call of this rank. It is not returned by value, because its views refer to its memory.
inline void make_good(Call& call, int ranks, Rank rank) {
  call.rank = rank;
  call.ranks = ranks;
  call.q = call.varied<4>({Call::batch, Call::rows, Call::query_heads, Call::head_dim});
  call.k = call.varied<4>({Call::batch, Call::rows, Call::kv_heads, Call::head_dim});
  call.v = call.varied<4>({Call::batch, Call::rows, Call::kv_heads, Call::value_dim});
  call.dout = call.varied<4>({Call::batch, Call::rows, Call::query_heads, Call::value_dim});
  call.output = call.tensor<float, 4>(call.dout.extents(), Call::untouched);
  call.lse = call.tensor<float, 3>({Call::batch, Call::query_heads, Call::rows}, Call::untouched);
  call.gradients.dq = call.tensor<float, 4>(call.q.extents(), Call::untouched);
  call.gradients.dk = call.tensor<float, 4>(call.k.extents(), Call::untouched);
  call.gradients.dv = call.tensor<float, 4>(call.v.extents(), Call::untouched);
}

/// Outcome of a call on one rank: type ("nothing": none) and text of its error, and what it left behind.
struct Outcome {
  std::string type = "nothing";
  std::string text;
  bool untouched = false;
  bool good_call_works = false;
};

template <class Function>
Outcome attempt(Function&& function) {
  try {
    function();
    return {};
  } catch (annulus::ShapeError const& error) {
    return {.type = "ShapeError", .text = error.what()};
  } catch (annulus::UnsupportedError const& error) {
    return {.type = "UnsupportedError", .text = error.what()};
  } catch (annulus::CommunicationError const& error) {
    return {.type = "CommunicationError", .text = error.what()};
  } catch (annulus::Error const& error) {
    return {.type = "Error", .text = error.what()};
  } catch (std::exception const& error) {
    return {.type = "std::exception", .text = error.what()};
  } catch (...) {
    return {.type = "unknown", .text = {}};
  }
}

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

/// Every rank makes a call, changed by `spoil` where spoiled(rank) holds, then if asked a valid one. Outcomes by rank.
inline std::vector<Outcome> outcomes_of(int ranks, Spoil const& spoil, std::function<bool(Rank)> const& spoiled,
                                        bool then_a_good_call) {
  return annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    Call call;
    make_good(call, ranks, ring.rank());
    if (spoiled(ring.rank())) spoil(call);
    annulus::ReferenceBackend backend;
    Outcome outcome = attempt([&] {
      if (call.instead) return call.instead(ring, call);
      annulus::RingAttention attention(ring, backend, call.options);
      call.run(attention);
    });
    outcome.untouched = call.results_untouched();
    outcome.good_call_works = !then_a_good_call || good_call_works(ring);
    return outcome;
  });
}

struct BadCall {
  std::string name, type;
  std::vector<std::string> parts;  ///< substrings of the message
  Spoil spoil;
  bool one_rank_suffices = true;  ///< false: if one rank alone makes it, the error is a disagreement
};

inline void check_refused(BadCall const& bad) {
  for (int ranks = 1; ranks <= 4; ++ranks)
    for (bool all : {true, false}) {
      if (!all && !bad.one_rank_suffices) continue;
      auto const outcomes = outcomes_of(
          ranks, bad.spoil, [&](Rank rank) { return all || rank == ranks - 1; }, true);
      for (Outcome const& outcome : outcomes) {
        CAPTURE(bad.name, ranks, all, outcome.text);
        CHECK(outcome.type == bad.type);
        for (std::string const& part : bad.parts) CHECK_THAT(outcome.text, Catch::Matchers::ContainsSubstring(part));
        CHECK(outcome.text == outcomes[0].text);
        CHECK(outcome.untouched);
        CHECK(outcome.good_call_works);
      }
    }
}

inline BadCall shape(std::string name, std::vector<std::string> parts, Spoil spoil) {
  return {std::move(name), "ShapeError", std::move(parts), std::move(spoil)};
}

inline BadCall unsupported(std::string name, std::vector<std::string> parts, Spoil spoil) {
  return {std::move(name), "UnsupportedError", std::move(parts), std::move(spoil)};
}

/// A call that is found invalid only after the ranks have agreed.
inline BadCall together(BadCall bad) {
  bad.one_rank_suffices = false;
  return bad;
}

}  // namespace annulus_test
