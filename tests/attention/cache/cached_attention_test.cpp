#include "annulus/attention/cache/cached_attention.hpp"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "attention/cache/cached_sequences.hpp"
#include "support/catch.hpp"
#include "support/faulty_communicator.hpp"
#include "support/recording_communicator.hpp"

using namespace annulus;
using annulus_test::CachedCase;
using annulus_test::CachedRun;
using annulus_test::RingFault;

namespace {

template <class T, class B, class Predicate = EveryPair>
void check_on(int ranks, CachedCase const& one) {
  auto const complaints = run_ring(ranks, [&](SimulatedRing& ring) {
    B backend;
    CachedRun<T, SimulatedRing, B, Predicate> run(ring, backend, one);
    std::string complaint = run.run();
    if (complaint.empty() && run.compared_rows() == 0) complaint = "no row was compared";
    return complaint;
  });
  for (std::string const& complaint : complaints) CHECK(complaint == "");
}

}  // namespace

TEST_CASE("random calls on a cache give what dense attention in double gives", "[attention][cache]") {
  for (CachedCase const& one : annulus_test::cached_cases())
    for (int ranks = 1; ranks <= 8; ++ranks) {
      INFO("case " << one.seed << ", " << ranks << " ranks");
      check_on<float, CpuBackend>(ranks, one);
    }
}

TEST_CASE("the same for other element types, backends and a predicate", "[attention][cache]") {
  for (CachedCase one : annulus_test::cached_cases())
    for (int ranks : {1, 3, 4}) {
      INFO("case " << one.seed << ", " << ranks << " ranks");
      one.calls = 40;
      one.tolerance = 1e-5;
      check_on<float, ReferenceBackend, annulus_test::SomePairs>(ranks, one);
      one.tolerance = 2e-2;
      check_on<Eigen::bfloat16, CpuBackend, annulus_test::SomePairs>(ranks, one);
      one.tolerance = 1e-12;
      check_on<double, CpuBackend>(ranks, one);
    }
}

namespace {

/// Results of a prefill of `queries` rows over 24 cached rows of three documents, in the order of the positions.
std::vector<float> prefilled_documents(int ranks, Index queries) {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  auto const shards = run_ring(ranks, [&](SimulatedRing& ring) {
    Index const rows = 24;
    ReferenceBackend backend;
    KvCache<float, ReferenceBackend> cache(
        ring, backend, {.head_dim = 4, .value_dim = 4, .pages = 8, .page_rows = 4, .document_ids = true});
    CachedAttention attention(ring, backend);
    std::array const sequences{cache.create()};
    Tensor keys(1, rows, 1, 4);
    Eigen::Tensor<std::int32_t, 2, Eigen::RowMajor> key_ids(1, rows);
    for (Index i = 0; i < keys.size(); ++i) keys.data()[i] = static_cast<float>(i * 7 % 11) / 8;
    for (Index i = 0; i < rows; ++i) key_ids(0, i) = 1 + static_cast<std::int32_t>(i % 3);
    attention.append<float>(cache, sequences, keys, keys, {.key_documents = key_ids});
    auto const own = positions(ring, Sharding{}, queries);
    Tensor q(1, static_cast<Index>(own.size()), 1, 4);
    Eigen::Tensor<std::int32_t, 2, Eigen::RowMajor> ids(1, q.dimension(1));
    for (Index i = 0; i < q.dimension(1); ++i) {
      Index const position = own[static_cast<std::size_t>(i)];
      ids(0, i) = 1 + static_cast<std::int32_t>(position % 3);
      for (Index d = 0; d < 4; ++d) q(0, i, 0, d) = static_cast<float>((position * 4 + d) % 5) / 4;
    }
    auto const result = attention.prefill<float>(cache, sequences, q, {.query_documents = ids});
    return std::vector<float>(result.lse.data(), result.lse.data() + result.lse.size());
  });
  std::vector<float> all;
  for (auto const& shard : shards) all.insert(all.end(), shard.begin(), shard.end());
  return all;
}

}  // namespace

TEST_CASE("a rank without queries of its own sees the documents of those that visit it", "[attention][cache]") {
  for (Index queries : {1, 2, 3, 7}) {
    auto const expected = prefilled_documents(1, queries);
    for (int ranks : {2, 3, 5, 8}) {
      CAPTURE(queries, ranks);
      auto const found = prefilled_documents(ranks, queries);
      REQUIRE(found.size() == expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).epsilon(1e-6));
    }
  }
}

TEST_CASE("long sequences take the kernels for few queries", "[attention][cache]") {
  struct Kind {
    double dropped;
    bool documents;
  };
  for (int ranks : {1, 2, 3})
    for (auto const [dropped, documents] : {Kind{0, false}, {0.2, false}, {0, true}, {0.2, true}}) {
      CachedCase one{.options = {.mask = causal(), .dropout = {.probability = dropped, .seed = 3}},
                     .sinks = true,
                     .calls = 40,
                     .seed = 7,
                     .few_queries = true};
      one.shape = {.kv_heads = 1, .head_dim = 32, .value_dim = 16, .pages = 16, .page_rows = 1030};
      one.shape.document_ids = documents;
      check_on<float, CpuBackend>(ranks, one);
    }
}

TEST_CASE("tensors in another axis order and a batch without sequences", "[attention][cache]") {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  run_ring(2, [](SimulatedRing& ring) {
    CpuBackend backend;
    KvCache<float> cache(ring, backend, {.kv_heads = 2, .head_dim = 4, .value_dim = 4, .pages = 2, .page_rows = 4});
    CachedAttention attention(ring, backend);
    std::array const sequence{cache.create()};
    Tensor rows(1, 9, 2, 4), heads_first(1, 2, 9, 4), q(1, 2, 6, 4), q_heads_first(1, 6, 2, 4);
    for (Index i = 0; i < 9; ++i)
      for (Index h = 0; h < 2; ++h)
        for (Index d = 0; d < 4; ++d)
          rows(0, i, h, d) = heads_first(0, h, i, d) = static_cast<float>((7 * i + 3 * h + d) % 11) / 11;
    for (Index i = 0; i < 2; ++i)
      for (Index h = 0; h < 6; ++h)
        for (Index d = 0; d < 4; ++d)
          q(0, i, h, d) = q_heads_first(0, h, i, d) = static_cast<float>((5 * i + 2 * h + d) % 7) / 7;
    attention.append(cache, sequence, rows, rows);
    auto const expected = attention.decode(cache, sequence, q);
    cache.truncate(sequence[0], 0);
    attention.append(cache, sequence, bhsd(heads_first), bhsd(heads_first));
    auto const result = attention.decode(cache, sequence, bhsd(q_heads_first));
    bool same = result.output.dimension(1) == 6 && result.output.dimension(2) == 2;
    for (Index i = 0; same && i < 2; ++i)
      for (Index h = 0; h < 6; ++h)
        for (Index d = 0; d < 4; ++d) same = same && result.output(0, h, i, d) == expected.output(0, i, h, d);
    if (!same) throw Error("another axis order gives other results");
    auto const none = attention.decode(cache, {}, Tensor(0, 1, 6, 4));
    if (none.output.size() != 0) throw Error("a batch without sequences has results");
    attention.append(cache, {}, Tensor(0, 3, 2, 4), Tensor(0, 3, 2, 4));
    if (cache.length(sequence[0]) != 9) throw Error("a batch without sequences changes one");
  });
}

TEST_CASE("the bytes that a decoded row sends do not depend on the length of the cache", "[attention][cache]") {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  auto const sent = [](Index length, MergeMethod method) {
    std::vector<Index> bytes = run_ring(4, [&](SimulatedRing& inner) {
      annulus_test::RecordingCommunicator ring(inner);
      ReferenceBackend backend;
      KvCache<float, ReferenceBackend> cache(ring, backend,
                                             {.head_dim = 2, .value_dim = 3, .pages = 9, .page_rows = 8});
      CachedAttention attention(ring, backend, {.merge = method, .checked = false});
      std::array const sequence{cache.create()};
      Tensor k(1, length, 1, 2), v(1, length, 1, 3), q(1, 1, 5, 2);
      k.setConstant(1), v.setConstant(1), q.setConstant(1);
      attention.append(cache, sequence, k, v);
      attention.decode(cache, sequence, q);
      Index sum = 0;
      for (auto const& event : ring.events())
        if (event.kind == annulus_test::RecordedEvent::started) sum += static_cast<Index>(event.bytes_sent);
      if (sum != attention.merge_plan().bytes_sent(ring.rank())) throw Error("other bytes than the plan says");
      return sum;
    });
    return bytes;
  };
  for (MergeMethod method : {MergeMethod::tree, MergeMethod::gather}) {
    CHECK(sent(1, method) == sent(256, method));
    // One row of five heads: value_dim + 2 floats each.
    CHECK(sent(1, method)[0] == (method == MergeMethod::tree ? 2 : 3) * 5 * (3 + 2) * 4);
  }
}

TEST_CASE("every mistake of a communicator shows in the results", "[attention][cache]") {
  struct Planted {
    RingFault fault;
    int ranks;
  };
  for (auto const [fault, ranks] : {Planted{RingFault::reduction_of_own_share, 2},
                                    {RingFault::reduction_of_own_share, 3},
                                    {RingFault::reduction_of_own_share, 4},
                                    {RingFault::stale_prefetched, 3},
                                    {RingFault::wrong_neighbour, 3},
                                    {RingFault::last_carried_lost, 2},
                                    {RingFault::carried_in_16_bits, 3},
                                    {RingFault::none, 3}}) {
    int found = 0;
    for (CachedCase const& one : annulus_test::cached_cases()) {
      if (one.options.checked) continue;
      auto const complaints = run_ring(ranks, [&, mistake = fault](SimulatedRing& ring) -> std::string {
        annulus_test::FaultyCommunicator faulty(ring, mistake);
        ReferenceBackend backend;
        CachedRun<float, decltype(faulty), ReferenceBackend> run(faulty, backend, one);
        try {
          return run.run();
        } catch (Error const& error) {
          return error.what();
        }
      });
      for (std::string const& complaint : complaints) found += !complaint.empty();
    }
    INFO("fault " << static_cast<int>(fault) << ", " << ranks << " ranks");
    CHECK((found > 0) == (fault != RingFault::none));
  }
}
