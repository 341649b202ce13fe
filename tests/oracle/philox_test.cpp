// The oracle's generator against the answers published with Random123, and the dropout decisions derived from it.

#include "support/catch.hpp"
#include "support/oracle_philox.hpp"

#include <cmath>

using namespace annulus_test;

TEST_CASE("philox4x32-10 gives the published known answers", "[oracle]") {
  CHECK(oracle_philox({0, 0, 0, 0}, {0, 0}) == OraclePhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(oracle_philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
        OraclePhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(oracle_philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        OraclePhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("the dropout decision uses the random word of its pair", "[oracle]") {
  // Seed, batch, head, position and key / 4 are the input of the third known answer; key % 4 selects one of its words.
  // The key's group 0x03707344 makes keys 0x0dc1cd10 .. 0x0dc1cd13.
  std::uint64_t const seed = 0x299f31d0a4093822;
  OraclePhiloxBlock const words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  for (std::int64_t word = 0; word < 4; ++word) {
    double const threshold = words[static_cast<std::size_t>(word)] / 4294967296.0;
    double const just_above = (words[static_cast<std::size_t>(word)] + 1.0) / 4294967296.0;
    CAPTURE(word);
    CHECK(oracle_dropout_keeps(threshold, seed, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x0dc1cd10 + word));
    CHECK_FALSE(oracle_dropout_keeps(just_above, seed, 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x0dc1cd10 + word));
  }
}

TEST_CASE("dropout keeps everything at 0, nothing at 1, and the expected fraction between", "[oracle]") {
  int kept = 0;
  int const queries = 40;
  int const keys = 100;
  for (int query = -20; query < queries - 20; ++query)
    for (int key = 0; key < keys; ++key) {
      CHECK(oracle_dropout_keeps(0.0, 7, 1, 2, query, key));
      CHECK_FALSE(oracle_dropout_keeps(1.0, 7, 1, 2, query, key));
      kept += oracle_dropout_keeps(0.25, 7, 1, 2, query, key) ? 1 : 0;
    }
  // Five standard deviations of a binomial count.
  double const pairs = queries * keys;
  CHECK(std::abs(kept - 0.75 * pairs) < 5 * std::sqrt(pairs * 0.25 * 0.75));
}
