#include "annulus/core/digest.hpp"

#include <cstddef>
#include <set>
#include <span>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;

TEST_CASE("every flipped bit changes the digest", "[core]") {
  for (std::size_t size : {1u, 7u, 8u, 9u, 31u, 32u, 33u, 100u}) {
    std::vector<std::byte> bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(37 * i + 11);
    std::uint64_t const whole = detail::digest_of(bytes);
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      auto const flip = [&] { bytes[bit / 8] ^= std::byte{1} << static_cast<int>(bit % 8); };
      flip();
      CHECK(detail::digest_of(bytes) != whole);
      flip();
    }
    CHECK(detail::digest_of(bytes) == whole);
  }
}

TEST_CASE("changes of several sign bits do not cancel each other", "[core]") {
  std::vector<float> values(64, 1.5f);
  std::uint64_t const whole = detail::digest_of(std::as_bytes(std::span(values)));
  for (std::size_t first = 0; first < values.size(); ++first)
    for (std::size_t second = first + 1; second < values.size(); ++second)
      for (std::size_t third = second + 1; third < values.size(); ++third) {
        for (std::size_t i : {first, second, third}) values[i] = -values[i];
        bool const same = detail::digest_of(std::as_bytes(std::span(values))) == whole;
        for (std::size_t i : {first, second, third}) values[i] = -values[i];
        if (same) FAIL("signs of " << first << ", " << second << " and " << third);
      }
}

TEST_CASE("length, order and seed change the digest", "[core]") {
  std::vector<std::byte> zeros(100);
  std::set<std::uint64_t> digests;
  for (std::size_t size = 0; size <= zeros.size(); ++size)
    digests.insert(detail::digest_of(std::span(zeros).first(size)));
  CHECK(digests.size() == zeros.size() + 1);

  std::vector<std::byte> words(64);
  words[0] = std::byte{1};
  std::uint64_t const first = detail::digest_of(words);
  for (std::size_t place = 8; place < words.size(); place += 8) {
    std::vector<std::byte> moved(64);
    moved[place] = std::byte{1};
    CHECK(detail::digest_of(moved) != first);
  }
  CHECK(detail::digest_of(words, 1) != first);
}
