#pragma once
// Elements in device code: conversion to the type of sums and back, and how kernels are launched.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "annulus/core/cuda/memory.hpp"
#include "annulus/core/index.hpp"

namespace annulus::cuda::detail {

template <class A>
__device__ inline A widened(float value) {
  return static_cast<A>(value);
}
template <class A>
__device__ inline A widened(double value) {
  return static_cast<A>(value);
}
template <class A>
__device__ inline A widened(__half value) {
  return static_cast<A>(__half2float(value));
}
template <class A>
__device__ inline A widened(__nv_bfloat16 value) {
  return static_cast<A>(__bfloat162float(value));
}

/// The element nearest to a sum, ties to even.
template <class T, class A>
__device__ inline T narrowed(A value) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half_rn(static_cast<float>(value));
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16_rn(static_cast<float>(value));
  else
    return static_cast<T>(value);
}

/// Of two 16-bit elements in a word, the bits of those that are infinite or NaN: all bits of their exponents are set.
template <class T>
__device__ inline std::uint32_t not_finite(std::uint32_t pair) {
  static_assert(sizeof(T) == 2);
  constexpr std::uint32_t exponent = std::is_same_v<T, __half> ? 0x7c00u : 0x7f80u, upper = exponent << 16;
  return ((pair & exponent) == exponent ? 0xffffu : 0u) | ((pair & upper) == upper ? 0xffff0000u : 0u);
}

/// The product of a scaled row and another row, of these element strides: finite where the product itself overflows.
template <class A, class T>
__device__ inline A scaled_product(T const* q, Index q_stride, T const* k, Index k_stride, Index dim, A scale) {
  A sum = A(0);
  for (Index d = 0; d < dim; ++d) sum += widened<A>(q[d * q_stride]) * scale * widened<A>(k[d * k_stride]);
  return sum;
}

/// The value as it is rounded: the compiler may not fuse the product that it comes from with a later sum. Logits that are
/// recomputed must have the bits of the first time, and the largest one of a row the weight 1.
template <class A>
__device__ inline A rounded(A value) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same_v<A, double>)
    asm("" : "+d"(value));
  else
    asm("" : "+f"(value));
#endif
  return value;
}

/// Puts a kernel on a stream, with `bytes` of dynamic shared memory. Blocks of 48 KiB and more need allow_shared().
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, std::size_t bytes, cudaStream_t stream,
            Arguments const&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = blocks;
  config.blockDim = threads;
  config.dynamicSmemBytes = bytes;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "cudaLaunchKernelEx");
}

/// Lets a kernel use so much dynamic shared memory, on the current GPU.
template <class... Parameters>
void allow_shared(void (*kernel)(Parameters...), std::size_t bytes) {
  check(cudaFuncSetAttribute(reinterpret_cast<void const*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
}

/// Sum, or maximum, over groups of `Lanes` neighbouring threads of a warp; all get it.
template <int Lanes, class A>
__device__ inline A warp_sum(A value) {
#pragma unroll
  for (int distance = Lanes / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}
template <int Lanes, class A>
__device__ inline A warp_maximum(A value) {
#pragma unroll
  for (int distance = Lanes / 2; distance > 0; distance /= 2)
    value = fmax(value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

}  // namespace annulus::cuda::detail
