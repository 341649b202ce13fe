#pragma once
// Everything that needs Eigen and the standard library only. MPI: annulus/comm/mpi.hpp.

#include "annulus/attention/functions.hpp"
#include "annulus/attention/ring_attention.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "annulus/sharding/scatter_gather.hpp"
#include "annulus/tensor/eigen.hpp"
