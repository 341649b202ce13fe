// Operands of any axis order, storage order and strides, mixed in one call: same bits as with plain tensors.

#include <annulus/annulus.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "integration/solve.hpp"
#include "support/catch.hpp"
#include "support/operand_layouts.hpp"
#include "support/random_ring_problem.hpp"
#include "support/shards.hpp"

using namespace annulus_test;
using annulus::AxisOrder;

namespace {

template <int major>
using Bshd = EigenLayout<AxisOrder::bshd, major>;
template <int major>
using Bhsd = EigenLayout<AxisOrder::bhsd, major>;
template <int major>
using Bhds = EigenLayout<AxisOrder::bhds, major>;

template <class T>
annulus::TensorView<T const, 4> view_of_plain(RowMajorTensor<T> const& tensor) {
  return annulus::view_of(tensor);
}

/// Optional operands of one rank, in tensors with gaps.
template <class T>
struct GappedOperands {
  std::optional<GappedTensor<T, 4>> bias;
  std::optional<GappedTensor<bool, 4>> mask;
  std::optional<GappedTensor<std::int32_t, 2>> query_documents, key_documents;
  std::optional<GappedTensor<annulus::Accumulator<T>, 2>> sinks;

  GappedOperands(RingProblem const& problem, int rank) {
    OracleProblem const& d = problem.dense;
    auto const queries = problem.segments(annulus::Side::query, rank),
               keys = problem.segments(annulus::Side::key, rank);
    auto const fill = [](auto& into, auto const& global, auto const& extents, std::size_t axis, auto const& rows) {
      using Tensor = typename std::remove_reference_t<decltype(into)>::value_type;
      auto local = extents;
      local[axis] = annulus::rows_of(rows);
      into.emplace(local);
      using Value = typename std::remove_cvref_t<decltype(global)>::value_type;
      annulus::TensorView<Value const, annulus::rank_of<Tensor>> const source(global.data(), extents);
      annulus::scatter_into(source, std::span<annulus::Segment const>(rows), into->view(), axis);
    };
    auto const pairs = [&](auto const& operand) {
      return std::array<Index, 4>{operand.batch, operand.heads, d.query_length, d.key_length};
    };
    if (d.bias) fill(bias, d.bias->values, pairs(*d.bias), 2, queries);
    if (d.mask) fill(mask, d.mask->values, pairs(*d.mask), 2, queries);
    if (d.query_documents) {
      fill(query_documents, *d.query_documents, std::array<Index, 2>{d.batch, d.query_length}, 1, queries);
      fill(key_documents, *d.key_documents, std::array<Index, 2>{d.batch, d.key_length}, 1, keys);
    }
    std::vector<annulus::Segment> const heads{{0, d.query_heads, 0, 1}};
    if (d.sinks) fill(sinks, d.sinks->values, std::array<Index, 2>{d.query_heads, d.sinks->count}, 0, heads);
  }

  annulus::Operands<T> operands() const {
    annulus::Operands<T> result;
    if (bias) result.bias = *bias;
    if (mask) result.mask = *mask;
    if (query_documents) result.query_documents = *query_documents;
    if (key_documents) result.key_documents = *key_documents;
    if (sinks) result.sinks = *sinks;
    result.bias_gradient = bias.has_value();
    return result;
  }

  bool intact() const {
    return (!bias || bias->intact()) && (!query_documents || (query_documents->intact() && key_documents->intact())) &&
           (!sinks || sinks->intact());
  }
};

template <class T>
bool intact(T const&) {
  return true;
}
template <class T, std::size_t N>
bool intact(GappedTensor<T, N> const& tensor) {
  return tensor.intact();
}
template <class T, std::size_t N>
bool intact(std::optional<GappedTensor<T, N>> const& tensor) {
  return !tensor || tensor->intact();
}

struct RankAnswer {
  RingResult result;
  bool gaps_intact = true;
};

template <class T, class Q, class K, class V, class DOut, class Backend>
RankAnswer run_in_layouts(RingProblem const& problem, annulus::SimulatedRing& ring, Backend& backend) {
  auto const plain = shards_of<T>(problem, ring.rank());
  auto const q = Q::place(view_of_plain(plain.q));
  auto const k = K::place(view_of_plain(plain.k));
  auto const v = V::place(view_of_plain(plain.v));
  auto const dout = DOut::place(view_of_plain(plain.dout));
  GappedOperands<T> const optional(problem, ring.rank());
  annulus::RingAttention attention(ring, backend, problem.options);
  auto const forward = attention.forward(q.operand(), k.operand(), v.operand(), optional.operands());
  auto const gradients =
      attention.backward(dout.operand(), forward, q.operand(), k.operand(), v.operand(), optional.operands());
  RankAnswer answer;
  answer.result = {.output = values_of(annulus::with_axes(forward.output, forward.axes)),
                   .lse = values_of(forward.lse),
                   .dq = values_of(annulus::with_axes(gradients.dq, annulus::axis_order_of(q.operand()))),
                   .dk = values_of(annulus::with_axes(gradients.dk, annulus::axis_order_of(k.operand()))),
                   .dv = values_of(annulus::with_axes(gradients.dv, annulus::axis_order_of(v.operand()))),
                   .dbias = {},
                   .dsinks = {}};
  if (gradients.dbias) answer.result.dbias = values_of(*gradients.dbias);
  if (gradients.dsinks) answer.result.dsinks = values_of(*gradients.dsinks);
  answer.gaps_intact = optional.intact() && intact(forward.output) && intact(forward.lse) && intact(gradients.dq) &&
                       intact(gradients.dk) && intact(gradients.dv) && intact(gradients.dbias) &&
                       intact(gradients.dsinks);
  return answer;
}

template <class T, class Q, class K, class V, class DOut>
void sweep_layouts(std::uint64_t first_seed) {
  for (std::uint64_t seed = first_seed; seed < first_seed + 40; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    round_operands<T>(problem);
    INFO(problem.text);
    auto const answers = annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
      return with_asked_backend(
          [&](auto& backend) { return run_in_layouts<T, Q, K, V, DOut>(problem, ring, backend); });
    });
    std::vector<RingResult> results;
    for (RankAnswer const& answer : answers) {
      CHECK(answer.gaps_intact);
      results.push_back(answer.result);
    }
    CHECK(different_results(assemble(problem, results), assemble(problem, solve_by_rank<T>(problem))) == "");
  }
}

}  // namespace

TEST_CASE("each operand may have its own axis order and storage order") {
  constexpr int row = Eigen::RowMajor, column = Eigen::ColMajor;
  sweep_layouts<float, Bshd<row>, Bhsd<row>, Bhds<column>, Bhds<row>>(8'000'000);
  sweep_layouts<float, Bhds<column>, Bhds<row>, Bshd<column>, Bhsd<column>>(8'100'000);
  sweep_layouts<float, Bhsd<row>, Bshd<column>, Bhsd<column>, Bshd<row>>(8'200'000);
}

TEST_CASE("maps of read-only memory can be mixed with tensors and views") {
  constexpr int row = Eigen::RowMajor, column = Eigen::ColMajor;
  sweep_layouts<double, ConstMapLayout<row>, Bhsd<row>, ViewLayout, ConstMapLayout<column>>(8'300'000);
  sweep_layouts<float, ViewLayout, ConstMapLayout<column>, ConstMapLayout<row>, ViewLayout>(8'400'000);
}

TEST_CASE("operands and results may have any strides, and gaps are not written", "[trap][C33]") {
  sweep_layouts<float, GappedLayout, GappedLayout, GappedLayout, GappedLayout>(8'500'000);
  sweep_layouts<double, GappedLayout, ViewLayout, GappedLayout, Bhds<Eigen::RowMajor>>(8'600'000);
}
