// SelfRing, beyond the communicator suite.

#include "annulus/comm/self.hpp"

#include <array>
#include <span>
#include <vector>

#include "support/refusal.hpp"

using namespace annulus;

TEST_CASE("a ring of one rank checks the lengths of runs", "[comm]") {
  SelfRing ring;
  std::vector<std::byte> from(3), to(2);
  std::array const out = {std::span<std::byte const>(from)};
  std::array const in = {std::span<std::byte>(to)};
  annulus_test::check_refused(
      {{"bytes", "CommunicationError", "run 0", [&] { ring.start_shift(Channel::carried, 1, out, in); }},
       {"number", "CommunicationError", "a shift sends 1 runs and expects 0",
        [&] { ring.start_shift(Channel::carried, 1, out, {}); }}});
}
