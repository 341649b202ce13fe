// Steps of CpuBackend that open and close sums, natively or not, give the bits of sums that are cleared before and
// converted afterwards.

#include <annulus/annulus.hpp>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "support/catch.hpp"
#include "support/summing_backend.hpp"

// Other tests of the folder have the same names.
namespace open_close_test {

using annulus::HostMemory, annulus::Index, annulus::Sums;
using annulus_test::SummingBackend;

namespace {

template <class T, int N = 4>
using Dense = Eigen::Tensor<T, N, Eigen::RowMajor>;

constexpr Index batches = 2, kv_heads = 2, query_heads = 4, head_dim = 20, value_dim = 24;
constexpr std::array row_sums{Sums::none, Sums::queries, Sums::keys, Sums::queries | Sums::keys};

template <class X>
bool same_bits_in(X const& a, X const& b) {
  return std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(*a.data())) == 0;
}

/// Numbers between -1 and 1.
template <class T, class... Extents>
auto random(std::minstd_rand& dice, Extents... extents) {
  Dense<T, sizeof...(Extents)> numbers(extents...);
  for (Index i = 0; i < numbers.size(); ++i)
    numbers.data()[i] = static_cast<T>(std::uniform_real_distribution<float>(-1, 1)(dice));
  return numbers;
}

/// Sums of a step: random numbers, or NaN where the step opens them.
template <class T, class... Extents>
auto sums(std::minstd_rand& dice, bool opened, Extents... extents) {
  auto result = random<T>(dice, extents...);
  if (opened) result.setConstant(std::numeric_limits<T>::quiet_NaN());
  return result;
}

/// A step of causal attention on documents. Some rows belong to none.
template <class T>
class DocumentStep {
  using A = annulus::Accumulator<T>;

 public:
  /// The state after a step, and its results.
  struct Forward {
    Dense<A> accumulator;
    Dense<A, 3> maximum, sum;
    Dense<T> output;
    Dense<A, 3> lse, remainder;
  };
  /// The gradients after a step, and its results of type G.
  template <class G>
  struct Backward {
    Dense<A> dq, dk, dv;
    Dense<G> dq_result, dk_result, dv_result;
  };

  DocumentStep(Index queries, Index keys)
      : queries_(queries), keys_(keys), query_documents_(batches, queries), key_documents_(batches, keys) {
    for (Index b = 0; b < batches; ++b) {
      for (Index i = 0; i < keys; ++i)
        key_documents_(b, i) = i < 10 || i % 31 == 7 ? 0 : 1 + static_cast<std::int32_t>((i + 30 * b) / 100);
      for (Index i = 0; i < queries; ++i) query_documents_(b, i) = key_documents_(b, keys - queries + i);
    }
    for (Index i = 0; i < queries; ++i) query_positions_.push_back(keys - queries + i);
    for (Index i = 0; i < keys; ++i) key_positions_.push_back(i);
    annulus::Segment const all_keys{0, keys, 0, 1}, all_queries{0, queries, keys - queries, 1};
    annulus::detail::visible_tiles({&all_queries, 1}, {&all_keys, 1}, annulus::causal(), 0, false, &tiles_);
  }

  template <class B>
  Forward fold(B backend, Sums opens, Sums closes) const {
    bool const opened = has(opens, Sums::queries);
    std::minstd_rand dice(2);
    Forward f{sums<A>(dice, opened, batches, queries_, query_heads, value_dim),
              sums<A>(dice, opened, batches, query_heads, queries_),
              sums<A>(dice, opened, batches, query_heads, queries_),
              random<T>(dice, batches, queries_, query_heads, value_dim),
              random<A>(dice, batches, query_heads, queries_),
              random<A>(dice, batches, query_heads, queries_)};
    annulus::detail::fold(backend, step().opening_and_closing(opens, closes), operands(),
                          annulus::RunningState<A, HostMemory>{annulus::view_of(f.accumulator),
                                                               annulus::view_of(f.maximum), annulus::view_of(f.sum)},
                          annulus::ForwardResults<T, A, HostMemory>{annulus::view_of(f.output), annulus::view_of(f.lse),
                                                                    annulus::view_of(f.remainder)});
    return f;
  }

  /// transposed: the results have another stride along dim than 1.
  template <class G, class B>
  Backward<G> add_gradients(B backend, Sums opens, Sums closes, bool transposed) const {
    bool const opens_queries = has(opens, Sums::queries), opens_keys = has(opens, Sums::keys);
    std::minstd_rand dice(3);
    Backward<G> g{sums<A>(dice, opens_queries, batches, queries_, query_heads, head_dim),
                  sums<A>(dice, opens_keys, batches, keys_, kv_heads, head_dim),
                  sums<A>(dice, opens_keys, batches, keys_, kv_heads, value_dim),
                  random<G>(dice, batches, queries_, query_heads, head_dim),
                  random<G>(dice, batches, keys_, kv_heads, head_dim),
                  random<G>(dice, batches, keys_, kv_heads, value_dim)};
    auto const result = [&](Dense<G>& tensor) {
      auto const view = annulus::view_of(tensor);
      if (!transposed) return view;
      auto const& extents = view.extents();
      return annulus::TensorView<G, 4>(view.data(), {extents[3], extents[0], extents[1], extents[2]})
          .permuted({1, 2, 3, 0});
    };
    annulus::detail::add_gradients(
        backend, step().opening_and_closing(opens, closes), operands(),
        annulus::BackwardOperands<T, A, A, HostMemory>{annulus::view_of(dout_), annulus::view_of(lse_),
                                                       annulus::view_of(delta_)},
        annulus::StepGradients<A, HostMemory>{
            annulus::view_of(g.dq), annulus::view_of(g.dk), annulus::view_of(g.dv), {}},
        annulus::GradientResults<G, HostMemory>{result(g.dq_result), result(g.dk_result), result(g.dv_result), {}});
    return g;
  }

 private:
  annulus::Step<T, annulus::EveryPair, HostMemory> step() const {
    return {.tiles = tiles_,
            .rules = {.mask = annulus::causal(), .softmax_scale = 0.2},
            .query_positions = query_positions_,
            .key_positions = key_positions_,
            .predicate = &every_pair_,
            .query_documents = annulus::view_of(query_documents_),
            .key_documents = annulus::view_of(key_documents_)};
  }
  annulus::StepOperands<T, HostMemory> operands() const {
    return {annulus::view_of(q_), annulus::view_of(k_), annulus::view_of(v_)};
  }

  Index queries_, keys_;
  std::minstd_rand dice_{1};
  Dense<T> q_ = random<T>(dice_, batches, queries_, query_heads, head_dim),
           k_ = random<T>(dice_, batches, keys_, kv_heads, head_dim),
           v_ = random<T>(dice_, batches, keys_, kv_heads, value_dim),
           dout_ = random<T>(dice_, batches, queries_, query_heads, value_dim);
  Dense<A, 3> lse_ = random<A>(dice_, batches, query_heads, queries_),
              delta_ = random<A>(dice_, batches, query_heads, queries_);
  Dense<std::int32_t, 2> query_documents_, key_documents_;
  std::vector<Index> query_positions_, key_positions_;
  std::vector<annulus::Tile> tiles_;
  annulus::EveryPair every_pair_;
};

template <class T, class G>
void compare_gradients(DocumentStep<T> const& step, Sums opens, Sums closes, int threads) {
  for (bool transposed : {false, true}) {
    CAPTURE(static_cast<int>(opens), static_cast<int>(closes), threads, transposed);
    auto const expected = step.template add_gradients<G>(SummingBackend{{.threads = 1}}, opens, closes, transposed);
    auto const found =
        step.template add_gradients<G>(annulus::CpuBackend{.threads = threads}, opens, closes, transposed);
    // Results of sums that are not closed keep their numbers; sums that are closed are unspecified.
    CHECK(same_bits_in(found.dq_result, expected.dq_result));
    CHECK(same_bits_in(found.dk_result, expected.dk_result));
    CHECK(same_bits_in(found.dv_result, expected.dv_result));
    if (!has(closes, Sums::queries)) CHECK(same_bits_in(found.dq, expected.dq));
    if (!has(closes, Sums::keys)) CHECK((same_bits_in(found.dk, expected.dk) && same_bits_in(found.dv, expected.dv)));
  }
}

}  // namespace

TEMPLATE_TEST_CASE("CpuBackend: opening and closing the state changes no bits", "[cpu]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  // The second one is a step of few rows, whose kernel needs the state.
  for (Index const queries : {150, 2}) {
    DocumentStep<TestType> const step(queries, 300);
    for (Sums const opens : {Sums::none, Sums::queries})
      for (Sums const closes : {Sums::none, Sums::queries})
        for (int threads : {1, 2}) {
          CAPTURE(queries, static_cast<int>(opens), static_cast<int>(closes), threads);
          auto const expected = step.fold(SummingBackend{{.threads = 1}}, opens, closes);
          auto const found = step.fold(annulus::CpuBackend{.threads = threads}, opens, closes);
          CHECK((same_bits_in(found.output, expected.output) && same_bits_in(found.lse, expected.lse) &&
                 same_bits_in(found.remainder, expected.remainder)));
          if (has(closes, Sums::queries)) continue;
          CHECK((same_bits_in(found.accumulator, expected.accumulator) &&
                 same_bits_in(found.maximum, expected.maximum) && same_bits_in(found.sum, expected.sum)));
        }
  }
}

TEMPLATE_TEST_CASE("CpuBackend: opening and closing the gradients changes no bits", "[cpu]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  DocumentStep<TestType> const step(150, 300);
  for (Sums const opens : row_sums)
    for (Sums const closes : row_sums)
      for (int threads : {1, 2}) {
        compare_gradients<TestType, TestType>(step, opens, closes, threads);
        compare_gradients<TestType, annulus::Accumulator<TestType>>(step, opens, closes, threads);
      }
}

}  // namespace open_close_test
