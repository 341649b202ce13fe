// A cache and a CachedAttention with two asynchronous backends, and the storage that a call keeps.

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "annulus/attention/cache/cached_attention.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "conformance/foreign_implementation.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

Tensor rows(Index count, Index heads, Index dim, int first) {
  Tensor tensor(1, count, heads, dim);
  for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<float>((7 * i + 3 * first) % 17) / 17;
  return tensor;
}

using RowIds = Eigen::Tensor<std::int32_t, 2, Eigen::RowMajor>;

RowIds ids(std::vector<std::int32_t> const& of_rows) {
  RowIds tensor(1, std::ssize(of_rows));
  std::copy(of_rows.begin(), of_rows.end(), tensor.data());
  return tensor;
}

/// Counts the key rows of all steps.
struct CountingBackend : ReferenceBackend {
  template <class T, class Predicate, class A>
  void fold(Step<T, Predicate, HostMemory> const& step, StepOperands<T, HostMemory> const& operands,
            RunningState<A, HostMemory> state) {
    keys += operands.k.extent(axis::sequence);
    ReferenceBackend::fold(step, operands, state);
  }

  Index keys = 0;
};

/// Outputs of calls that write, fork and read pages. `place(tensor)`: in the memory of the backends.
template <class Ring, class B, class Place, class Download>
std::vector<float> outputs_of_calls(Ring& ring, B& of_cache, B& backend, bool documents, Place const& place,
                                    Download const& download) {
  KvCache<float, B> cache(
      ring, of_cache,
      {.kv_heads = 1, .head_dim = 4, .value_dim = 3, .pages = 8, .page_rows = 4, .document_ids = documents});
  CachedAttention attention(ring, backend, {.mask = causal()});
  auto const three_ids = place(ids({1, 2, 1})), two_ids = place(ids({2, 1})), one_id = place(ids({1}));
  AppendOperands<typename B::memory_space> three_rows, one_row;
  CachedOperands<float, typename B::memory_space> three_queries, two_new, one_query;
  if (documents) {
    three_rows.key_documents = three_queries.query_documents = three_ids;
    two_new.key_documents = two_new.query_documents = two_ids;
    one_row.key_documents = one_query.query_documents = one_id;
  }
  std::array const first{cache.create()};
  std::vector<float> outputs;
  auto const note = [&](auto const& result) {
    auto const view = download(view_of(result.output));
    detail::for_each_element(view, view, [&](float const& x, float const&) { outputs.push_back(x); });
  };
  int const mine = 10 * ring.rank();
  attention.append_shards(cache, first, place(rows(3, 1, 4, mine)), place(rows(3, 1, 3, mine)), three_rows);
  note(attention.prefill(cache, first, place(rows(3, 2, 4, mine + 5)), three_queries));
  std::array const second{cache.fork(first[0])};
  note(attention.decode(cache, second, place(rows(2, 2, 4, 1)), place(rows(2, 1, 4, 2)), place(rows(2, 1, 3, 3)),
                        two_new));
  attention.append(cache, first, place(rows(1, 1, 4, 4)), place(rows(1, 1, 3, 5)), one_row);
  note(attention.decode(cache, first, place(rows(1, 2, 4, 6)), one_query));
  return outputs;
}

}  // namespace

TEST_CASE("a cache and its attention may have two asynchronous backends", "[attention][cache][foreign]") {
  for (auto const& [ranks, has_documents] :
       std::vector<std::pair<int, bool>>{{1, false}, {3, false}, {1, true}, {3, true}})
    for (std::string const& complaint :
         run_ring(ranks, [documents = has_documents](SimulatedRing& simulated) -> std::string {
           ReferenceBackend reference;
           auto const expected = outputs_of_calls(
               simulated, reference, reference, documents, [](auto const& x) { return x; },
               [](auto view) { return view; });
           ForeignRing ring(simulated);
           ForeignBackendOptions const lazy{.deferral = {.when = DeferralOptions::lazy}};
           ForeignBackend<> of_cache(lazy), backend(lazy);
           // Placed tensors must live until the backend has been synchronized, which each call does before it returns.
           auto const place = [](auto const& x) { return ForeignPlacement::place(view_of(x)); };
           auto const seen =
               outputs_of_calls(ring, of_cache, backend, documents, place, [](auto view) { return at_rest(view); });
           if (of_cache.pending() + backend.pending() > 0) return "work is pending after the calls";
           if (of_cache.misuses() + backend.misuses() > 0) return "a backend was misused";
           return seen == expected ? "" : "other results than with one backend that works at once";
         }))
      CHECK(complaint == "");
}

TEST_CASE("pages without a document that a query sees are not read", "[attention][cache]") {
  SelfRing ring;
  CountingBackend backend;
  KvCache<float, CountingBackend> cache(ring, backend, {.pages = 20, .page_rows = 4, .document_ids = true});
  CachedAttention attention(ring, backend, {.mask = causal()});
  std::array const sequence{cache.create()};
  auto const append = [&](std::vector<std::int32_t> const& of_rows) {
    Tensor const x = rows(std::ssize(of_rows), 1, 1, 0);
    attention.append(cache, sequence, x, x, {.key_documents = ids(of_rows)});
  };
  auto const keys_read = [&](std::span<Index const> sequences, std::vector<std::int32_t> const& of_queries) {
    backend.keys = 0;
    attention.decode(cache, sequences, rows(std::ssize(of_queries), 1, 1, 0), {.query_documents = ids(of_queries)});
    return backend.keys;
  };
  std::vector<std::int32_t> packed;
  for (int i = 0; i < 40; ++i) packed.push_back(i == 30 ? -7 : i / 8 + 1);
  append(packed);
  CHECK(keys_read(sequence, {3}) == 8);
  CHECK(keys_read(sequence, {0}) == 0);
  CHECK(keys_read(sequence, {-7}) == 0);
  CHECK(keys_read(sequence, {6}) == 0);
  // From document 2 to 3; the range of ids decides.
  CHECK(keys_read(sequence, {2, 0, 3}) == 16);
  CHECK(keys_read(sequence, {1, 5}) == 40);
  // A fork copies the page that it writes into, with its ids; pages that are taken again forget theirs.
  cache.truncate(sequence[0], 18);
  std::array const fork{cache.fork(sequence[0])};
  append({9, 9, 9, 9});
  CHECK(keys_read(sequence, {9}) == 6);
  CHECK(keys_read(fork, {9}) == 0);
  CHECK(keys_read(sequence, {3}) == 4);
  CHECK(keys_read(fork, {3}) == 2);
  // Of the page with ids 3 and 9, and not of the one that held id 4 before it was taken again.
  CHECK(keys_read(sequence, {4}) == 4);
  CHECK(keys_read(fork, {4}) == 0);
}

TEST_CASE("a prefill keeps the tiles and positions of one step, whatever the number of ranks", "[attention][cache]") {
  auto const bytes = [](int ranks) {
    auto const all = run_ring(ranks, [](SimulatedRing& ring) {
      ReferenceBackend backend;
      KvCache<float, ReferenceBackend> cache(ring, backend, {.pages = 1, .page_rows = 64});
      CachedAttention attention(ring, backend, {.mask = causal(), .checked = false});
      std::array const sequence{cache.create()};
      Index const tokens = 64 * ring.size();
      attention.append(cache, sequence, rows(tokens, 1, 1, 0), rows(tokens, 1, 1, 0));
      attention.prefill(cache, sequence, rows(64, 1, 1, 0));
      return attention.buffer_bytes();
    });
    return *std::max_element(all.begin(), all.end());
  };
  CHECK(bytes(7) == bytes(3));
}
