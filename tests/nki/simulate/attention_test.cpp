// A hand-written tile program: causal flash attention of one head with ragged extents, compared with double precision.

#include <algorithm>
#include <cmath>
#include <map>

#include "nki/simulate/one_program.hpp"
#include "nki/simulate/simulated_launch.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
using annulus::nki::Affine;
using annulus::nki::Function;
using annulus::nki::Memory;
using annulus::nki::Operator;
using annulus::nki::ReduceCommand;
using annulus::nki::Role;

namespace {

constexpr Index queries = 150, keys = 333, dim = 72, value_dim = 40, tile_rows = 64, key_tile = 96, block = 32;
constexpr Index causal_offset = keys - queries;  ///< query i sees keys up to i + causal_offset

/// Inputs q [dim, queries] (scaled), k [dim, keys], v [keys, value_dim].
/// Outputs o [queries, value_dim], lse [queries, 1].
nki::Program causal_attention(nki::ElementType type, int cores) {
  nki::Builder b("causal_attention", nki::Target::trn2, cores, 1);
  auto const q = b.tensor("q", {dim, queries}, type, Role::input), k = b.tensor("k", {dim, keys}, type, Role::input),
             v = b.tensor("v", {keys, value_dim}, type, Role::input),
             o = b.tensor("o", {queries, value_dim}, f32, Role::output),
             lse = b.tensor("lse", {queries, 1}, f32, Role::output);
  // The first tile of a buffer has its largest extents.
  std::map<std::string, nki::TileHandle> declared;
  auto const make = [&](std::string const& name, Index p, Index n, nki::ElementType of = f32,
                        Memory memory = Memory::sbuf) {
    if (!declared.contains(name)) declared[name] = b.declare(name, memory, p, n, of);
    return b.allocate({declared[name].buffer, p, n});
  };
  auto const attend = [&](Index first, Index rows) {
    auto const column = [&](char const* base, float value) {
      auto const tile = make(base, rows, 1);
      b.emit(nki::Memset{tile.whole(), value});
      return tile;
    };
    auto const low = column("low", 0), high = make("high", rows, 1), top = column("top", -nki::lowest_float),
               sum = column("sum", 0);
    b.emit(nki::Iota{high.whole(), {{0, 1}}, first + causal_offset + 1, 1});
    auto const accumulator = make("accumulator", rows, value_dim), q_tile = make("q_tile", dim, rows, type);
    b.emit(nki::Memset{accumulator.whole(), 0.0f});
    b.emit(nki::DmaCopy{q_tile.whole(), q.pattern(first, {{queries, dim}, {1, rows}})});
    for (Index begin = 0; begin < keys; begin += key_tile) {
      Index const n = std::min(key_tile, keys - begin);
      b.section("keys", begin);
      auto const k_tile = make("k_tile", dim, n, type), masked = make("masked", rows, n), p = make("p", rows, n, type);
      auto const scores = make("scores", rows, n, f32, Memory::psum),
                 product = make("product", rows, value_dim, f32, Memory::psum);
      auto const largest = make("largest", rows, 1), raised = make("raised", rows, 1), factor = make("factor", rows, 1),
                 part = make("part", rows, 1);
      b.emit(nki::DmaCopy{k_tile.whole(), k.pattern(begin, {{keys, dim}, {1, n}})});
      b.emit(nki::MatMul{scores.whole(), q_tile.whole(), k_tile.whole()});
      b.emit(nki::RangeSelect{.dst = masked.whole(),
                              .on_true_tile = scores.whole(),
                              .bound0 = low.whole(),
                              .bound1 = high.whole(),
                              .reduce_res = largest.whole(),
                              .range_start = begin});
      b.emit(nki::ScalarTensorTensor{.dst = raised.whole(),
                                     .data = largest.whole(),
                                     .operand0 = -1.0f,
                                     .op1 = Operator::minimum,
                                     .operand1 = top.whole()});
      b.emit(nki::TensorTensor{factor.whole(), raised.whole(), top.whole(), Operator::subtract});
      b.emit(nki::Activation{.dst = factor.whole(), .op = Function::exp, .data = factor.whole()});
      b.emit(nki::Activation{.dst = p.whole(),
                             .op = Function::exp,
                             .data = masked.whole(),
                             .bias = raised.whole(),
                             .reduce_op = Operator::add,
                             .reduce_res = part.whole(),
                             .reduce_cmd = ReduceCommand::reset_reduce});
      b.emit(nki::ScalarTensorTensor{
          .dst = sum.whole(), .data = sum.whole(), .operand0 = factor.whole(), .operand1 = part.whole()});
      b.emit(nki::TensorCopy{top.whole(), raised.whole()});
      for (Index i = 0; i < n; i += block) {
        Index const width = std::min(block, n - i);
        auto const turned = make("turned", width, rows, type, Memory::psum),
                   p_transposed = make("p_transposed", width, rows, type),
                   v_tile = make("v_tile", width, value_dim, type);
        b.emit(nki::Transpose{turned.whole(), p.columns(i, width)});
        b.emit(nki::TensorCopy{p_transposed.whole(), turned.whole()});
        b.emit(nki::DmaCopy{v_tile.whole(), v.pattern((begin + i) * value_dim, {{value_dim, width}, {1, value_dim}})});
        b.emit(nki::MatMul{product.whole(), p_transposed.whole(), v_tile.whole(), i > 0});
      }
      b.emit(nki::ScalarTensorTensor{.dst = accumulator.whole(),
                                     .data = accumulator.whole(),
                                     .operand0 = factor.whole(),
                                     .operand1 = product.whole()});
    }
    auto const inverse = make("inverse", rows, 1), log = make("log", rows, 1);
    b.emit(nki::Reciprocal{inverse.whole(), sum.whole()});
    b.emit(nki::TensorScalar{.dst = accumulator.whole(), .data = accumulator.whole(), .operand0 = inverse.whole()});
    b.emit(nki::DmaCopy{o.pattern(first * value_dim, {{value_dim, rows}, {1, value_dim}}), accumulator.whole()});
    b.emit(nki::Activation{.dst = log.whole(), .op = Function::log, .data = sum.whole()});
    b.emit(nki::TensorTensor{log.whole(), log.whole(), top.whole(), Operator::subtract});
    b.emit(nki::DmaCopy{lse.pattern(first, {{1, rows}, {1, 1}}), log.whole()});
  };
  int turn = 0;
  for (Index first = 0; first < queries; first += tile_rows)
    b.on_core(turn++ % cores, [&] { attend(first, std::min(tile_rows, queries - first)); });
  return std::move(b).finish();
}

double norm(std::vector<double> const& values) {
  double sum = 0;
  for (double value : values) sum += value * value;
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE("A hand-written program computes causal attention on one or two cores, with the same bits in every run") {
  auto const type = GENERATE(f32, bf16);
  auto const narrow = [&](float value) { return type == f32 ? value : static_cast<float>(Eigen::bfloat16(value)); };
  nki::Tensors inputs{{"q", random_values(dim * queries, 71, -0.25f, 0.25f)},
                      {"k", random_values(dim * keys, 72)},
                      {"v", random_values(keys * value_dim, 73)}};
  auto const program = valid(causal_attention(type, 1));
  nki::Tensors const outputs = nki::simulate(program, inputs);
  CHECK(nki::simulate(program, inputs) == outputs);
  CHECK(nki::simulate(valid(causal_attention(type, 2)), inputs) == outputs);

  for (auto& [name, values] : inputs) std::ranges::transform(values, values.begin(), narrow);
  std::vector<double> errors, exact;
  for (Index i = 0; i < queries; ++i) {
    std::vector<double> scores, row(static_cast<std::size_t>(value_dim));
    double sum = 0;
    for (Index j = 0; j <= i + causal_offset; ++j) {
      double score = 0;
      for (Index d = 0; d < dim; ++d)
        score += static_cast<double>(inputs["q"][static_cast<std::size_t>(d * queries + i)]) *
                 inputs["k"][static_cast<std::size_t>(d * keys + j)];
      scores.push_back(score);
    }
    double const largest = *std::ranges::max_element(scores);
    for (std::size_t j = 0; j < scores.size(); ++j) {
      double const weight = std::exp(scores[j] - largest);
      sum += weight;
      for (std::size_t d = 0; d < row.size(); ++d) row[d] += weight * inputs["v"][j * row.size() + d];
    }
    for (std::size_t d = 0; d < row.size(); ++d) {
      exact.push_back(row[d] / sum);
      errors.push_back(outputs.at("o")[static_cast<std::size_t>(i) * row.size() + d] - exact.back());
    }
    // Scores reach about 10 in absolute value, summed from 72 products.
    CHECK(std::abs(outputs.at("lse")[static_cast<std::size_t>(i)] - (largest + std::log(sum))) <=
          72 * rounding_of(f32, 10));
  }
  // bfloat16: each probability is rounded once.
  CHECK(norm(errors) <= (type == f32 ? 2e-6 : 0x1p-9) * norm(exact));
}
