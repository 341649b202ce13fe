#pragma once
// Views as kernels read them: a pointer and element strides, and the element types of device code.

#include <Eigen/Core>
#include <cstddef>
#include <type_traits>

#include "annulus/backend/cuda/row_operations.hpp"
#include "annulus/core/memory_space.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus {
struct CudaMemory;
}

namespace annulus::cuda::detail {

/// The type of device code for elements of type T, which has the same bits.
template <class T>
struct DeviceElement {
  using type = T;
};
template <>
struct DeviceElement<Eigen::half> {
  using type = __half;
};
template <>
struct DeviceElement<Eigen::bfloat16> {
  using type = __nv_bfloat16;
};
template <class T>
struct DeviceElement<T const> {
  using type = typename DeviceElement<T>::type const;
};
template <class T>
using DeviceElementOf = typename DeviceElement<T>::type;

/// The elements of a view, for kernels.
template <class T, std::size_t N>
Strided<DeviceElementOf<T>, static_cast<int>(N)> strided(TensorView<T, N, CudaMemory> const& view) {
  Strided<DeviceElementOf<T>, static_cast<int>(N)> result{reinterpret_cast<DeviceElementOf<T>*>(view.data()), {}};
  for (std::size_t a = 0; a < N; ++a) result.strides[a] = view.stride(a);
  return result;
}

}  // namespace annulus::cuda::detail
