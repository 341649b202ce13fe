#pragma once
// FNV-1a of 64 bits (Fowler, Noll and Vo): a published hash that any language computes in a few lines, so that results
// can be compared between machines and programs. Not secure against an adversary.

#include <cstddef>
#include <cstdint>
#include <span>

namespace annulus_command {

inline std::uint64_t fnv1a(std::span<std::byte const> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (std::byte const byte : bytes) hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3u;
  return hash;
}

}  // namespace annulus_command
