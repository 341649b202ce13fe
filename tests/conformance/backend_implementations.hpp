#pragma once
// Implementations for the backend suite. An implementation is a class that has
//   Backend           the backend
//   Placement         how tensors get into its memory space and back, such as HostPlacement (ring_run.hpp)
//   make(seed)        a backend; the seeds of the backends of one test differ
//   ring(host_ring)   a communicator of its memory space on top of one of host memory, which it may be itself

#include <cstdint>
#include <functional>

#include "support/ring_run.hpp"

namespace annulus_test {

/// A backend in host memory, as a function makes it: by default without arguments.
template <class B>
struct HostImplementation {
  using Backend = B;
  using Placement = HostPlacement;

  std::function<Backend()> create = [] { return Backend(); };

  Backend make(std::uint64_t /*seed*/) const { return create(); }
  template <class Ring>
  Ring& ring(Ring& ring_of_host_memory) const {
    return ring_of_host_memory;
  }
};

}  // namespace annulus_test
