// Traps of optional operands: sink logits, bias, padding, and dropout.

#include <annulus/numerics/dropout.hpp>
#include <cmath>
#include <limits>

#include "integration/solve.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::Rotation;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Fills the rows of an array [rows, row_size] for which `chosen` holds with NaN.
template <class Chosen>
void poison_rows(std::vector<double>& values, std::size_t row_size, Chosen&& chosen) {
  for (std::size_t row = 0; row * row_size < values.size(); ++row)
    if (chosen(row)) std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(row * row_size), row_size, not_a_number);
}

template <class Chosen>
bool rows_are_zero(std::vector<double> const& values, std::size_t row_size, Chosen&& chosen) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (chosen(i / row_size) && values[i] != 0) return false;
  return true;
}

/// Identity matrix [size, size].
std::vector<double> identity(std::size_t size) {
  std::vector<double> values(size * size);
  for (std::size_t i = 0; i < size; ++i) values[i * size + i] = 1;
  return values;
}

}  // namespace

TEST_CASE("sink logits enter the normalisation once, for any number of ranks", "[trap][C15]") {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
      RingProblem problem = small_ring_problem({.batch = 2, .query_length = 19}, ranks, annulus::Zigzag{}, rotation);
      problem.dense.causal = true;
      give_sinks(problem, 3);
      CHECK(complaints(problem) == "");  // includes dsinks, the sum over all ranks

      // Equal logits: a sink logit s counts as exp(s) keys.
      problem.dense.softmax_scale = 0;
      problem.dense.sinks = {1, {std::log(5.0), std::log(5.0)}};
      RingResult const result = solve<double>(problem);
      for (std::size_t i = 0; i < result.lse.size(); ++i)
        CHECK(std::abs(result.lse[i] - std::log(static_cast<double>(i % 19 + 6))) <= 1e-14);

      // A sink logit far above all others drives the output to 0, without overflow.
      for (double large : {40.0, 1e4}) {
        problem.dense.sinks = {1, {large, large}};
        RingResult const dominated = solve<float>(problem);
        for (double value : dominated.output) CHECK(std::abs(value) <= 19 * std::exp(-large));
        for (double value : dominated.lse) CHECK(value == static_cast<double>(static_cast<float>(large)));
      }
    }
}

TEST_CASE("a sink logit changes the result", "[trap][C16]") {
  RingProblem problem = small_ring_problem({}, 3);
  RingResult const without = solve<float>(problem);
  give_sinks(problem, 1);
  RingResult const with = solve<float>(problem);
  CHECK(distance(with.output, without.output) > 1000 * float_bounds.of_result * norm(without.output));
  CHECK(distance(with.dq, without.dq) > 1000 * float_bounds.of_result * norm(without.dq));
  CHECK(norm(with.dsinks) > 0);
  CHECK(judge(problem, with, float_bounds).complaint == "");
}

TEST_CASE("dropout depends on positions, not on step or rank", "[trap][C17]") {
  // Equal logits and v = identity: the output of a row is its dropout mask. dout = identity: dv is the transposed mask.
  constexpr std::size_t length = 32;
  constexpr double probability = 0.25;
  annulus::Dropout const dropout{probability, 0x1234567890abcdefu};
  double const kept = 1 / (1 - probability) / length;

  for (int ranks = 1; ranks <= 8; ++ranks)
    for (annulus::Sharding const& sharding : every_sharding(ranks, length, length))
      for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
        RingProblem problem = small_ring_problem(
            {.query_heads = 1, .query_length = length, .head_dim = 1, .value_dim = length}, ranks, sharding, rotation);
        problem.dense.v = problem.dout = identity(length);
        problem.dense.softmax_scale = 0;
        problem.dense.dropout_probability = probability;
        problem.dense.dropout_seed = dropout.seed;
        RingResult const result = solve<double>(problem);
        bool forward_agrees = true, backward_agrees = true;
        for (std::size_t query = 0; query < length; ++query)
          for (std::size_t key = 0; key < length; ++key) {
            double const expected = dropout.keeps(0, 0, static_cast<Index>(query), static_cast<Index>(key)) ? kept : 0;
            forward_agrees = forward_agrees && std::abs(result.output[query * length + key] - expected) <= 1e-15;
            backward_agrees = backward_agrees && std::abs(result.dv[key * length + query] - expected) <= 1e-15;
          }
        INFO(problem.text);
        CHECK(forward_agrees);
        CHECK(backward_agrees);
        // Dropout does not change lse.
        CHECK(std::abs(result.lse[0] - std::log(static_cast<double>(length))) <= 1e-15);
      }

  // The fraction of kept pairs is within 5 standard deviations of 1 - probability.
  for (Index batch : {0, 1})
    for (Index head : {0, 1}) {
      constexpr int pairs = 256 * 256;
      int count = 0;
      for (Index query = 0; query < 256; ++query)
        for (Index key = 0; key < 256; ++key) count += dropout.keeps(batch, head, query, key);
      double const deviation = std::sqrt(pairs * probability * (1 - probability));
      CHECK(std::abs(count - pairs * (1 - probability)) <= 5 * deviation);
    }

  // With other options, against the generator of the oracle.
  for (int ranks : {2, 5}) {
    RingProblem problem = small_ring_problem({.batch = 2, .query_length = 27}, ranks, annulus::Striped{});
    problem.dense.causal = true;
    problem.dense.query_offset = 3;
    problem.dense.dropout_probability = 0.4;
    problem.dense.dropout_seed = 99;
    give_sinks(problem, 2);
    give_bias(problem, 1, 2);
    CHECK(complaints(problem) == "");
  }
}

TEST_CASE("a bias per pair is applied to the right keys at every step", "[trap][C21]") {
  for (int ranks : {2, 3, 5})
    for (annulus::Sharding const& sharding : every_sharding(ranks, 22, 29))
      for (auto const& [batch, heads] : {std::pair{1, 1}, std::pair{2, 2}, std::pair{1, 2}, std::pair{2, 1}}) {
        RingProblem problem = small_ring_problem({.batch = 2, .query_length = 22, .key_length = 29}, ranks, sharding);
        give_bias(problem, batch, heads, 5);
        problem.dense.logit_softcap = 3;
        CHECK(complaints(problem) == "");
      }
}

TEST_CASE("NaN in padding reaches neither valid rows nor gradients", "[trap][C28]") {
  // Padding between documents, at the end, and of a whole shard; q, k, v, dout and the bias are NaN there.
  std::vector<int> const ids{1, 1, 1, 0, 2, 2, 2, 2, 0, 0, 3, 3, 3, 3, 3, -1, 0, 0, 0, 0, 0, 0, 0, 0};
  auto const is_padding = [&](std::size_t row) { return ids[row % ids.size()] <= 0; };
  for (annulus::Sharding const& sharding : every_sharding(3, 24, 24))
    for (Rotation rotation : {Rotation::keys, Rotation::queries})
      for (bool with_sinks : {false, true}) {
        RingProblem problem = small_ring_problem({.query_length = 24, .value_dim = 3}, 3, sharding, rotation);
        give_documents(problem, ids);
        problem.dense.causal = true;
        if (with_sinks) give_sinks(problem, 1);
        if (rotation == Rotation::keys) {
          give_bias(problem, 1, 1);
          for (std::int64_t row = 0; row < 24; ++row)
            for (std::int64_t key = 0; key < 24; ++key)
              if (!oracle_visible(problem.dense, 0, 0, row, key))
                problem.dense.bias->values[static_cast<std::size_t>(row * 24 + key)] = not_a_number;
        }
        poison_rows(problem.dense.q, 2 * 4, is_padding);
        poison_rows(problem.dense.k, 4, is_padding);
        poison_rows(problem.dense.v, 3, is_padding);
        poison_rows(problem.dout, 2 * 3, is_padding);
        RingResult const result = solve<float>(problem);
        CHECK(judge(problem, result, float_bounds).complaint == "");
        CHECK(rows_are_zero(result.output, 2 * 3, is_padding));
        CHECK(rows_are_zero(result.dq, 2 * 4, is_padding));
        CHECK(rows_are_zero(result.dk, 4, is_padding));
        CHECK(rows_are_zero(result.dv, 3, is_padding));
        CHECK(complaint<double>(problem) == "");
      }

  // Padding at the end, hidden by a boolean mask instead.
  RingProblem problem = small_ring_problem({.query_length = 24}, 4);
  auto const is_tail = [](std::size_t row) { return row >= 15; };
  problem.dense.mask = {1, 1, {}};
  for (std::size_t row = 0; row < 24; ++row)
    for (std::size_t key = 0; key < 24; ++key) problem.dense.mask->values.push_back(!is_tail(row) && !is_tail(key));
  poison_rows(problem.dense.q, 2 * 4, is_tail);
  poison_rows(problem.dense.k, 4, is_tail);
  poison_rows(problem.dense.v, 4, is_tail);
  poison_rows(problem.dout, 2 * 4, is_tail);
  CHECK(complaints(problem) == "");
}
