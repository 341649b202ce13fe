#pragma once
// Byte reader: the input of a fuzzer as a sequence of choices. Past the end of the input every byte is 0, so that every
// input is a complete case.

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>

namespace annulus_fuzz {

class ByteReader {
 public:
  ByteReader(std::uint8_t const* data, std::size_t size) : bytes_(data, size) {}

  bool ended() const { return bytes_.empty(); }

  std::uint8_t byte() {
    if (ended()) return 0;
    std::uint8_t const first = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return first;
  }
  std::uint64_t word() {
    std::uint64_t value = 0;
    for (int i = 0; i < 8; ++i) value |= std::uint64_t{byte()} << (8 * i);
    return value;
  }

  /// A number in [low, high], of at most 256 values: one byte, so that a small byte b stands for low + b.
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + byte() % (high - low + 1); }
  /// True for one of n bytes; never past the end.
  bool one_in(int n) { return byte() % n == n - 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[between(0, static_cast<std::int64_t>(values.size()) - 1)];
  }

  /// Any number: small ones mostly, and those around which sums and products overflow.
  std::int64_t any_number() {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    std::uint8_t const kind = byte();
    if (kind < 224) return kind % 32 - (kind < 192 ? 0 : 16);
    if (kind < 232) return static_cast<std::int64_t>(word());
    constexpr std::array edges{
        most, -most - 1, most / 2, most / 4, most / 8, most / 32, std::int64_t{1} << 31, std::int64_t{1} << 32};
    std::int64_t const edge = edges[static_cast<std::size_t>(kind) % edges.size()];
    std::int64_t const near = between(-3, 3);
    if ((near > 0 && edge > most - near) || (near < 0 && edge < -most - 1 - near)) return edge;
    return edge + near;
  }

 private:
  std::span<std::uint8_t const> bytes_;
};

}  // namespace annulus_fuzz
