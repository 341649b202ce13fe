// A pass of one step writes each element of its results, whatever they hold before, and to the same bits as a backend
// that sums in memory first.

#include <annulus/annulus.hpp>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "support/catch.hpp"
#include "support/summing_backend.hpp"

using namespace annulus_test;

namespace {

template <class T>
using PaddedTensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;

template <class T>
struct PaddedResults {
  PaddedTensor<T> output, dq, dk, dv;
  Eigen::Tensor<annulus::Accumulator<T>, 3, Eigen::RowMajor> lse;
};

template <class X>
bool is_finite_everywhere(X const& results) {
  for (annulus::Index i = 0; i < results.size(); ++i)
    if (!Eigen::numext::isfinite(results.data()[i])) return false;
  return true;
}

template <class X>
bool has_bits_of(X const& a, X const& b) {
  return std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(*a.data())) == 0;
}

/// Operands of two batch items with two kv heads each. The first and last keys and queries, more than a panel and a key
/// block, belong to no document; some are between documents, which begin at other rows in the second item.
template <class T>
class PaddedProblem {
 public:
  PaddedProblem()
      : q_(random(query_heads, head_dim)),
        k_(random(kv_heads, head_dim)),
        v_(random(kv_heads, value_dim)),
        dout_(random(query_heads, value_dim)),
        documents_(batches, queries) {
    for (annulus::Index b = 0; b < batches; ++b)
      for (annulus::Index i = 0; i < queries; ++i)
        documents_(b, i) = i < 140 || i >= 290 ? 0
                           : i % 31 == 7       ? -1
                                               : 1 + static_cast<std::int32_t>((i + 30 * b) / 100);
  }

  template <class B>
  PaddedResults<T> solve(B backend) const {
    T const nan = std::numeric_limits<T>::quiet_NaN();
    auto const unwritten = [&](annulus::Index heads, annulus::Index dim) {
      PaddedTensor<T> result(batches, queries, heads, dim);
      result.setConstant(nan);
      return result;
    };
    PaddedResults<T> results{unwritten(query_heads, value_dim),
                             unwritten(query_heads, head_dim),
                             unwritten(kv_heads, head_dim),
                             unwritten(kv_heads, value_dim),
                             {}};
    results.lse.resize(batches, query_heads, queries);
    results.lse.setConstant(std::numeric_limits<annulus::Accumulator<T>>::quiet_NaN());
    annulus::SelfRing alone;
    annulus::RingAttention attention(alone, backend, {.mask = annulus::causal()});
    annulus::Operands<T> operands;
    operands.query_documents = operands.key_documents = documents_;
    attention.forward_into(q_, k_, v_, results.output, results.lse, operands);
    annulus::GradientViews<T, annulus::HostMemory> const gradients{
        annulus::view_of(results.dq), annulus::view_of(results.dk), annulus::view_of(results.dv)};
    attention.backward_into(dout_, results.output, results.lse, q_, k_, v_, gradients, operands);
    return results;
  }

 private:
  static constexpr annulus::Index batches = 2, queries = 333, kv_heads = 2, query_heads = 4, head_dim = 20,
                                  value_dim = 24;

  static PaddedTensor<T> random(annulus::Index heads, annulus::Index dim) {
    PaddedTensor<float> numbers(batches, queries, heads, dim);
    numbers.setRandom();
    return numbers.cast<T>();
  }

  PaddedTensor<T> q_, k_, v_, dout_;
  Eigen::Tensor<std::int32_t, 2, Eigen::RowMajor> documents_;
};

}  // namespace

TEMPLATE_TEST_CASE("CpuBackend: a pass of one step writes all results, to the bits of sums in memory", "[cpu]", float,
                   double, Eigen::half, Eigen::bfloat16) {
  PaddedProblem<TestType> const problem;
  auto const sums = problem.solve(SummingBackend{{.threads = 1}});
  for (int threads : {1, 2}) {
    auto const written = problem.solve(annulus::CpuBackend{.threads = threads});
    CAPTURE(threads);
    CHECK(has_bits_of(written.lse, sums.lse));
    using Results = PaddedResults<TestType>;
    for (auto const member : std::array{&Results::output, &Results::dq, &Results::dk, &Results::dv}) {
      CHECK(is_finite_everywhere(written.*member));
      CHECK(has_bits_of(written.*member, sums.*member));
    }
  }
}

TEST_CASE("CpuBackend: a pass of one step whose predicate throws writes nothing", "[cpu]") {
  PaddedTensor<float> q(1, 64, 1, 16), k(1, 64, 1, 16), v(1, 64, 1, 16), output(1, 64, 1, 16);
  Eigen::Tensor<float, 3, Eigen::RowMajor> lse(1, 1, 64);
  q.setRandom(), k.setRandom(), v.setRandom(), output.setConstant(7), lse.setConstant(7);
  annulus::SelfRing alone;
  annulus::CpuBackend backend{.threads = 1};
  auto const throws_late = [](annulus::Index, annulus::Index, annulus::Index query, annulus::Index key) -> bool {
    if (query == 60) throw std::runtime_error("query 60");
    return key <= query;
  };
  annulus::RingAttention attention(alone, backend, {}, throws_late);
  CHECK_THROWS(attention.forward_into(q, k, v, output, lse));
  for (annulus::Index i = 0; i < output.size(); ++i) REQUIRE(output.data()[i] == 7);
  for (annulus::Index i = 0; i < lse.size(); ++i) REQUIRE(lse.data()[i] == 7);
}

TEST_CASE("CpuBackend: a pass of one step may write its output over the values, in another axis order", "[cpu]") {
  PaddedTensor<float> q(1, 100, 2, 16), k(1, 100, 2, 16), v(1, 100, 2, 16);
  q.setRandom(), k.setRandom(), v.setRandom();
  annulus::SelfRing alone;
  annulus::CpuBackend backend{.threads = 1};
  annulus::RingAttention attention(alone, backend, {});
  auto const apart = attention.forward(q, k, v);
  Eigen::Tensor<float, 3, Eigen::RowMajor> lse(1, 2, 100);
  // The output of each head overwrites values of both.
  annulus::TensorView<float> over(v.data(), {1, 100, 2, 16}, {3200, 16, 1600, 1});
  attention.forward_into(q, k, v, over, lse);
  for (annulus::Index i = 0; i < 100; ++i)
    for (annulus::Index h = 0; h < 2; ++h)
      for (annulus::Index d = 0; d < 16; ++d) REQUIRE(over(0, i, h, d) == apart.output(0, i, h, d));
}
