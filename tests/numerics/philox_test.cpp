#include "annulus/numerics/dropout.hpp"

#include <array>
#include <cstdint>

#include "support/catch.hpp"

using annulus::philox4x32;
using Block = std::array<std::uint32_t, 4>;

// Known answers published with Random123 (kat_vectors, philox4x32 with 10 rounds).
static_assert(philox4x32({0, 0, 0, 0}, {0, 0}) == Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
              Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
static_assert(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
              Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

TEST_CASE("the generator gives the published answers also at run time", "[numerics]") {
  // Read through volatile, so that the compiler cannot compute them.
  std::uint32_t const volatile words[] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0};
  CHECK(philox4x32({words[0], words[1], words[2], words[3]}, {words[4], words[5]}) ==
        Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("each word of counter and key changes all four numbers", "[numerics]") {
  Block const base = philox4x32({1, 2, 3, 4}, {5, 6});
  for (std::size_t word = 0; word < 6; ++word) {
    std::array<std::uint32_t, 6> in{1, 2, 3, 4, 5, 6};
    in[word] ^= 0x80000000u;
    Block const other = philox4x32({in[0], in[1], in[2], in[3]}, {in[4], in[5]});
    for (std::size_t i = 0; i < 4; ++i) CHECK(other[i] != base[i]);
  }
}
