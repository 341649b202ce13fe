#include "annulus/backend/host_operations.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "annulus/core/scalar.hpp"
#include "support/catch.hpp"

using namespace annulus;

namespace {

/// A running state of batch 1 that owns its memory.
template <class A>
struct State {
  Index rows, heads, dim;
  std::vector<A> accumulator, maximum, sum;

  State(Index row_count, Index head_count, Index value_dim)
      : rows(row_count),
        heads(head_count),
        dim(value_dim),
        accumulator(static_cast<std::size_t>(rows * heads * dim)),
        maximum(static_cast<std::size_t>(rows * heads)),
        sum(maximum.size()) {}

  /// Row statistics are stored as in a payload, [rows, heads].
  RunningState<A, HostMemory> view() {
    return {{accumulator.data(), {1, rows, heads, dim}},
            {maximum.data(), {1, heads, rows}, {heads, 1, heads}},
            {sum.data(), {1, heads, rows}, {heads, 1, heads}}};
  }

  /// Folds in one key that has the same logit and value for all rows.
  void add(A logit, A value) {
    auto const all = view();
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < rows; ++i) {
        SoftmaxRow<A> row{all.maximum(0, h, i), all.sum(0, h, i)};
        A const factor = row.raise(logit), weight = row.weight(logit);
        for (Index d = 0; d < dim; ++d)
          all.accumulator(0, i, h, d) = factor * all.accumulator(0, i, h, d) + weight * value;
        all.maximum(0, h, i) = row.maximum;
        all.sum(0, h, i) = row.sum + weight;
      }
  }
};

template <class A>
struct Normalised {
  std::vector<A> output, lse, lse_remainder;
};

template <class A>
Normalised<A> normalised(State<A>& state, TensorView<A const, 2> sinks = {}) {
  Normalised<A> result{std::vector<A>(state.accumulator.size()), std::vector<A>(state.maximum.size()),
                       std::vector<A>(state.maximum.size(), A(7))};
  HostOperations().normalise(state.view(), sinks,
                             TensorView<A, 4>(result.output.data(), {1, state.rows, state.heads, state.dim}),
                             TensorView<A, 3>(result.lse.data(), {1, state.heads, state.rows}),
                             TensorView<A, 3>(result.lse_remainder.data(), {1, state.heads, state.rows}));
  return result;
}

}  // namespace

TEST_CASE("buffers are aligned to cache lines and movable", "[backend]") {
  HostOperations operations;
  for (Index bytes : {1, 63, 64, 1000}) {
    detail::HostBuffer buffer = operations.allocate(bytes);
    CHECK(buffer.size() == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 == 0);
    std::byte* const data = buffer.data();
    detail::HostBuffer const moved = std::move(buffer);
    CHECK((moved.data() == data && moved.size() == bytes));
  }
  CHECK(operations.allocate(0).data() == nullptr);
  CHECK(detail::HostBuffer().size() == 0);
}

TEST_CASE("element-wise operations respect strides", "[backend]") {
  HostOperations operations;
  std::array<double, 6> values{1, 2, 3, 4, 5, 6};
  std::array<double, 6> result{};
  TensorView<double, 2> const rows(result.data(), {2, 3});
  operations.copy(TensorView<double const, 2>(values.data(), {2, 3}, {1, 2}), rows);
  CHECK(result == std::array<double, 6>{1, 3, 5, 2, 4, 6});
  operations.add(rows, TensorView<double const, 2>(values.data(), {2, 3}));
  CHECK(result == std::array<double, 6>{2, 5, 8, 6, 9, 12});
  operations.clear(rows.slice(1, 1, 1));
  CHECK(result == std::array<double, 6>{2, 0, 8, 6, 0, 12});
  std::array<Eigen::bfloat16, 6> narrow{};
  operations.convert(TensorView<double const, 2>(rows), TensorView<Eigen::bfloat16, 2>(narrow.data(), {2, 3}));
  CHECK(static_cast<float>(narrow[5]) == 12.0f);
}

TEST_CASE("clear overwrites NaN", "[backend]") {
  std::array<float, 3> values{std::nanf(""), 1, std::numeric_limits<float>::infinity()};
  HostOperations().clear(TensorView<float, 1>(values.data(), {3}));
  CHECK(values == std::array<float, 3>{0, 0, 0});
}

TEMPLATE_TEST_CASE("reset makes rows empty; their output is 0 and their lse -inf", "[backend]", float, double) {
  State<TestType> state(3, 2, 4);
  for (auto* part : {&state.accumulator, &state.maximum, &state.sum})
    for (TestType& x : *part) x = std::numeric_limits<TestType>::quiet_NaN();
  HostOperations().reset(state.view());
  auto const result = normalised(state);
  for (TestType x : result.output) CHECK(x == 0);
  for (TestType x : result.lse) CHECK(x == empty_row<TestType>);
}

TEMPLATE_TEST_CASE("merging two states gives the state of all keys", "[backend]", float, double) {
  using A = TestType;
  A const gap = GENERATE(A(0), A(3), A(900), A(-900));
  State<A> first(2, 3, 2), second(2, 3, 2), both(2, 3, 2);
  for (State<A>* state : {&first, &second, &both}) HostOperations().reset(state->view());
  for (State<A>* state : {&first, &both}) {
    state->add(A(0.5), A(1));
    state->add(A(-1), A(2));
  }
  for (State<A>* state : {&second, &both}) state->add(gap, A(-3));
  HostOperations().merge(first.view(), second.view());
  auto const merged = normalised(first), expected = normalised(both);
  A const tolerance = 16 * std::numeric_limits<A>::epsilon();
  for (std::size_t i = 0; i < merged.output.size(); ++i)
    CHECK(std::abs(merged.output[i] - expected.output[i]) <= tolerance);
  for (std::size_t i = 0; i < merged.lse.size(); ++i)
    CHECK(std::abs(merged.lse[i] - expected.lse[i]) <= tolerance * std::max(A(1), std::abs(expected.lse[i])));
}

TEMPLATE_TEST_CASE("merging an empty state changes no bit", "[backend]", float, double) {
  State<TestType> state(2, 1, 2), empty(2, 1, 2), copy(2, 1, 2);
  HostOperations().reset(state.view());
  HostOperations().reset(empty.view());
  state.add(TestType(0.3), TestType(0.7));
  copy = state;
  HostOperations().merge(state.view(), empty.view());
  CHECK((state.accumulator == copy.accumulator && state.maximum == copy.maximum && state.sum == copy.sum));
  HostOperations().merge(empty.view(), copy.view());
  CHECK((empty.accumulator == copy.accumulator && empty.maximum == copy.maximum && empty.sum == copy.sum));
  HostOperations().reset(empty.view());
  HostOperations().merge(empty.view(), empty.view());
  CHECK(normalised(empty).lse[0] == empty_row<TestType>);
}

TEST_CASE("sink logits take part in the normalisation alone", "[backend][C15]") {
  std::array<double, 4> const sinks{0.5, -1.0, 700.0, -std::numeric_limits<double>::infinity()};
  TensorView<double const, 2> const table(sinks.data(), {2, 2});  // head 0: 0.5, -1; head 1: 700, none
  State<double> state(1, 2, 1);
  HostOperations().reset(state.view());
  state.add(1.0, 3.0);
  auto const result = normalised(state, table);
  double const sum = std::exp(1.0) + std::exp(0.5) + std::exp(-1.0);
  CHECK(result.output[0] == Approx(3 * std::exp(1.0) / sum).epsilon(1e-14));
  CHECK(result.lse[0] == Approx(std::log(sum)).epsilon(1e-14));
  CHECK((result.output[1] > 0 && result.output[1] < 1e-300));
  CHECK(result.lse[1] == 700.0);
}

TEST_CASE("a row that sees no key has output 0 and the lse of the sink logits", "[backend]") {
  std::array<float, 2> const sinks{0.0f, 0.0f};
  State<float> state(2, 1, 3);
  HostOperations().reset(state.view());
  auto const result = normalised(state, TensorView<float const, 2>(sinks.data(), {1, 2}));
  for (float x : result.output) CHECK(x == 0);
  CHECK(result.lse[0] == std::log(2.0f));
  float const none = empty_row<float>;
  CHECK(normalised(state, TensorView<float const, 2>(&none, {1, 1})).lse[0] == empty_row<float>);
}

TEST_CASE("delta is the dot product of a row of dout and output", "[backend]") {
  std::array<float, 6> const dout{1, 2, 3, 4, 5, 6}, output{1, 0.5f, 0, -1, 0, 0};
  std::array<float, 2> delta{};
  HostOperations().row_delta(TensorView<float const, 4>(dout.data(), {1, 2, 1, 3}),
                             TensorView<float const, 4>(output.data(), {1, 2, 1, 3}),
                             TensorView<float, 3>(delta.data(), {1, 1, 2}));
  CHECK(delta == std::array<float, 2>{2, -4});
}

TEST_CASE("NaN in the dout of a row that sees no key does not reach delta", "[backend][C28]") {
  std::array<float, 2> const dout{std::nanf(""), std::numeric_limits<float>::infinity()}, output{0, 0};
  float delta = 7;
  HostOperations().row_delta(TensorView<float const, 4>(dout.data(), {1, 1, 1, 2}),
                             TensorView<float const, 4>(output.data(), {1, 1, 1, 2}),
                             TensorView<float, 3>(&delta, {1, 1, 1}));
  CHECK(delta == 0);
}

TEST_CASE("the gradient of a sink logit is the derivative of the normalised output", "[backend]") {
  Index const rows = 3, heads = 2, dim = 2, count = 2;
  State<double> state(rows, heads, dim);
  HostOperations().reset(state.view());
  state.add(0.4, 1.5);
  state.add(-0.9, -0.5);
  std::mt19937 random(4);
  std::uniform_real_distribution<double> uniform(-1, 1);
  std::vector<double> dout(state.accumulator.size()), sinks(static_cast<std::size_t>(heads * count));
  for (auto* values : {&dout, &sinks})
    for (double& x : *values) x = uniform(random);
  TensorView<double const, 2> const table(sinks.data(), {heads, count});
  auto const loss = [&] {
    double sum = 0;
    auto const output = normalised(state, table).output;
    for (std::size_t i = 0; i < output.size(); ++i) sum += dout[i] * output[i];
    return sum;
  };

  auto const forward = normalised(state, table);
  std::vector<double> delta(forward.lse.size()), dsinks(sinks.size());
  TensorView<double const, 4> const dout_view(dout.data(), {1, rows, heads, dim});
  HostOperations().row_delta(dout_view, TensorView<double const, 4>(forward.output.data(), {1, rows, heads, dim}),
                             TensorView<double, 3>(delta.data(), {1, heads, rows}));
  HostOperations().sink_gradients(TensorView<double const, 3>(forward.lse.data(), {1, heads, rows}),
                                  TensorView<double const, 3>(forward.lse_remainder.data(), {1, heads, rows}),
                                  TensorView<double const, 3>(delta.data(), {1, heads, rows}), table,
                                  TensorView<double, 2>(dsinks.data(), {heads, count}));
  double const h = 1e-5;
  for (std::size_t s = 0; s < sinks.size(); ++s) {
    double const sink = std::exchange(sinks[s], sinks[s] + h);
    double const above = loss();
    sinks[s] = sink - h;
    double const below = loss();
    sinks[s] = sink;
    // Error of the central difference: h^2 / 6 times a third derivative of at most about 10, plus rounding / h.
    CHECK(std::abs(dsinks[s] - (above - below) / (2 * h)) < 2e-10);
  }
}

TEST_CASE("sink logits of -inf have gradient 0, also in rows that see no key", "[backend]") {
  double const none = empty_row<double>, delta = 3;
  double dsink = 7;
  for (double lse : {empty_row<double>, 0.5}) {
    HostOperations().sink_gradients(TensorView<double const, 3>(&lse, {1, 1, 1}), TensorView<double const, 3>(),
                                    TensorView<double const, 3>(&delta, {1, 1, 1}),
                                    TensorView<double const, 2>(&none, {1, 1}), TensorView<double, 2>(&dsink, {1, 1}));
    CHECK(dsink == 0);
  }
}
