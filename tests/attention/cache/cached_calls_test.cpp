// Calls on a cache that must be refused, or that differ between ranks: all ranks throw, before anything has changed.

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "annulus/attention/cache/cached_attention.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "support/losing_communicator.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

Tensor ones(Index batch, Index rows, Index heads, Index dim) {
  Tensor tensor(batch, rows, heads, dim);
  tensor.setConstant(1);
  return tensor;
}

using Ids = Eigen::Tensor<std::int64_t, 2, Eigen::RowMajor>;

Ids ids(Index rows, std::int64_t id) {
  Ids all(1, rows);
  all.setConstant(id);
  return all;
}

/// A rank with a cache that holds a sequence of five rows, and one of two rows with document ids.
struct Setting {
  explicit Setting(SimulatedRing& simulated, CachedOptions const& options = {.mask = causal()})
      : ring(simulated),
        rank(ring.rank()),
        cache(ring, backend, {.kv_heads = 2, .head_dim = 3, .value_dim = 4, .pages = 3, .page_rows = 4}),
        other(ring, backend, cache.shape()),
        documented(ring, backend,
                   {.kv_heads = 2, .head_dim = 3, .value_dim = 4, .pages = 3, .page_rows = 4, .document_ids = true}),
        attention(ring, backend, options),
        sequence{cache.create()} {
    other.create(), documented.create();
    attention.append(cache, sequence, ones(1, 5, 2, 3), ones(1, 5, 2, 4));
    attention.append(documented, sequence, ones(1, 2, 2, 3), ones(1, 2, 2, 4), {.key_documents = ids(2, 1)});
  }

  auto decode() { return attention.decode(cache, sequence, ones(1, 1, 4, 3)); }

  SimulatedRing& ring;
  Rank rank;
  ReferenceBackend backend;
  KvCache<float, ReferenceBackend> cache, other, documented;
  CachedAttention<SimulatedRing, ReferenceBackend> attention;
  std::array<Index, 1> sequence;
};

using Table = std::vector<Refusal<Setting&>>;

/// A good call follows each bad one, except on caches that it has made different.
void check_calls(Table const& table, bool on_one_rank = false, bool then_a_good_call = true) {
  check_refused(table, [&](auto const& call) {
    std::vector<Thrown> all;
    for (int ranks : {2, 3})
      for (Thrown const& thrown : run_ring(ranks, [&](SimulatedRing& ring) {
             Setting setting(ring, {.mask = causal(), .checked = true});
             Thrown const seen = attempt([&] {
               if (!on_one_rank || setting.rank == 1)
                 call(setting);
               else
                 setting.decode();
             });
             if (setting.cache.length(setting.sequence[0]) != 5) return Thrown{"a changed cache"};
             if (then_a_good_call) setting.decode();
             return seen;
           }))
        all.push_back(thrown);
    return all;
  });
}
}  // namespace

TEST_CASE("bad calls on a cache are refused on all ranks, and a good one works afterwards", "[attention][cache]") {
  static std::array<Index, 1> const unknown{5}, far{Index{1} << 32}, far_before{-(Index{1} << 32)};
  static std::array<Index, 2> const two_offsets{0, 0};
  check_calls({
      {"unknown sequence", "ShapeError", "sequence 5 does not exist",
       [](Setting& s) { s.attention.decode(s.cache, unknown, ones(1, 1, 4, 3)); }},
      {"no room", "ShapeError", "are needed",
       [](Setting& s) { s.attention.append(s.cache, s.sequence, ones(1, 300, 2, 3), ones(1, 300, 2, 4)); }},
      {"no room for shards", "ShapeError", "are needed",
       [](Setting& s) { s.attention.append_shards(s.cache, s.sequence, ones(1, 90, 2, 3), ones(1, 90, 2, 4)); }},
      {"no room for the row of a decode", "ShapeError", "are needed",
       [](Setting& s) {
         s.attention.decode(s.cache, s.sequence, ones(1, 300, 4, 3), ones(1, 300, 2, 3), ones(1, 300, 2, 4));
       }},
      {"k of another head_dim", "ShapeError", "k has extents",
       [](Setting& s) { s.attention.append(s.cache, s.sequence, ones(1, 1, 2, 5), ones(1, 1, 2, 4)); }},
      {"v of another length", "ShapeError", "v has extents",
       [](Setting& s) { s.attention.append(s.cache, s.sequence, ones(1, 1, 2, 3), ones(1, 2, 2, 4)); }},
      {"q of another batch", "ShapeError", "q has extents",
       [](Setting& s) { s.attention.decode(s.cache, s.sequence, ones(2, 1, 4, 3)); }},
      {"odd number of heads", "ShapeError", "q has 3 heads, the cache has 2",
       [](Setting& s) { s.attention.decode(s.cache, s.sequence, ones(1, 1, 3, 3)); }},
      {"two offsets", "ShapeError", "2 query_offsets are given for 1 sequences",
       [](Setting& s) { s.attention.decode(s.cache, s.sequence, ones(1, 1, 4, 3), {.query_offsets = two_offsets}); }},
      {"a bias with too few keys", "ShapeError", "bias covers 4 keys; sequence 0 has 5",
       [](Setting& s) { s.attention.decode(s.cache, s.sequence, ones(1, 1, 4, 3), {.bias = ones(1, 1, 1, 4)}); }},
      {"a bias of other queries", "ShapeError", "bias has extents [1, 1, 2, 5]",
       [](Setting& s) { s.attention.decode(s.cache, s.sequence, ones(1, 1, 4, 3), {.bias = ones(1, 1, 2, 5)}); }},
      {"a bias of sharded queries", "UnsupportedError", "a bias is given to prefill",
       [](Setting& s) { s.attention.prefill(s.cache, s.sequence, ones(1, 1, 4, 3), {.bias = ones(1, 1, 1, 5)}); }},
      {"a block mask with too few keys", "ShapeError", "block mask covers 4 keys; sequence 0 has 5",
       [](Setting& s) {
         CachedAttention attention(s.ring, s.backend, {.block_mask = {8, 4, 1, {true}}, .checked = true});
         attention.decode(s.cache, s.sequence, ones(1, 1, 4, 3));
       }},
      {"a block mask without the queries", "ShapeError",
       "block mask covers the query positions [0, 6); the queries of sequence 0 have [5, 7)",
       [](Setting& s) {
         CachedAttention attention(s.ring, s.backend, {.block_mask = {6, 8, 1, {true}}, .checked = true});
         attention.decode(s.cache, s.sequence, ones(1, 2, 4, 3), ones(1, 2, 2, 3), ones(1, 2, 2, 4));
       }},
      {"dropout of queries beyond its positions", "UnsupportedError",
       "dropout over positions up to 4294967297; accepted: below 4294967296",
       [](Setting& s) {
         CachedAttention attention(s.ring, s.backend, {.dropout = {.probability = 0.5}, .checked = true});
         attention.decode(s.cache, s.sequence, ones(1, 1, 4, 3), {.query_offsets = far});
       }},
      {"dropout of sharded queries beyond its positions", "UnsupportedError", "dropout over positions up to 42949672",
       [](Setting& s) {
         CachedAttention attention(s.ring, s.backend, {.dropout = {.probability = 0.5}, .checked = true});
         attention.prefill(s.cache, s.sequence, ones(1, 1, 4, 3), {.query_offsets = far_before});
       }},
      {"document ids of queries of a cache without them", "ShapeError",
       "query_documents are given to decode of a cache without document ids",
       [](Setting& s) { s.attention.decode(s.cache, s.sequence, ones(1, 1, 4, 3), {.query_documents = ids(1, 1)}); }},
      {"document ids of rows of a cache without them", "ShapeError",
       "key_documents are given to append_shards of a cache without document ids",
       [](Setting& s) {
         s.attention.append_shards(s.cache, s.sequence, ones(1, 1, 2, 3), ones(1, 1, 2, 4),
                                   {.key_documents = ids(1, 1)});
       }},
      {"document ids of no rows", "ShapeError", "key_documents are given to decode without rows to append",
       [](Setting& s) { s.attention.decode(s.cache, s.sequence, ones(1, 1, 4, 3), {.key_documents = ids(1, 1)}); }},
      {"rows without document ids", "ShapeError", "append of a cache with document ids is given no key_documents",
       [](Setting& s) { s.attention.append(s.documented, s.sequence, ones(1, 1, 2, 3), ones(1, 1, 2, 4)); }},
      {"rows of a decode without document ids", "ShapeError",
       "decode of a cache with document ids is given no key_documents",
       [](Setting& s) {
         s.attention.decode(s.documented, s.sequence, ones(1, 1, 4, 3), ones(1, 1, 2, 3), ones(1, 1, 2, 4),
                            {.query_documents = ids(1, 1)});
       }},
      {"queries without document ids", "ShapeError", "prefill of a cache with document ids is given no query_documents",
       [](Setting& s) { s.attention.prefill(s.documented, s.sequence, ones(1, 1, 4, 3)); }},
      {"document ids of other queries", "ShapeError", "query_documents has extents [1, 2]",
       [](Setting& s) {
         s.attention.decode(s.documented, s.sequence, ones(1, 1, 4, 3), {.query_documents = ids(2, 1)});
       }},
      {"a document id that is too large", "UnsupportedError", "key_documents holds 4294967296",
       [](Setting& s) {
         s.attention.append(s.documented, s.sequence, ones(1, 1, 2, 3), ones(1, 1, 2, 4),
                            {.key_documents = ids(1, std::int64_t{1} << 32)});
       }},
      {"other document ids on one rank", "CommunicationError", "different query_documents: ",
       [](Setting& s) {
         s.attention.decode(s.documented, s.sequence, ones(1, 1, 4, 3), {.query_documents = ids(1, 1 + s.rank)});
       }},
      {"results of other extents", "ShapeError", "lse has extents",
       [](Setting& s) {
         Tensor output = ones(1, 1, 4, 4);
         Eigen::Tensor<float, 3, Eigen::RowMajor> lse(1, 4, 2);
         s.attention.decode_into(s.cache, s.sequence, ones(1, 1, 4, 3), output, lse);
       }},
  });
}

TEST_CASE("a bad or different call on one rank is refused on all ranks", "[attention][cache]") {
  check_calls(
      {
          {"another number of queries", "CommunicationError",
           "different queries: ", [](Setting& s) { s.attention.decode(s.cache, s.sequence, ones(1, 2, 4, 3)); }},
          {"another operation", "CommunicationError", "different operation on a cache: ",
           [](Setting& s) { s.attention.prefill(s.cache, s.sequence, ones(1, 1, 4, 3)); }},
          {"another cache", "CommunicationError", "different number of the cache: ",
           [](Setting& s) { s.attention.decode(s.other, s.sequence, ones(1, 1, 4, 3)); }},
          {"other queries", "CommunicationError", "different q: ",
           [](Setting& s) {
             Tensor q = ones(1, 1, 4, 3);
             q(0, 0, 0, 0) = 2;
             s.attention.decode(s.cache, s.sequence, q);
           }},
          {"a bias on one rank", "CommunicationError", "different bias: ",
           [](Setting& s) { s.attention.decode(s.cache, s.sequence, ones(1, 1, 4, 3), {.bias = ones(1, 1, 1, 5)}); }},
          {"dropout on one rank", "CommunicationError", "different dropout.probability: ",
           [](Setting& s) {
             CachedAttention attention(s.ring, s.backend,
                                       {.mask = causal(), .dropout = {.probability = 0.5}, .checked = true});
             attention.decode(s.cache, s.sequence, ones(1, 1, 4, 3));
           }},
          {"bad rows", "ShapeError", "rank 1: q has extents",
           [](Setting& s) { s.attention.decode(s.cache, s.sequence, ones(1, 1, 4, 2)); }},
      },
      true);
  check_calls(
      {
          {"a truncate on one rank", "CommunicationError", "different history of the cache: ",
           [](Setting& s) {
             s.cache.truncate(s.sequence[0], 5);
             s.decode();
           }},
      },
      true, false);
}

TEST_CASE("options that cannot be honoured are refused on all ranks", "[attention][cache]") {
  auto const with = [](CachedOptions const& options) {
    return [options](Setting& s) {
      CachedAttention(s.ring, s.backend, options).decode(s.cache, s.sequence, ones(1, 1, 4, 3));
    };
  };
  auto const made = [](SimulatedRing& ring, CacheShape const& shape) {
    ReferenceBackend backend;
    KvCache<float, ReferenceBackend>(ring, backend, shape);
  };
  check_calls(
      {{"a negative cap", "UnsupportedError", "logit soft cap is -1", with({.logit_softcap = -1})},
       {"no bandwidth", "UnsupportedError", "bandwidth is 0", with({.link = {.bandwidth = 0}})},
       {"a negative chunk", "UnsupportedError", "chunk is -2", with({.mask = {.chunk = -2}})},
       {"a dropout of one", "UnsupportedError", "dropout probability is 1", with({.dropout = {.probability = 1}})},
       {"caches of different heads", "CommunicationError", "different kv_heads",
        [=](Setting& s) { made(s.ring, {.kv_heads = s.rank + 1}); }},
       {"a cache without head_dim", "ShapeError", "head_dim 0", [=](Setting& s) { made(s.ring, {.head_dim = 0}); }},
       {"a cache of another ring", "ShapeError", "rank 0: the cache was made by rank 0 of 1 ranks; this is rank 0 of",
        [](Setting& s) {
          SelfRing alone;
          KvCache<float, ReferenceBackend> cache(alone, s.backend, {.pages = 2, .page_rows = 4});
          std::array const sequence{cache.create()};
          s.attention.append(cache, sequence, ones(1, 5, 1, 1), ones(1, 5, 1, 1));
        }}});
}

TEST_CASE("a rank that is lost in an exchange of a cache ends all ranks", "[attention][cache]") {
  for (auto const method : {MergeMethod::tree, MergeMethod::gather})
    for (int ranks : {2, 3, 4})
      for (std::string const operation : {"decode", "prefill", "append_shards"}) {
        INFO(operation << " by " << name_of(method) << " on " << ranks << " ranks");
        auto const errors =
            run_ring(ranks,
                     [&](SimulatedRing& inner) {
                       LosingCommunicator ring(inner, inner.rank() == 1 ? 0 : -1);
                       ReferenceBackend backend;
                       KvCache<float, ReferenceBackend> cache(ring, backend, {.pages = 2, .page_rows = 4});
                       CachedAttention attention(ring, backend, {.merge = method});
                       std::array const sequence{cache.create()};
                       attention.append(cache, sequence, ones(1, 5, 1, 1), ones(1, 5, 1, 1));
                       return attempt([&] {
                         for (int i = 0; i < 3; ++i) {
                           if (operation == "decode") attention.decode(cache, sequence, ones(1, 1, 1, 1));
                           if (operation == "prefill") attention.prefill(cache, sequence, ones(1, 1, 1, 1));
                           if (operation == "append_shards")
                             attention.append_shards(cache, sequence, ones(1, 0, 1, 1), ones(1, 0, 1, 1));
                         }
                       });
                     },
                     {.timeout = std::chrono::seconds(20)});
        for (Thrown const& thrown : errors) check_thrown(thrown, "CommunicationError", "the peer was lost");
      }
}
