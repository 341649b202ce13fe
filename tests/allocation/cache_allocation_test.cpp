// Repeated calls on a cache allocate nothing, on any rank or thread, whatever their order.

#include <annulus/annulus.hpp>
#include <annulus/attention/cache/cached_attention.hpp>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "support/allocation_counts.hpp"
#include "support/catch.hpp"
#include "support/reserved_workspaces.hpp"

using namespace annulus;
using annulus_test::allocations;

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

/// Number of allocations of all ranks in rounds of calls after the first one, and the change of the kept bytes.
struct Growth {
  long allocated;
  Index bytes;
};

Growth repeated(SimulatedRing& ring, CachedOptions const& options, bool documents) {
  constexpr Index heads = 4, kv_heads = 2, dim = 8, chunk = 6;
  CpuBackend backend{.threads = 1};
  KvCache<float> cache(ring, backend,
                       {.kv_heads = kv_heads,
                        .head_dim = dim,
                        .value_dim = dim,
                        .pages = 12,
                        .page_rows = 8,
                        .document_ids = documents,
                        .reproducible_leaf = options.reproducible ? options.reproducible_leaf : 0});
  CachedAttention attention(ring, backend, options);
  std::array const sequences{cache.create(), cache.create()};
  Tensor q(2, chunk, heads, dim), k(2, chunk, kv_heads, dim), v = k, output = q;
  Tensor q1(2, 1, heads, dim), k1(2, 1, kv_heads, dim), output1 = q1;
  for (Tensor* x : {&q, &k, &v, &q1, &k1}) x->setConstant(0.5f);
  Eigen::Tensor<float, 3, Eigen::RowMajor> lse(2, heads, chunk), lse1(2, heads, 1);
  Eigen::Tensor<std::int64_t, 2, Eigen::RowMajor> ids(2, chunk), ids1(2, 1);
  for (Index i = 0; i < ids.size(); ++i) ids.data()[i] = 1 + i % 2;
  ids1.setConstant(2);
  AppendOperands<> rows;
  CachedOperands<float> queries, queries1;
  if (documents) rows.key_documents = queries.query_documents = ids;
  if (documents) queries1.query_documents = queries1.key_documents = ids1;
  auto const round = [&] {
    for (int i = 0; i < 2; ++i) {
      attention.append_shards(cache, sequences, k, v, rows);
      attention.prefill_into(cache, sequences, q, output, lse, queries);
    }
    attention.append(cache, sequences, k, v, rows);
    for (int i = 0; i < 3; ++i) attention.decode_into(cache, sequences, q1, k1, k1, output1, lse1, queries1);
    attention.decode_into(cache, sequences, q, output, lse, queries);
    for (Index sequence : sequences) cache.truncate(sequence, 0);
  };
  auto const synchronize_ranks = [&] {
    std::byte const mine{};
    std::array<std::byte, 8> all;
    ring.all_gather({&mine, 1}, std::span(all).first(static_cast<std::size_t>(ring.size())));
  };
  for (int i = 0; i < 2; ++i) round();
  Index const bytes = attention.buffer_bytes();
  synchronize_ranks();
  long const before = allocations;
  synchronize_ranks();
  for (int i = 0; i < 3; ++i) round();
  synchronize_ranks();
  long const made = allocations - before;
  synchronize_ranks();
  return {made, attention.buffer_bytes() - bytes};
}

void check_growth(int ranks, CachedOptions const& options, bool documents) {
  INFO(name_of(options.merge) << ", " << ranks << " ranks, checked " << *options.checked << ", documents "
                              << documents);
  for (Growth const& growth :
       run_ring(ranks, [&](SimulatedRing& ring) { return repeated(ring, options, documents); })) {
    CHECK(growth.allocated == 0);
    CHECK(growth.bytes == 0);
  }
}

}  // namespace

TEST_CASE("repeated calls on a cache allocate nothing", "[allocation][cache]") {
  annulus_test::reserve_workspaces();
  for (bool const checked : {false, true})
    for (bool const documents : {false, true})
      for (auto const method : {MergeMethod::tree, MergeMethod::gather})
        for (int ranks : {1, 2, 3, 4})
          check_growth(ranks, {.mask = causal(), .merge = method, .checked = checked}, documents);
}

TEST_CASE("repeated reproducible calls on a cache allocate nothing", "[allocation][cache]") {
  annulus_test::reserve_workspaces();
  for (bool const checked : {false, true})
    for (bool const documents : {false, true})
      for (int ranks : {1, 2, 3, 4})
        check_growth(ranks, {.mask = causal(), .reproducible = true, .reproducible_leaf = 16, .checked = checked},
                     documents);
}
