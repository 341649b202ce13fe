// Packed documents and masked rows, in the conventions of nkilib.

#include <annulus/annulus.hpp>
#include <annulus/interop/nkilib.hpp>
#include <limits>

#include "interop/nkilib_run.hpp"
#include "support/refusal.hpp"

using namespace annulus_test;
namespace nkilib = annulus::nkilib;
using annulus::TensorView;

namespace {

struct Range {
  float min, max;
};

/// Bounds of one batch item and one head.
nkilib::PackedDocuments documents_of(std::vector<Range> const& ranges) {
  static_assert(sizeof(Range) == 2 * sizeof(float));
  auto const s = static_cast<Index>(ranges.size());
  return {TensorView<float const, 3>(&ranges[0].min, {1, 1, s}, {0, 0, 2}),
          TensorView<float const, 3>(&ranges[0].max, {1, 1, s}, {0, 0, 2})};
}

std::vector<int> row_of(TensorView<std::int32_t const, 2> ids) {
  std::vector<int> row;
  for (Index i = 0; i < ids.extent(1); ++i) row.push_back(ids(0, i));
  return row;
}

}  // namespace

TEST_CASE("nkilib bounds: documents get ids in position order", "[nkilib]") {
  auto const documents = documents_of({{0, 2}, {0, 2}, {0, 0}, {3, 5}, {3, 5}});
  CHECK(row_of(documents.query_ids()) == std::vector<int>{1, 1, 0, 2, 2});
  CHECK(row_of(documents.key_ids()) == std::vector<int>{1, 1, 0, 2, 2});
}

TEST_CASE("nkilib bounds: a query may see a document that it is not part of", "[nkilib]") {
  // Row 0 sees a later document, row 3 sees nothing although its own key is seen, row 4 sees an earlier document.
  auto const documents = documents_of({{2, 4}, {0, 2}, {2, 4}, {4, 3}, {0, 2}});
  CHECK(row_of(documents.query_ids()) == std::vector<int>{2, 1, 2, 0, 1});
  CHECK(row_of(documents.key_ids()) == std::vector<int>{1, 1, 2, 2, 0});
  std::vector<bool> causal, all;
  for (Index row = 0; row < 5; ++row) {
    causal.push_back(documents.sees_nothing(0, row, true));
    all.push_back(documents.sees_nothing(0, row, false));
  }
  CHECK(causal == std::vector<bool>{true, false, false, true, false});
  CHECK(all == std::vector<bool>{false, false, false, true, false});
}

TEST_CASE("nkilib bounds: ranges that are not documents are refused", "[nkilib]") {
  float const nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> const min(4, 0.0f), max{2, 2, 2, 1};
  auto const made = [](std::vector<Range> const& ranges) { return [ranges] { documents_of(ranges); }; };
  check_refused(
      {{"overlap", "UnsupportedError", "[0, 2) and [1, 2) overlap", made({{0, 2}, {1, 2}})},
       {"one within another", "UnsupportedError", "[0, 2) and [0, 1) overlap", made({{0, 1}, {0, 2}})},
       {"end", "UnsupportedError", "bound_max of batch item 0, row 0 is 3", made({{0, 3}, {0, 2}})},
       {"begin", "UnsupportedError", "bound_min of batch item 0, row 0 is -1", made({{-1, 2}, {0, 2}})},
       {"fraction", "UnsupportedError", "bound_min of batch item 0, row 1 is 0.5", made({{0, 2}, {0.5f, 2}})},
       {"no number", "UnsupportedError", "whole numbers from 0 to 2", made({{0, 2}, {0, nan}})},
       {"other bounds of another head", "UnsupportedError", "bounds of head 1 differ from those of head 0", [&] {
          nkilib::PackedDocuments({min.data(), {1, 2, 2}}, {max.data(), {1, 2, 2}});
        }}});
}

TEST_CASE("nkilib: a masked row has output 0, lse 0.0 and no effect on any gradient", "[nkilib][C2][C4][C28]") {
  int const ranks = 2;
  Index const s = 5;
  NkilibCall const call{.causal = true, .striped = true, .documents = {{2, 6}, {8, 10}}};
  RingProblem problem =
      nkilib_problem(ranks, s, call, NkilibExtents{.query_heads = 1, .kv_heads = 1, .head_dim = 2, .value_dim = 2});
  // The contents of padding must not reach any result.
  double const nan = std::numeric_limits<double>::quiet_NaN();
  for (std::size_t position : {0u, 1u, 6u, 7u})
    for (std::size_t i = 2 * position; i < 2 * position + 2; ++i)
      problem.dense.q[i] = problem.dense.k[i] = problem.dense.v[i] = problem.dout[i] = nan;
  RingResult const seen = assemble(problem, annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
                                     annulus::ReferenceBackend backend;
                                     return run_nkilib_rank<float>(problem, ring, backend, call);
                                   }));
  for (std::size_t position = 0; position < 10; ++position) {
    INFO("position " << position);
    bool const masked = position < 2 || position == 6 || position == 7;
    // The only key of a document's first query is its own, so its probability is 1 whatever q and k are.
    bool const alone = position == 2 || position == 8;
    CHECK((seen.lse[position] == 0) == masked);
    for (std::size_t i = 2 * position; i < 2 * position + 2; ++i) {
      CHECK(std::isfinite(seen.output[i]));
      CHECK((seen.output[i] == 0) == masked);
      if (!alone) CHECK((seen.dq[i] == 0) == masked);
      CHECK((seen.dk[i] == 0) == masked);
      CHECK((seen.dv[i] == 0) == masked);
    }
  }
}

TEST_CASE("nkilib: a query before its document is a masked row under the causal mask", "[nkilib]") {
  // All query rows of both ranks have the bounds of local keys 1 and 2.
  auto const results = annulus::run_ring(2, [](annulus::SimulatedRing& ring) {
    annulus::ReferenceBackend backend;
    Eigen::Tensor<double, 4> q(1, 1, 1, 3), v(1, 1, 3, 1);
    q.setValues({{{{0.5, -1.0, 2.0}}}});
    v.setConstant(1.0);
    Eigen::Tensor<float, 3> min(1, 3, 1), max(1, 3, 1);
    min.setConstant(1.0f);
    max.setConstant(3.0f);
    auto const forward = nkilib::ring_attention_spmd_fwd(ring, backend, q, q, v,
                                                         {.num_workers = 2,
                                                          .use_causal_mask = true,
                                                          .striped_input = true,
                                                          .training = true,
                                                          .bound_min = min,
                                                          .bound_max = max});
    Eigen::Tensor<float, 2> const flat_min = min.chip(0, 2), flat_max = max.chip(0, 2);
    auto const transposed = annulus::view_of(v).permuted({0, 1, 3, 2});
    auto const gradients = nkilib::ring_attention_spmd_bwd(
        ring, backend, q, q, transposed, annulus::view_of(forward.o).permuted({0, 1, 3, 2}), transposed, *forward.lse,
        {.use_causal_mask = true,
         .num_workers = 2,
         .striped_attention = true,
         .bound_min = flat_min,
         .bound_max = flat_max});
    std::vector<double> row{(*forward.lse)(0, 0, 0, 0), (*forward.lse)(0, 0, 1, 0)};
    for (int i = 0; i < 3; ++i) row.push_back(forward.o(0, 0, i, 0));
    for (int i = 0; i < 3; ++i) row.push_back(gradients.dv(0, 0, 0, i));
    return row;
  });
  for (auto const& row : results) {
    CHECK(row[0] == 0);
    CHECK(row[1] != 0);
    CHECK(row[2] == 0);
    CHECK(row[3] == Approx(1));
    CHECK(row[5] == 0);
    CHECK(row[6] > 0);
  }
}

TEST_CASE("nkilib: an unmasked row whose lse is 0 keeps its gradients", "[nkilib]") {
  // q = 0 gives the logit 0; a row with one visible key then has lse log(1) = 0, like a masked row.
  auto const dv = annulus::run_ring(1, [](annulus::SimulatedRing& ring) {
    annulus::ReferenceBackend backend;
    Eigen::Tensor<float, 4> zero(1, 1, 2, 1), v(1, 1, 1, 2), transposed(1, 1, 2, 1);
    zero.setZero();
    v.setConstant(3.0f);
    transposed.setConstant(3.0f);
    auto const forward =
        nkilib::ring_attention_spmd_fwd(ring, backend, zero, zero, v, {.use_causal_mask = true, .training = true});
    auto const o = annulus::view_of(forward.o).permuted({0, 1, 3, 2});
    auto const gradients = nkilib::ring_attention_spmd_bwd(ring, backend, zero, zero, transposed, o, transposed,
                                                           *forward.lse, {.use_causal_mask = true});
    return std::pair{(*forward.lse)(0, 0, 0, 0), gradients.dv(0, 0, 0, 0)};
  });
  CHECK(dv[0].first == 0.0f);
  CHECK(dv[0].second == 3.0f);
}

TEST_CASE("nkilib: ranks with different bounds throw an error that names the bounds", "[nkilib]") {
  auto const call = [](annulus::SimulatedRing& ring) {
    annulus::ReferenceBackend backend;
    Eigen::Tensor<float, 4> q(1, 1, 1, 2), v(1, 1, 2, 1);
    q.setZero(), v.setZero();
    Eigen::Tensor<float, 3> min(1, 2, 1), max(1, 2, 1);
    min.setZero(), max.setConstant(static_cast<float>(2 - ring.rank()));
    nkilib::ring_attention_spmd_fwd(
        ring, backend, q, q, v,
        {.num_workers = 2, .use_causal_mask = true, .striped_input = true, .bound_min = min, .bound_max = max});
  };
  for (Thrown const& thrown : on_ring(2)(call)) check_thrown(thrown, "CommunicationError", "bounds (fingerprint)");
}
