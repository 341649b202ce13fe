#include "annulus/attention/ring_attention.hpp"

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <string>

#include "attention/refused_call.hpp"
#include "support/catch.hpp"

namespace {

/// A tensor whose family fails to allocate results on threads where `out_of_memory` is set.
struct StubbornTensor {
  annulus::TensorView<float const, 4> elements;
  static thread_local bool out_of_memory;
};
thread_local bool StubbornTensor::out_of_memory = false;

}  // namespace

template <>
struct annulus::TensorTraits<StubbornTensor> {
  using scalar = float;
  using memory_space = annulus::HostMemory;
  static constexpr std::size_t rank = 4;
  static auto view(StubbornTensor const& x) { return x.elements; }
  template <class U, std::size_t N>
  static auto make(std::array<annulus::Index, N> const& extents) {
    if (StubbornTensor::out_of_memory) throw std::bad_alloc();
    return annulus::detail::eigen_tensor<U, N, Eigen::RowMajor>(extents);
  }
};

using namespace annulus;
using namespace annulus_test;
using namespace annulus_test::call_extents;

TEST_CASE("the first call fixes the shapes of the next ones", "[attention]") {
  for (int ranks : {1, 3}) {
    auto const texts = run_ring(ranks, [&](SimulatedRing& ring) {
      ReferenceBackend backend;
      RingAttention attention(ring, backend);
      Call first, other, again;
      make_good(first, ranks, ring.rank());
      make_good(other, ranks, ring.rank());
      make_good(again, ranks, ring.rank());
      first.run(attention);
      other.v = other.varied(b, rows, kv, 7);
      other.output = other.tensor<float, 4>({b, rows, heads, 7});
      Thrown const outcome = attempt([&] { other.run(attention); });
      again.run(attention);
      bool const same = std::equal(first.output.data(), first.output.data() + first.output.size(), again.output.data());
      return outcome.type + ": " + outcome.text + (same ? " (same again)" : "");
    });
    for (std::string const& text : texts)
      CHECK_THAT(text, Catch::Matchers::ContainsSubstring("ShapeError") &&
                           Catch::Matchers::ContainsSubstring("[2, 3, 3, 4, 2, 4, 7]") &&
                           Catch::Matchers::ContainsSubstring("the first call fixed them to [2, 3, 3, 4, 2, 4, 3]") &&
                           Catch::Matchers::ContainsSubstring("(same again)"));
  }
}

TEST_CASE("a refused first call fixes no shapes", "[attention]") {
  run_ring(2, [](SimulatedRing& ring) {
    ReferenceBackend backend;
    RingAttention attention(ring, backend);
    Call bad, good;
    make_good(bad, 2, ring.rank());
    make_good(good, 2, ring.rank());
    bad.v = bad.varied(b, rows + 1, kv, value);
    Thrown const outcome = attempt([&] { bad.run(attention); });
    detail::check<Error>(outcome.type == "ShapeError", outcome.type);
    good.run(attention);
  });
  SUCCEED("the good call went through");
}

TEST_CASE("a rank that cannot allocate its results makes all ranks throw", "[attention]") {
  for (int ranks : {1, 3})
    for (Pass pass : {Pass::forward, Pass::backward}) {
      auto const outcomes = run_ring(ranks, [&](SimulatedRing& ring) {
        Call call;
        make_good(call, ranks, ring.rank());
        ReferenceBackend backend;
        RingAttention attention(ring, backend);
        StubbornTensor const q{call.q}, k{call.k}, v{call.v}, dout{call.dout};
        auto const forward = pass == Pass::backward ? std::optional(attention.forward(q, k, v)) : std::nullopt;
        StubbornTensor::out_of_memory = ring.rank() == ranks - 1;
        Outcome outcome = attempt([&] {
          if (pass == Pass::forward)
            attention.forward(q, k, v);
          else
            attention.backward(dout, *forward, q, k, v);
        });
        StubbornTensor::out_of_memory = false;  // rank 0 runs on the thread of the test
        outcome.good_call_works = good_call_works(ring);
        return outcome;
      });
      for (Outcome const& outcome : outcomes) {
        CHECK(outcome.type == "Error");
        CHECK_THAT(outcome.text, Catch::Matchers::ContainsSubstring(detail::message_of("rank ", ranks - 1, ": ")));
        CHECK(outcome.good_call_works);
      }
    }
}

TEST_CASE("extents are validated before results are allocated", "[attention]") {
  auto const outcomes = run_ring(2, [](SimulatedRing& ring) {
    Call call;
    make_good(call, 2, ring.rank());
    if (ring.rank() == 1) call.q = {call.q.data(), {b, -rows, heads, dim}};
    ReferenceBackend backend;
    RingAttention attention(ring, backend);
    return attempt([&] { attention.forward(call.q, call.k, call.v); });
  });
  for (Thrown const& outcome : outcomes) CHECK(outcome.type == "ShapeError");
}
