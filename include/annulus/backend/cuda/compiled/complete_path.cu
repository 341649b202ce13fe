// Kernels of the complete path for one element type, which the build defines as ANNULUS_CUDA_ELEMENT.

#include "annulus/backend/cuda/complete/complete_path.cuh"

ANNULUS_CUDA_PREDICATE(annulus::EveryPair, ANNULUS_CUDA_ELEMENT)
