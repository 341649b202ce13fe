#pragma once
// Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011) and the dropout
// decision derived from it: an independent second implementation to check that of the library.

#include <array>
#include <cstdint>

namespace annulus_test {

using OraclePhiloxBlock = std::array<std::uint32_t, 4>;
using OraclePhiloxKey = std::array<std::uint32_t, 2>;

/// Four random words, a pure function of counter and key.
inline OraclePhiloxBlock oracle_philox(OraclePhiloxBlock counter, OraclePhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    std::uint64_t const product0 = std::uint64_t{0xD2511F53} * counter[0];
    std::uint64_t const product1 = std::uint64_t{0xCD9E8D57} * counter[2];
    auto const high0 = static_cast<std::uint32_t>(product0 >> 32);
    auto const high1 = static_cast<std::uint32_t>(product1 >> 32);
    counter = {high1 ^ counter[1] ^ key[0], static_cast<std::uint32_t>(product1), high0 ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(product0)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

/// True if dropout keeps the probability of (batch, head, query, key). Positions are global; the query's includes
/// query_offset and may be negative. Kept iff the pair's random word is at least floor(probability * 2^32).
inline bool oracle_dropout_keeps(double probability, std::uint64_t seed, std::int64_t batch, std::int64_t head,
                                 std::int64_t query_position, std::int64_t key_position) {
  OraclePhiloxKey const key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)};
  OraclePhiloxBlock const counter{static_cast<std::uint32_t>(batch), static_cast<std::uint32_t>(head),
                                  static_cast<std::uint32_t>(query_position),
                                  static_cast<std::uint32_t>(key_position / 4)};
  std::uint64_t const word = oracle_philox(counter, key)[static_cast<std::size_t>(key_position % 4)];
  return word >= static_cast<std::uint64_t>(probability * 4294967296.0);
}

}  // namespace annulus_test
