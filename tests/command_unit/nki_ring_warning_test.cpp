// The warning for rings whose permutes the vendor does not document.

#include "command/nki_parts.hpp"
#include "support/catch.hpp"

using namespace annulus_command;
namespace nki = annulus::nki;

TEST_CASE("rings whose permutes are not documented are named", "[nki]") {
  auto const warning = [](int ranks, int groups, int cores) {
    return nki_ring_warning({.cores = cores, .ranks = ranks, .groups = groups});
  };
  for (int const ranks : {1, 2, 4, 64, 128}) CHECK(warning(ranks, 1, 2).empty());
  for (int const ranks : {3, 5, 6, 96, 192, 256, 512, 1024}) CHECK_FALSE(warning(ranks, 1, 2).empty());
  CHECK(warning(4, 16, 2).empty());
  CHECK(warning(4, 32, 1).empty());
  nki::KernelSpec trn3{.target = nki::Target::trn3, .ranks = 4, .groups = 12};
  CHECK_THAT(nki_ring_warning(trn3), Catch::Matchers::ContainsSubstring("whole instances or equal parts"));
  trn3.groups = 16;
  CHECK(nki_ring_warning(trn3).empty());
  CHECK_FALSE(warning(4, 17, 2).empty());  // more than an instance, but not whole ones
  CHECK_THAT(warning(5, 2, 2), Catch::Matchers::StartsWith("2 rings of 5 ranks: ") &&
                                   Catch::Matchers::ContainsSubstring("What is Neuron Collective Communication?"));
}
