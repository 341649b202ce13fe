#pragma once
// ANNULUS_HOST_DEVICE: marks functions that kernels of CUDA call too. Functions that are constexpr need no mark, because
// the kernels are compiled with --expt-relaxed-constexpr.

#if defined(__CUDACC__)
#define ANNULUS_HOST_DEVICE __host__ __device__
#else
#define ANNULUS_HOST_DEVICE
#endif
