#pragma once
// The foreign memory space of the tests in the suites: its bytes, and its backend, whose work is late.

#include <cstdint>

#include "annulus/backend/reference/reference.hpp"
#include "conformance/communicator_ranks.hpp"
#include "support/foreign_backend.hpp"

namespace annulus_test {

template <>
class SpaceBytes<ForeignMemory> : public ForeignAllocation {
 public:
  using ForeignAllocation::ForeignAllocation;
};

template <>
struct SpaceQueue<ForeignMemory> {
  DeferredQueue work{{}};
  ForeignQueue queue{&work};
};

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
