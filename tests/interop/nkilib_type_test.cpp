// Element types of the nkilib adapter: lse_dtype, fp32 gradients of 16-bit operands, double.

#include <annulus/annulus.hpp>
#include <annulus/interop/nkilib.hpp>
#include <type_traits>

#include "interop/nkilib_run.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
namespace nkilib = annulus::nkilib;

namespace {

template <class T>
using Tensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;

/// Deterministic values in [-1, 1) that T holds exactly.
template <class T>
Tensor<T> values(Index sequence_or_dim, Index dim_or_sequence, int seed) {
  Tensor<T> tensor(1, 2, sequence_or_dim, dim_or_sequence);
  std::mt19937_64 engine(static_cast<std::uint64_t>(seed));
  std::vector<double> const random = uniform(engine, tensor.size());
  for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<T>(random[static_cast<std::size_t>(i)]);
  return tensor;
}

template <class T, class U>
int different(Tensor<T> const& a, Tensor<U> const& b) {
  REQUIRE(a.size() == b.size());
  int count = 0;
  for (Index i = 0; i < a.size(); ++i) count += static_cast<double>(a.data()[i]) != static_cast<double>(b.data()[i]);
  return count;
}

}  // namespace

TEMPLATE_TEST_CASE("nkilib: lse_dtype is the type of lse, rounded from float once", "[nkilib]", Eigen::half,
                   Eigen::bfloat16, double) {
  annulus::SelfRing ring;
  annulus::ReferenceBackend backend;
  Tensor<float> const q = values<float>(4, 9, 1), k = values<float>(4, 9, 2), v = values<float>(9, 4, 3);
  auto const plain = nkilib::ring_attention_spmd_fwd(ring, backend, q, k, v, {.training = true});
  auto const typed = nkilib::ring_attention_spmd_fwd<TestType>(ring, backend, q, k, v, {.training = true});
  static_assert(std::is_same_v<typename std::decay_t<decltype(*plain.lse)>::Scalar, float>);
  static_assert(std::is_same_v<typename std::decay_t<decltype(*typed.lse)>::Scalar, TestType>);
  Tensor<TestType> rounded(plain.lse->dimensions());
  for (Index i = 0; i < rounded.size(); ++i) rounded.data()[i] = static_cast<TestType>(plain.lse->data()[i]);
  CHECK(different(*typed.lse, rounded) == 0);
  if constexpr (sizeof(TestType) == 2) CHECK(different(*typed.lse, *plain.lse) > 0);
  CHECK(different(typed.o, plain.o) == 0);

  // The backward pass reads the type that the forward pass wrote.
  Tensor<float> widened(typed.lse->dimensions());
  for (Index i = 0; i < widened.size(); ++i) widened.data()[i] = static_cast<float>(typed.lse->data()[i]);
  Tensor<float> const transposed_v = values<float>(4, 9, 3), dy = values<float>(4, 9, 4);
  auto const o = annulus::view_of(typed.o).permuted({0, 1, 3, 2});
  auto const from_typed = nkilib::ring_attention_spmd_bwd(ring, backend, q, k, transposed_v, o, dy, *typed.lse);
  auto const from_widened = nkilib::ring_attention_spmd_bwd(ring, backend, q, k, transposed_v, o, dy, widened);
  CHECK(different(from_typed.dq, from_widened.dq) == 0);
  CHECK(different(from_typed.dk, from_widened.dk) == 0);
  CHECK(different(from_typed.dv, from_widened.dv) == 0);
}

TEMPLATE_TEST_CASE("nkilib: gradients of 16-bit operands are fp32, never rounded to 16 bits", "[nkilib]", Eigen::half,
                   Eigen::bfloat16) {
  using T = TestType;
  int const ranks = GENERATE(1, 3);
  struct Both {
    nkilib::BackwardResult<Tensor<float>> adapter;
    annulus::Gradients<Tensor<T>> library;
  };
  auto const results = annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    annulus::ReferenceBackend backend;
    Tensor<T> const q = values<T>(4, 9, 1 + ring.rank()), k = values<T>(4, 9, 11 + ring.rank());
    Tensor<T> const v = values<T>(4, 9, 21 + ring.rank()), dy = values<T>(4, 9, 31 + ring.rank());
    auto const forward =
        nkilib::ring_attention_spmd_fwd(ring, backend, q, k, annulus::view_of(v).permuted({0, 1, 3, 2}),
                                        {.num_workers = ranks, .use_causal_mask = true, .training = true});
    static_assert(std::is_same_v<typename decltype(forward.o)::Scalar, T>);
    auto adapter =
        nkilib::ring_attention_spmd_bwd(ring, backend, q, k, v, annulus::view_of(forward.o).permuted({0, 1, 3, 2}), dy,
                                        *forward.lse, {.use_causal_mask = true, .num_workers = ranks});
    using annulus::bhds;
    annulus::RingAttention attention(ring, backend, {.mask = annulus::causal()});
    auto const plain = attention.forward(bhds(q), bhds(k), bhds(v));
    return Both{std::move(adapter), attention.backward(bhds(dy), plain, bhds(q), bhds(k), bhds(v))};
  });
  for (Both const& both : results) {
    auto const check = [](Tensor<float> const& wide, Tensor<T> const& narrow) {
      Tensor<T> rounded(wide.dimensions());
      for (Index i = 0; i < wide.size(); ++i) rounded.data()[i] = static_cast<T>(wide.data()[i]);
      CHECK(different(rounded, narrow) == 0);
      CHECK(different(wide, narrow) > 0);
    };
    check(both.adapter.dq, both.library.dq);
    check(both.adapter.dk, both.library.dk);
    check(both.adapter.dv, both.library.dv);
  }
}

TEST_CASE("nkilib: double operands give double results, column-major tensors column-major ones", "[nkilib]") {
  annulus::SelfRing ring;
  annulus::ReferenceBackend backend;
  Eigen::Tensor<double, 4> x(1, 1, 3, 3);
  x.setConstant(0.25);
  auto const forward = nkilib::ring_attention_spmd_fwd(ring, backend, x, x, x, {.training = true});
  auto const gradients = nkilib::ring_attention_spmd_bwd(ring, backend, x, x, x, x, x, *forward.lse);
  static_assert(std::is_same_v<std::remove_const_t<decltype(forward.o)>, Eigen::Tensor<double, 4>>);
  static_assert(std::is_same_v<std::decay_t<decltype(*forward.lse)>, Eigen::Tensor<double, 4>>);
  static_assert(std::is_same_v<std::remove_const_t<decltype(gradients.dq)>, Eigen::Tensor<double, 4>>);
  CHECK((*forward.lse)(0, 0, 0, 0) == Approx(std::log(3.0) + 3 * 0.0625 / std::sqrt(3.0)).epsilon(1e-14));
}
