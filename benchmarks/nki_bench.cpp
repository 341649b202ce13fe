// Benchmark of the simulator of tile programs: flash attention of one head on one core, groups of 2048 keys and query
// tiles of 128 rows, bfloat16 operands; and of the reference backend on the same operands. The result is checked before
// it is timed.
//
//   instructions/s   each instruction counts as one, from a [128, 1] column to a 128 x 512 product
//   GFLOP/s          4 * pairs * dim

#include <benchmark/benchmark.h>
#include <annulus/annulus.hpp>
#include <annulus/nki/program/builder.hpp>
#include <annulus/nki/program/walk.hpp>
#include <annulus/nki/simulate/simulate.hpp>

#include <cmath>
#include <utility>
#include <vector>

namespace {

namespace nki = annulus::nki;
using annulus::Index;
using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

constexpr Index dim = 128, rows = 128, bank = 512, group = 2048, blocks = group / rows;
constexpr Index queries = 2048, keys = 4096;

/// Program with inputs q [dim, queries] (times the scale), k [dim, keys], v [keys, dim]; output o [queries, dim].
nki::Program flash_attention() {
  using namespace annulus::nki;
  constexpr auto f32 = ElementType::float32;
  constexpr auto bf16 = ElementType::bfloat16;
  Builder b("flash_attention", Target::trn2, 1, 1);
  auto const q = b.tensor("q", {dim, queries}, bf16, Role::input), k = b.tensor("k", {dim, keys}, bf16, Role::input),
             v = b.tensor("v", {keys, dim}, bf16, Role::input), o = b.tensor("o", {queries, dim}, f32, Role::output);
  auto const declare = [&](char const* name, Index elements, ElementType type, Memory memory = Memory::sbuf) {
    return b.declare(name, memory, rows, elements, type);
  };
  auto const q_tile = declare("q_tile", rows, bf16), k_tile = declare("k_tile", group, bf16),
             v_tile = declare("v_tile", group, bf16), p = declare("p", group, bf16),
             p_transposed = declare("p_transposed", group, bf16), masked = declare("masked", group, f32),
             accumulator = declare("accumulator", dim, f32), negative_maximum = declare("negative_maximum", 1, f32),
             sum = declare("sum", 1, f32), largest = declare("largest", 1, f32), raised = declare("raised", 1, f32),
             factor = declare("factor", 1, f32), group_sum = declare("group_sum", 1, f32), low = declare("low", 1, f32),
             high = declare("high", 1, f32), inverse = declare("inverse", 1, f32),
             scores = declare("scores", group, f32, Memory::psum),
             transposed = declare("transposed", bank, bf16, Memory::psum),
             product = declare("product", dim, f32, Memory::psum);

  for (auto const& [tile, value] : {std::pair{low, 0.0f}, std::pair{high, static_cast<float>(keys)}})
    b.emit(Memset{b.allocate(tile).whole(), value});
  b.loop("query_tile", queries / rows, [&](Affine tile) {
    for (auto const& [state, value] : {std::pair{negative_maximum, -lowest_float}, {sum, 0.0f}, {accumulator, 0.0f}})
      b.emit(Memset{b.allocate(state).whole(), value});
    b.emit(DmaCopy{b.allocate(q_tile).whole(), q.pattern(tile * rows, {{queries, dim}, {1, rows}})});
    b.loop("group", keys / group, [&](Affine g) {
      b.emit(DmaCopy{b.allocate(k_tile).whole(), k.pattern(g * group, {{keys, dim}, {1, group}})});
      b.emit(DmaCopy{b.allocate(v_tile).whole(),
                     v.pattern(g * (group * dim), {{dim, rows}, {rows * dim, blocks}, {1, dim}})});
      b.allocate(scores);
      for (Index c = 0; c < group; c += bank)
        b.emit(MatMul{scores.columns(c, bank), q_tile.whole(), k_tile.columns(c, bank)});
      b.emit(RangeSelect{.dst = b.allocate(masked).whole(),
                         .on_true_tile = scores.whole(),
                         .bound0 = low.whole(),
                         .bound1 = high.whole(),
                         .reduce_res = b.allocate(largest).whole(),
                         .range_start = g * group});
      b.emit(ScalarTensorTensor{.dst = b.allocate(raised).whole(),
                                .data = largest.whole(),
                                .operand0 = -1.0f,
                                .op1 = Operator::minimum,
                                .operand1 = negative_maximum.whole()});
      b.emit(TensorTensor{b.allocate(factor).whole(), raised.whole(), negative_maximum.whole(), Operator::subtract});
      b.emit(Activation{.dst = factor.whole(), .op = Function::exp, .data = factor.whole()});
      b.emit(Activation{.dst = b.allocate(p).whole(),
                        .op = Function::exp,
                        .data = masked.whole(),
                        .bias = raised.whole(),
                        .reduce_op = Operator::add,
                        .reduce_res = b.allocate(group_sum).whole(),
                        .reduce_cmd = ReduceCommand::reset_reduce});
      b.emit(ScalarTensorTensor{
          .dst = sum.whole(), .data = sum.whole(), .operand0 = factor.whole(), .operand1 = group_sum.whole()});
      b.emit(TensorCopy{negative_maximum.whole(), raised.whole()});
      b.allocate(p_transposed);
      for (Index c = 0; c < group; c += bank) {
        b.allocate(transposed);
        for (Index i = 0; i < bank; i += rows) b.emit(Transpose{transposed.columns(i, rows), p.columns(c + i, rows)});
        b.emit(TensorCopy{p_transposed.columns(c, bank), transposed.whole()});
      }
      b.allocate(product);
      for (Index i = 0; i < blocks; ++i)
        b.emit(MatMul{product.whole(), p_transposed.columns(i * rows, rows), v_tile.columns(i * dim, dim), i > 0});
      b.emit(ScalarTensorTensor{.dst = accumulator.whole(),
                                .data = accumulator.whole(),
                                .operand0 = factor.whole(),
                                .operand1 = product.whole()});
    });
    b.emit(Reciprocal{b.allocate(inverse).whole(), sum.whole()});
    b.emit(TensorScalar{.dst = accumulator.whole(), .data = accumulator.whole(), .operand0 = inverse.whole()});
    b.emit(DmaCopy{o.pattern(tile * (rows * dim), {{dim, rows}, {1, dim}}), accumulator.whole()});
  });
  return std::move(b).finish();
}

struct Operands {
  Tensor q{1, queries, 1, dim}, k{1, keys, 1, dim}, v{1, keys, 1, dim};
  nki::Tensors inputs;
  Operands() {
    auto const rounded = [](float x) { return static_cast<float>(Eigen::bfloat16(x - 0.5f)); };
    for (Tensor* tensor : {&q, &k, &v}) *tensor = tensor->random().unaryExpr(rounded).eval();
    // The scale is a power of two, so that scaling is exact; the reference gets the same scale.
    auto const transposed = [&](Tensor const& tensor, Index count, float scale) {
      std::vector<float> values(static_cast<std::size_t>(count * dim));
      for (Index i = 0; i < count; ++i)
        for (Index d = 0; d < dim; ++d) values[static_cast<std::size_t>(d * count + i)] = scale * tensor(0, i, 0, d);
      return values;
    };
    inputs["q"] = transposed(q, queries, 0.125f);
    inputs["k"] = transposed(k, keys, 1.0f);
    inputs["v"] = std::vector<float>(v.data(), v.data() + v.size());
  }
};

Tensor reference_output(Operands const& x) {
  annulus::Options options;
  options.softmax_scale = 0.125;
  annulus::SelfRing ring;
  annulus::ReferenceBackend backend;
  annulus::RingAttention attention(ring, backend, options);
  return attention.forward(x.q, x.k, x.v).output;
}

double const gigaflops = 4e-9 * static_cast<double>(queries) * keys * dim;

void simulated(benchmark::State& state) {
  static Operands const operands;
  nki::ValidatedProgram const program = nki::validated(flash_attention(), nki::hardware_of(nki::Target::trn2));
  Tensor const expected = reference_output(operands);
  std::vector<float> const output = nki::simulate(program, operands.inputs).at("o");
  double difference = 0, size = 0;
  for (std::size_t i = 0; i < output.size(); ++i) {
    difference += std::pow(output[i] - expected.data()[i], 2);
    size += std::pow(expected.data()[i], 2);
  }
  constexpr double bound = 0x1p-8;  // one rounding of the probabilities to bfloat16
  if (!(std::sqrt(difference / size) < bound)) {
    state.SkipWithError("the simulated result differs from the reference");
    return;
  }
  for (auto _ : state) benchmark::DoNotOptimize(nki::simulate(program, operands.inputs));
  using Counter = benchmark::Counter;
  state.counters["instructions/s"] =
      Counter(static_cast<double>(nki::count(program.program()).instructions()), Counter::kIsIterationInvariantRate);
  state.counters["GFLOP/s"] = Counter(gigaflops, Counter::kIsIterationInvariantRate);
}

void reference(benchmark::State& state) {
  static Operands const operands;
  for (auto _ : state) benchmark::DoNotOptimize(reference_output(operands));
  state.counters["GFLOP/s"] = benchmark::Counter(gigaflops, benchmark::Counter::kIsIterationInvariantRate);
}

BENCHMARK(simulated)->Unit(benchmark::kMillisecond);
BENCHMARK(reference)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
