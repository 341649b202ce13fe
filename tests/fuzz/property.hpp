#pragma once
// Check of a fuzz target: a property that does not hold ends the program, which makes the input a finding.

#include <annulus/core/error.hpp>
#include <cstdio>
#include <cstdlib>

namespace annulus_fuzz {

/// Prints the parts as one line and aborts unless `holds`.
template <class... Parts>
void require(bool holds, Parts const&... parts) {
  if (holds) return;
  std::fprintf(stderr, "property violated: %s\n", annulus::detail::message_of(parts...).c_str());
  std::abort();
}

}  // namespace annulus_fuzz
