#pragma once
// CudaBackend in the suites.

#include <cstdint>

#include "annulus/backend/cuda/cuda.hpp"
#include "conformance/backend_suite.hpp"
#include "support/cuda_memory.hpp"

namespace annulus_test {

struct CudaImplementation {
  using Backend = annulus::CudaBackend;
  using Placement = CudaPlacement;

  Backend make(std::uint64_t) const { return Backend(); }
  template <class Ring>
  StagedCudaRing<Ring> ring(Ring& ring_of_host_memory) const {
    return StagedCudaRing<Ring>(ring_of_host_memory);
  }
};

}  // namespace annulus_test
