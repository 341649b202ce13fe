// Kernels of the complete path for a predicate of the suites.

#include "annulus/backend/cuda/complete/complete_path.cuh"
#include "conformance/checkerboard.hpp"

ANNULUS_CUDA_PREDICATE(annulus_test::backend_cases::Checkerboard, float)
