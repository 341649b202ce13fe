// SelfRing, beyond the communicator suite.

#include "annulus/comm/self.hpp"

#include <array>
#include <span>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("a ring of one rank is its own neighbour", "[comm]") {
  SelfRing ring;
  CHECK(ring.rank() == 0);
  CHECK(ring.size() == 1);

  std::array<std::byte, 3> const from = {std::byte{1}, std::byte{2}, std::byte{3}};
  std::array<std::byte, 3> to{};
  std::array const out = {std::span<std::byte const>(from)};
  std::array const in = {std::span<std::byte>(to)};
  ring.start_shift(Channel::prefetched, 1, out, in).wait();
  CHECK(to == from);

  std::array<std::byte, 3> all{};
  ring.all_gather(from, all);
  CHECK(all == from);
}

TEST_CASE("a ring of one rank checks the lengths of runs", "[comm]") {
  SelfRing ring;
  std::vector<std::byte> from(3), to(2);
  std::array const out = {std::span<std::byte const>(from)};
  std::array const in = {std::span<std::byte>(to)};
  CHECK_THROWS_WITH(ring.start_shift(Channel::carried, 1, out, in), ContainsSubstring("run 0"));
  CHECK_THROWS_AS(ring.start_shift(Channel::carried, 1, out, {}), CommunicationError);
}
