#include "annulus/schedule/ring_plan.hpp"

#include <vector>

#include "annulus/schedule/ring_plan.hpp"
#include "support/catch.hpp"

using namespace annulus;

namespace {

PlanRequest request_of(Pass pass, int ranks, Index query_heads, Index kv_heads, int element, int gradient) {
  std::vector<Index> const lengths(static_cast<std::size_t>(ranks), 16);
  return {.pass = pass,
          .shape = {.query_heads = query_heads, .kv_heads = kv_heads, .head_dim = 128, .value_dim = 128},
          .query_lengths = lengths,
          .key_lengths = lengths,
          .element_bytes = element,
          .accumulator_bytes = gradient,
          .lse_bytes = 4};
}

Rotation chosen(PlanRequest request) {
  request.rotation = Rotation::automatic;
  return RingPlan(request).rotation();
}

Index total(PlanRequest request, Rotation rotation) {
  request.rotation = rotation;
  return RingPlan(request).total_bytes_sent();
}

}  // namespace

TEST_CASE("each rotation has a name", "[schedule]") {
  CHECK(name_of(Rotation::automatic) == "automatic");
  CHECK(name_of(Rotation::keys) == "keys");
  CHECK(name_of(Rotation::queries) == "queries");
}

TEST_CASE("backward: queries rotate only below 1.48 query heads per kv head", "[schedule]") {
  // bfloat16 on the wire, single precision gradients: 2 d (e + f) / (2 d e + d f + 12) = 1.483 for many ranks.
  int const many = 256;
  CHECK(chosen(request_of(Pass::backward, many, 100, 100, 2, 4)) == Rotation::queries);
  CHECK(chosen(request_of(Pass::backward, many, 148, 100, 2, 4)) == Rotation::queries);
  CHECK(chosen(request_of(Pass::backward, many, 149, 100, 2, 4)) == Rotation::keys);
  CHECK(chosen(request_of(Pass::backward, many, 200, 100, 2, 4)) == Rotation::keys);
}

TEST_CASE("backward: with gradients of two bytes the limit is 1.32", "[schedule]") {
  int const many = 256;
  CHECK(chosen(request_of(Pass::backward, many, 131, 100, 2, 2)) == Rotation::queries);
  CHECK(chosen(request_of(Pass::backward, many, 133, 100, 2, 2)) == Rotation::keys);
}

TEST_CASE("backward: with whole groups queries rotate only for equal head counts", "[schedule]") {
  for (int ranks : {2, 3, 8, 16}) {
    CHECK(chosen(request_of(Pass::backward, ranks, 8, 8, 2, 4)) == Rotation::queries);
    CHECK(chosen(request_of(Pass::backward, ranks, 16, 8, 2, 4)) == Rotation::keys);
    CHECK(chosen(request_of(Pass::backward, ranks, 32, 8, 4, 4)) == Rotation::keys);
  }
}

TEST_CASE("forward: keys rotate if both sides have equal lengths", "[schedule]") {
  for (int ranks : {2, 8}) {
    CHECK(chosen(request_of(Pass::forward, ranks, 8, 8, 2, 4)) == Rotation::keys);
    CHECK(chosen(request_of(Pass::forward, ranks, 32, 8, 2, 4)) == Rotation::keys);
  }
}

TEST_CASE("forward: a short query on a long cache rotates", "[schedule]") {
  // W = 8, 4 heads: a query row costs 7 * 4 * 256 + 8 * 4 * 520 bytes, a key row 7 * 512: queries win below 1 in 6.6.
  auto const choice = [](Index queries) {
    PlanRequest request = request_of(Pass::forward, 8, 4, 1, 2, 4);
    request.query_lengths.assign(8, queries);
    request.key_lengths.assign(8, 1000);
    return chosen(request);
  };
  CHECK(choice(1) == Rotation::queries);
  CHECK(choice(150) == Rotation::queries);
  CHECK(choice(151) == Rotation::keys);
  CHECK(choice(1000) == Rotation::keys);
}

TEST_CASE("automatic rotation picks the side that sends fewer bytes, and keys if both send the same", "[schedule]") {
  for (Pass pass : {Pass::forward, Pass::backward})
    for (Index query_heads = 2; query_heads <= 12; ++query_heads)
      for (int ranks : {1, 2, 5})
        for (Mask const& mask : {full(), sliding_window(20, 0), causal()}) {
          PlanRequest request = request_of(pass, ranks, query_heads, 4, 4, 4);
          request.rules.mask = mask;
          bool const queries_win = total(request, Rotation::queries) < total(request, Rotation::keys);
          CHECK(chosen(request) == (queries_win ? Rotation::queries : Rotation::keys));
        }
  PlanRequest apart = request_of(Pass::backward, 4, 8, 8, 2, 4);
  REQUIRE(chosen(apart) == Rotation::queries);
  apart.rules.mask.chunk = 16;  // one shard per chunk: nothing is sent
  CHECK(total(apart, Rotation::keys) == total(apart, Rotation::queries));
  CHECK(chosen(apart) == Rotation::keys);
}
