#pragma once
// Umbrella header: everything that requires only Eigen and the standard library; with the CMake target annulus::mpi
// also the ring over MPI.

#include "annulus/attention/cache/cached_attention.hpp"
#include "annulus/attention/collectives.hpp"
#include "annulus/attention/compiled.hpp"
#include "annulus/attention/ring_attention.hpp"
#include "annulus/backend/cpu/cpu.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "annulus/core/version.hpp"
#include "annulus/ring/trace.hpp"
#include "annulus/schedule/balanced_sharding.hpp"
#include "annulus/schedule/estimate.hpp"
#include "annulus/schedule/print_plan.hpp"
#include "annulus/sharding/scatter_gather.hpp"
#include "annulus/tensor/eigen.hpp"

#if defined(ANNULUS_WITH_MPI)
#include "annulus/comm/mpi.hpp"
#endif
