#pragma once
// Implementations for the backend suite: each makes a backend, places tensors in its memory space, and makes a
// communicator of that memory space.

#include <cstdint>

#include "annulus/backend/reference/reference.hpp"
#include "support/foreign_backend.hpp"
#include "support/ring_run.hpp"

namespace annulus_test {

/// A backend in host memory.
template <class B>
struct HostImplementation {
  using Backend = B;
  using Placement = HostPlacement;

  Backend make(std::uint64_t /*seed*/) const { return Backend(); }
  template <class Ring>
  Ring& ring(Ring& ring_of_host_memory) const {
    return ring_of_host_memory;
  }
};

/// A backend in the foreign memory space of the tests, whose work is late.
template <class Inner = annulus::ReferenceBackend>
struct ForeignImplementation {
  using Backend = ForeignBackend<Inner>;
  using Placement = ForeignPlacement;

  DeferralOptions::When when = DeferralOptions::delayed;

  Backend make(std::uint64_t seed) const { return Backend({.deferral = {.when = when, .seed = seed}}); }
  template <class Ring>
  ForeignRing<Ring> ring(Ring& ring_of_host_memory) const {
    return ForeignRing<Ring>(ring_of_host_memory);
  }
};

}  // namespace annulus_test
