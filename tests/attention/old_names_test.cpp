// Names of members before version 0.2, which users may still set.

#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "annulus/annulus.hpp"
#include "annulus/attention/cache/cached_attention.hpp"
#include "support/catch.hpp"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

using namespace annulus;

static_assert(std::is_aggregate_v<Options> && std::is_aggregate_v<Operands<float>>);

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

std::vector<float> elements(Tensor const& tensor) { return {tensor.data(), tensor.data() + tensor.size()}; }

/// A pass, its plan, and calls on a cache, with documents or without.
struct Results {
  std::vector<float> output, dk, decoded;
  int ranks_per_group = 0;

  bool operator==(Results const&) const = default;
};

std::vector<Results> results_with(Options const& options, auto const& operands, auto const& rows_of,
                                  auto const& queries) {
  return run_ring(4, [&](SimulatedRing& ring) {
    Tensor x(1, 6, 2, 3);
    for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(i % 7) / 4;
    Eigen::Tensor<std::int64_t, 2, Eigen::RowMajor> ids(1, 6);
    for (Index i = 0; i < 6; ++i) ids(0, i) = i % 2 + 1;
    ReferenceBackend backend;
    RingAttention attention(ring, backend, options);
    auto const forward = attention.forward(x, x, x, operands(ids));
    auto const gradients = attention.backward(x, forward, x, x, x, operands(ids));

    KvCache<float, ReferenceBackend> cache(
        ring, backend, {.kv_heads = 2, .head_dim = 3, .value_dim = 3, .page_rows = 8, .document_ids = true});
    std::array const sequence{cache.create()};
    CachedAttention cached(ring, backend);
    cached.append(cache, sequence, x, x, rows_of(ids));
    return Results{elements(forward.output), elements(gradients.dk),
                   elements(cached.decode(cache, sequence, x, queries(ids)).output),
                   attention.plan(Pass::forward)->request().ranks_per_group};
  });
}

}  // namespace

TEST_CASE("options and operands under their old names mean the same", "[attention]") {
  auto const renamed = results_with(
      {.schedule = Schedule::tiles, .ranks_per_group = 2},
      [](auto const& ids) { return Operands<float>{.query_documents = ids, .key_documents = ids}; },
      [](auto const& ids) { return AppendOperands<>{.key_documents = ids}; },
      [](auto const& ids) { return CachedOperands<float>{.query_documents = ids}; });
  auto const old = results_with(
      {.schedule = Schedule::tiles, .group = 2},
      [](auto const& ids) { return Operands<float>{.query_segments = ids, .key_segments = ids}; },
      [](auto const& ids) { return AppendOperands<>{.key_segments = ids}; },
      [](auto const& ids) { return CachedOperands<float>{.query_segments = ids}; });
  CHECK(renamed.front().ranks_per_group == 2);
  CHECK(old == renamed);
}

TEST_CASE("a plan takes the old names", "[attention]") {
  PlanRequest renamed{.shape = {.query_heads = 2, .kv_heads = 2, .head_dim = 8, .value_dim = 8},
                      .query_lengths = {8, 8, 8, 8},
                      .key_lengths = {8, 8, 8, 8},
                      .schedule = Schedule::tiles};
  PlanRequest old = renamed;
  renamed.ranks_per_group = 2, renamed.document_ids = true;
  old.group = 2, old.segments = true;
  CHECK(RingPlan(old).groups().size() == 2);
  CHECK(RingPlan(old).total_bytes_sent() == RingPlan(renamed).total_bytes_sent());
  old.schedule = Schedule::automatic;
  CHECK_THROWS_AS(best_plan(old), UnsupportedError);
}
