#pragma once
// Errors of the communicator, in the terms of the ring.

#include "annulus/core/check.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"

namespace annulus::detail {

/// Calls wait(); an error of the communicator also names the step.
template <class Wait>
void in_step(Rank rank, int step, Wait&& wait) {
  try {
    wait();
  } catch (CommunicationError const& error) {
    throw CommunicationError(message_of("step ", step, " of the ring: ", error.what()), rank, step, error.neighbour());
  }
}

}  // namespace annulus::detail
