#pragma once
// 64-bit digest of bytes that detects accidental corruption in transit. Not secure against an adversary.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace annulus::detail {

/// Digest of the bytes and their count. Detects every change within one aligned word of 8 bytes; other accidental
/// changes are missed with a probability of about 2^-64. Four independent chains keep up with memory bandwidth. To
/// digest several ranges, pass the digest of one as the `seed` of the next.
inline std::uint64_t digest_of(std::span<std::byte const> bytes, std::uint64_t seed = 0) {
  // Increment of SplitMix64 and multipliers of its finaliser (Steele, Lea, Flood, doi 10.1145/2660193.2660195).
  constexpr std::uint64_t gamma = 0x9e3779b97f4a7c15u, odd = 0xbf58476d1ce4e5b9u, other_odd = 0x94d049bb133111ebu;
  constexpr std::size_t word = sizeof(std::uint64_t), chains = 4;
  // Chains that begin near each other would give equal digests for values that differ as little.
  std::array state{seed + gamma, seed + 2 * gamma, seed + 3 * gamma, seed + 4 * gamma + bytes.size()};
  // Bijective in chain and in value, and every bit of both reaches every bit of the next chain.
  auto const mix = [](std::uint64_t& chain, std::uint64_t value) {
    chain = (chain ^ value) * odd;
    chain = (chain ^ (chain >> 32)) * other_odd;
    chain ^= chain >> 29;
  };
  std::size_t done = 0;
  for (; done + chains * word <= bytes.size(); done += chains * word) {
    std::array<std::uint64_t, chains> values;
    std::memcpy(values.data(), bytes.data() + done, sizeof values);
    for (std::size_t c = 0; c < chains; ++c) mix(state[c], values[c]);
  }
  for (std::size_t c = 0; done < bytes.size(); c = (c + 1) % chains, done += word) {
    std::uint64_t value = 0;
    std::memcpy(&value, bytes.data() + done, bytes.size() - done < word ? bytes.size() - done : word);
    mix(state[c], value);
  }
  std::uint64_t digest = state[0];
  for (std::size_t c = 1; c < chains; ++c) mix(digest, state[c]);
  return digest;
}

}  // namespace annulus::detail
