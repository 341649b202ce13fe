#include "annulus/numerics/dropout.hpp"

#include <array>
#include <cmath>
#include <cstdint>
#include <random>

#include "support/catch.hpp"
#include "support/oracle_philox.hpp"

using namespace annulus;

namespace {

constexpr double two_to_32 = 4294967296.0;

/// Fraction of pairs for which two settings decide alike.
template <class First, class Second>
double share_alike(First const& first, Second const& second) {
  int alike = 0;
  for (Index query = 0; query < 100; ++query)
    for (Index key = 0; key < 100; ++key) alike += first(query, key) == second(query, key) ? 1 : 0;
  return alike / 10000.0;
}

}  // namespace

TEST_CASE("the decision uses the random word of its pair, with an exact threshold", "[numerics]") {
  // Seed, batch, head, query and key / 4 are the input of a published known answer of the generator.
  std::array<std::uint32_t, 4> const words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1};
  for (std::size_t word = 0; word < 4; ++word) {
    Index const key = Index{0x03707344} * 4 + static_cast<Index>(word);
    Dropout const at_word{words[word] / two_to_32, 0x299f31d0a4093822};
    Dropout const just_above{(words[word] + 1.0) / two_to_32, 0x299f31d0a4093822};
    CHECK(at_word.keeps(0x243f6a88, 0x85a308d3, 0x13198a2e, key));
    CHECK_FALSE(just_above.keeps(0x243f6a88, 0x85a308d3, 0x13198a2e, key));
  }
}

TEST_CASE("without dropout every pair is kept", "[numerics]") {
  Dropout const none{.probability = 0, .seed = 3};
  CHECK_FALSE(none.active());
  CHECK(none.keep_scale() == 1.0);
  for (Index query = 0; query < 50; ++query)
    for (Index key = 0; key < 50; ++key) CHECK(none.keeps(0, 0, query, key));
}

TEST_CASE("a tiny probability is active and drops hardly any pair", "[numerics]") {
  Dropout const tiny{.probability = 1e-12, .seed = 3};
  CHECK(tiny.active());
  CHECK(tiny.keep_scale() == Approx(1.0));
  for (Index query = 0; query < 100; ++query)
    for (Index key = 0; key < 100; ++key) CHECK(tiny.keeps(0, 0, query, key));
}

TEST_CASE("the mean is preserved", "[numerics]") {
  double const probability = GENERATE(0.01, 0.1, 0.5, 0.9, 0.999);
  CAPTURE(probability);
  Dropout const dropout{.probability = probability, .seed = 20};
  Index const queries = 200, keys = 400;
  double kept = 0;
  for (Index query = 0; query < queries; ++query)
    for (Index key = 0; key < keys; ++key) kept += dropout.keeps(1, 2, query, key) ? 1 : 0;
  double const pairs = queries * keys;
  // Five standard deviations of a binomial count.
  CHECK(std::abs(kept - (1 - probability) * pairs) < 5 * std::sqrt(pairs * probability * (1 - probability)));
  CHECK(dropout.keep_scale() * (1 - probability) == Approx(1.0).epsilon(1e-15));
}

TEST_CASE("the dropout pattern does not repeat along any axis and depends on the seed", "[numerics][C17]") {
  Dropout const half{.probability = 0.5, .seed = 11}, other_seed{.probability = 0.5, .seed = 12},
      other_high_seed{.probability = 0.5, .seed = 11 + (std::uint64_t{1} << 32)};
  auto const base = [&](Index query, Index key) { return half.keeps(0, 0, query, key); };
  // Two independent patterns of probability 1/2 agree on half of 10,000 pairs, give or take 5 standard deviations.
  auto const independent = [&](auto const& other) { return std::abs(share_alike(base, other) - 0.5) < 0.025; };
  CHECK(independent([&](Index query, Index key) { return half.keeps(1, 0, query, key); }));
  CHECK(independent([&](Index query, Index key) { return half.keeps(0, 1, query, key); }));
  CHECK(independent([&](Index query, Index key) { return half.keeps(0, 0, query + 100, key); }));
  CHECK(independent([&](Index query, Index key) { return half.keeps(0, 0, query, key + 100); }));
  CHECK(independent([&](Index query, Index key) { return half.keeps(0, 0, query, key + 1); }));
  CHECK(independent([&](Index query, Index key) { return half.keeps(0, 0, key, query); }));
  CHECK(independent([&](Index query, Index key) { return other_seed.keeps(0, 0, query, key); }));
  CHECK(independent([&](Index query, Index key) { return other_high_seed.keeps(0, 0, query, key); }));
  CHECK(share_alike(base, base) == 1.0);
}

TEST_CASE("a higher probability drops all pairs that a lower one drops", "[numerics]") {
  Dropout const low{.probability = 0.2, .seed = 5}, high{.probability = 0.7, .seed = 5};
  for (Index query = 0; query < 50; ++query)
    for (Index key = 0; key < 50; ++key)
      if (!low.keeps(0, 0, query, key)) CHECK_FALSE(high.keeps(0, 0, query, key));
}

TEST_CASE("the decision matches the oracle, also for queries before position 0", "[numerics]") {
  std::mt19937_64 random(7);
  std::uniform_int_distribution<Index> batch(0, 7), head(0, 63), query(-100000, 100000), key(0, 1 << 20);
  int kept = 0;
  for (int i = 0; i < 2000; ++i) {
    Dropout const dropout{.probability = 0.3, .seed = random()};
    Index const b = batch(random), h = head(random), q = query(random), k = key(random);
    bool const keeps = dropout.keeps(b, h, q, k);
    CHECK(keeps == annulus_test::oracle_dropout_keeps(0.3, dropout.seed, b, h, q, k));
    kept += keeps ? 1 : 0;
  }
  CHECK((kept > 0 && kept < 2000));
}
