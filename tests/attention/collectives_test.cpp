#include "annulus/attention/collectives.hpp"

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "annulus/attention/ring_attention.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "attention/collective_cases.hpp"
#include "support/catch.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

using Rows = AnyTensor<float, 4>;

}  // namespace

TEST_CASE("scatter, gather and all_reduce of tensors of every kind", "[attention][collectives]") {
  for (int ranks : {1, 2, 3, 5, 8}) {
    CAPTURE(ranks);
    for (std::string const& complaint : run_ring(ranks, [](SimulatedRing& ring) { return all_collectives(ring); }))
      CHECK(complaint.empty());
  }
  SelfRing alone;
  CHECK(all_collectives(alone).empty());
}

TEST_CASE("scatter and gather keep the axis order of a wrapped tensor", "[attention][collectives]") {
  Rows const whole = numbered<float, 4>({2, 3, 10, 4});  // [batch, heads, sequence, dim]
  run_ring(3, [&](SimulatedRing& ring) {
    Rows const local = scatter(ring, bhsd(whole), Zigzag{});
    bool const right =
        local.dimension(2) == Zigzag{}.lengths(Side::query, 3, 10)[static_cast<std::size_t>(ring.rank())];
    Rows const gathered = gather(ring, bhsd(local), Zigzag{});
    bool const same = std::equal(whole.data(), whole.data() + whole.size(), gathered.data());
    if (!right || !same) throw std::runtime_error("another order");
  });
}

TEST_CASE("contiguous shards of any lengths are gathered", "[attention][collectives]") {
  std::vector<Index> const lengths{4, 0, 7};
  auto const gathered = run_ring(3, [&](SimulatedRing& ring) {
    AnyTensor<int, 2> local(lengths[static_cast<std::size_t>(ring.rank())], 2);
    for (Index i = 0; i < local.size(); ++i) local.data()[i] = 100 * ring.rank() + static_cast<int>(i);
    return gather(ring, local, Contiguous{}, {.axis = 0});
  });
  for (auto const& all : gathered) {
    REQUIRE(all.dimension(0) == 11);
    CHECK(all(3, 1) == 7);
    CHECK(all(4, 0) == 200);
    CHECK(all(10, 1) == 213);
  }
}

TEST_CASE("collectives are refused on all ranks alike, and the ring goes on", "[attention][collectives]") {
  Rows const x = numbered<float, 4>({1, 12, 2, 4});
  ExplicitMap const two_ranks{.queries = {{0, 2}, {1}}, .keys = {}};
  std::vector<Refusal<SimulatedRing&>> const table{
      {"an axis that the tensor lacks", "ShapeError", "along axis 4 of a tensor with 4 axes; accepted: 0 to 3",
       [&](SimulatedRing& ring) { scatter(ring, x, Striped{}, {.axis = 4}); }},
      {"shardings", "CommunicationError", "different sharding: rank 0 has striped, rank 1 has zigzag",
       [&](SimulatedRing& ring) { scatter(ring, x, ring.rank() == 1 ? Sharding(Zigzag{}) : Sharding(Striped{})); }},
      {"operations", "CommunicationError", "collective operation",
       [&](SimulatedRing& ring) {
         if (ring.rank() == 2)
           all_reduce(ring, Rows(x));
         else
           scatter(ring, x, Striped{});
       }},
      {"element types", "CommunicationError", "different element type: rank 0 has float32, rank 1 has signed integer",
       [](SimulatedRing& ring) {
         AnyTensor<std::int32_t, 1> whole(4);
         AnyTensor<float, 1> real(4);
         if (ring.rank() == 1)
           all_reduce(ring, whole);
         else
           all_reduce(ring, real);
       }},
      {"rank 1 skips number 2", "CommunicationError", "different number of the operation: rank 0 has 2, rank 1 has 3",
       [&](SimulatedRing& ring) {
         for (Index number : {1, 2, 3}) {
           Rows sum(x);
           if (ring.rank() != 1 || number != 2) all_reduce(ring, sum, number);
         }
       }},
      {"lengths that are not those of the sharding", "ShapeError", "the ranks hold",
       [](SimulatedRing& ring) { gather(ring, Rows(1, ring.rank() + 1, 2, 4), Striped{}); }},
      {"extents", "CommunicationError", "different extent of axis 3: rank 0 has 4, rank 1 has 5",
       [](SimulatedRing& ring) { gather(ring, Rows(1, 4, 2, ring.rank() == 1 ? 5 : 4), Striped{}); }},
      {"a map of two ranks", "ShapeError", "rank 0: ", [&](SimulatedRing& ring) { scatter(ring, x, two_ranks); }},
  };
  check_refused(table, [](auto const& call) {
    return run_ring(3, [&](SimulatedRing& ring) {
      Thrown const thrown = attempt([&] { call(ring); });
      return all_collectives(ring).empty() ? thrown : Thrown{"a ring that does not go on"};
    });
  });
}

TEST_CASE("a rank that does not come to a collective is named", "[attention][collectives]") {
  auto const errors = on_ring(3)([](SimulatedRing& ring) {
    Rows x(1, 12, 2, 4);
    if (ring.rank() != 1) all_reduce(ring, x);
  });
  for (std::size_t rank : {0, 2}) check_thrown(errors[rank], "CommunicationError", "rank 1");
}

TEST_CASE("RingAttention knows the positions of its rows after the first call, and not before",
          "[attention][collectives]") {
  run_ring(3, [](SimulatedRing& ring) {
    ReferenceBackend backend;
    Options const options{.sharding = Striped{.block = 2}, .query_offset = -5};
    RingAttention attention(ring, backend, options);
    bool const refused = attempt([&] { static_cast<void>(attention.positions(Side::query)); }).type != "nothing";
    Rows const q = scatter(ring, numbered<float, 4>({1, 11, 2, 4}), options.sharding);
    Rows const k = scatter(ring, numbered<float, 4>({1, 17, 2, 4}), options.sharding, {.side = Side::key});
    attention.forward(q, k, k);
    std::vector<Index> queries = positions(ring, options.sharding, 11);
    for (Index& position : queries) position -= 5;
    if (!refused || attention.positions(Side::query) != queries ||
        attention.positions(Side::key) != positions(ring, options.sharding, 17, Side::key))
      throw std::runtime_error("other positions");
  });
}

TEST_CASE("scatter, gather and positions of a RingAttention use its sharding", "[attention][collectives]") {
  AnyTensor<std::int32_t, 2> const ids = numbered<std::int32_t, 2>({2, 11});
  AnyTensor<float, 3> const lse = numbered<float, 3>({2, 3, 11});
  Rows const whole = numbered<float, 4>({1, 11, 2, 4}), keys = numbered<float, 4>({1, 17, 2, 4});
  Rows const bias = numbered<float, 4>({1, 2, 11, 17});
  run_ring(3, [&](SimulatedRing& ring) {
    ReferenceBackend backend;
    Options const options{.mask = causal(), .sharding = Striped{.block = 2}, .query_offset = 6};
    RingAttention attention(ring, backend, options);
    Along const of_keys{.side = Side::key}, of_lse{.axis = 2};
    bool right = true;
    auto const check_whole = [&](auto const& x, Along const& along) {
      auto const shard = attention.scatter(x, along);
      right = right && shard.size() == scatter(ring, x, options.sharding, along).size() &&
              same(attention.gather(shard, along), x);
    };
    check_whole(whole, {});
    check_whole(ids, {});
    check_whole(lse, of_lse);
    std::vector<Index> const before = attention.positions();
    right = right && attention.positions(Side::key) == positions(ring, options.sharding, 11, Side::key);
    check_whole(keys, of_keys);
    Rows const own_bias = attention.scatter(bhsd(bias));
    right = right && own_bias.dimension(2) == static_cast<Index>(before.size()) &&
            same(attention.gather(bhsd(own_bias)), bias);
    std::vector<Index> const key_positions = attention.positions(Side::key);
    Rows const q = attention.scatter(whole), k = attention.scatter(keys, of_keys);
    attention.forward(q, k, k, {.bias = own_bias});
    right = right && before == attention.positions() && key_positions == attention.positions(Side::key);
    check_whole(whole, {});
    if (!right) throw std::runtime_error("not the shards of the sharding");
  });
}

TEST_CASE("a RingAttention scatters one number of rows of a side", "[attention][collectives]") {
  Rows const whole = numbered<float, 4>({1, 11, 2, 4}), longer = numbered<float, 4>({1, 17, 2, 4});
  for (bool called : {false, true})
    for (Thrown const& thrown : on_ring(3)([&](SimulatedRing& ring) {
           ReferenceBackend backend;
           RingAttention attention(ring, backend, {.sharding = Zigzag{}});
           Rows const x = called ? scatter(ring, whole, Zigzag{}) : attention.scatter(whole);
           if (called) attention.forward(x, x, x);
           attention.scatter(longer);
         }))
      check_thrown(thrown, "ShapeError",
                   "scatter of 17 queries; this RingAttention has 11; accepted: as many, and {.side");
  // The refusal leaves ring and attention usable.
  run_ring(2, [&](SimulatedRing& ring) {
    ReferenceBackend backend;
    RingAttention attention(ring, backend, {.sharding = Zigzag{}});
    Rows const x = attention.scatter(whole);
    attempt([&] { attention.scatter(longer); });
    Rows const all = attention.gather(attention.forward(x, x, x).output);
    if (all.dimension(1) != 11 || attention.positions() != positions(ring, Zigzag{}, 11))
      throw std::runtime_error("the refused scatter left a trace");
  });
}

TEST_CASE("a collective operation instead of a call of the attention is named on all ranks",
          "[attention][collectives]") {
  Rows const x = numbered<float, 4>({1, 4, 2, 4});
  auto const calls = [&](SimulatedRing& ring) {
    ReferenceBackend backend;
    RingAttention attention(ring, backend);
    if (ring.rank() == 1) gather(ring, x, Contiguous{});
    attention.forward(x, x, x);
    if (ring.rank() != 1) gather(ring, x, Contiguous{});
  };
  for (Thrown const& thrown : on_ring(3)(calls))
    check_thrown(thrown, "CommunicationError",
                 "different calls: rank 0 compares 'call number', rank 1 'collective operation'");
}
