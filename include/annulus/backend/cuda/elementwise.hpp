#pragma once
// Element-wise operations on views of any number of axes, as the kernels of four axes take them.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "annulus/backend/cuda/row_operations.hpp"
#include "annulus/backend/cuda/strided.hpp"
#include "annulus/core/cuda/memory.hpp"

namespace annulus::cuda::detail {

/// Axes of up to four, in the order in which kernels pass over them: the one with the smallest stride is innermost.
template <class T, std::size_t N>
struct AxisPlan {
  std::array<std::size_t, N> order;
  Extents extents;

  explicit AxisPlan(TensorView<T, N, CudaMemory> const& view) {
    static_assert(N <= 4);
    auto const reach = [&](std::size_t a) {
      return view.extent(a) == 1 || view.stride(a) == 0 ? largest_reach : std::abs(view.stride(a));
    };
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return reach(a) > reach(b); });
    // The indices of an axis of stride 0 share their elements, so that one stands for all.
    for (std::size_t a = 0; a < N; ++a)
      extents.of[4 - N + a] =
          view.stride(order[a]) == 0 ? std::min(view.extent(order[a]), Index{1}) : view.extent(order[a]);
  }

  /// A view of equal extents, with its axes in this order.
  template <class U>
  Strided<U, 4> of(TensorView<U, N, CudaMemory> const& view) const {
    Strided<U, 4> result{view.data(), {}};
    for (std::size_t a = 0; a < N; ++a) result.strides[4 - N + a] = view.stride(order[a]);
    return result;
  }

 private:
  static constexpr Index largest_reach = annulus::detail::largest_index;
};

/// The same elements by their type in device code.
template <class T>
Strided<DeviceElementOf<T>, 4> in_device(Strided<T, 4> const& view) {
  Strided<DeviceElementOf<T>, 4> result{reinterpret_cast<DeviceElementOf<T>*>(view.data), {}};
  std::copy_n(view.strides, 4, result.strides);
  return result;
}

/// True if elements of T can be taken 16 bytes at once.
template <class T>
bool has_wide_cells(Strided<T, 4> const& view) {
  constexpr Index many = 16 / static_cast<Index>(sizeof(T));
  bool wide = view.strides[3] == 1 && reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0;
  for (int a = 0; a < 3; ++a) wide = wide && view.strides[a] % many == 0;
  return wide;
}

/// The elements as cells of `Bytes` bytes, a multiple of an element's.
template <int Bytes, class T>
auto cells(Strided<T, 4> const& view) {
  using Of = std::conditional_t<std::is_const_v<T>, Cell<Bytes> const, Cell<Bytes>>;
  constexpr Index many = Bytes / static_cast<Index>(sizeof(T));
  Strided<Of, 4> result{reinterpret_cast<Of*>(view.data), {}};
  for (int a = 0; a < 3; ++a) result.strides[a] = view.strides[a] / many;
  result.strides[3] = many == 1 ? view.strides[3] : 1;
  return result;
}

/// The innermost extent in cells of 16 bytes, if it is a whole number of them; otherwise 0.
template <class T>
Extents wide_extents(Extents extents) {
  constexpr Index many = 16 / static_cast<Index>(sizeof(T));
  extents.of[3] = extents.of[3] % many == 0 ? extents.of[3] / many : 0;
  return extents;
}

template <class T, std::size_t N>
void copy_elements(cudaStream_t stream, TensorView<T const, N, CudaMemory> const& from,
                   TensorView<T, N, CudaMemory> const& to) {
  AxisPlan<T, N> const plan(to);
  auto const source = plan.of(from);
  auto const target = plan.of(to);
  Extents const wide = wide_extents<T>(plan.extents);
  if (wide.of[3] > 0 && has_wide_cells(source) && has_wide_cells(target))
    copy<16>(stream, wide, cells<16>(source), cells<16>(target));
  else
    copy<static_cast<int>(sizeof(T))>(stream, plan.extents, cells<sizeof(T)>(source), cells<sizeof(T)>(target));
}

template <class T, std::size_t N>
void clear_elements(cudaStream_t stream, TensorView<T, N, CudaMemory> const& view) {
  AxisPlan<T, N> const plan(view);
  auto const target = plan.of(view);
  Extents const wide = wide_extents<T>(plan.extents);
  if (wide.of[3] > 0 && has_wide_cells(target))
    clear<16>(stream, wide, cells<16>(target));
  else
    clear<static_cast<int>(sizeof(T))>(stream, plan.extents, cells<sizeof(T)>(target));
}

template <class A, class T, std::size_t N>
void convert_elements(cudaStream_t stream, TensorView<A const, N, CudaMemory> const& from,
                      TensorView<T, N, CudaMemory> const& to) {
  AxisPlan<T, N> const plan(to);
  convert(stream, plan.extents, plan.of(from), in_device(plan.of(to)));
}

template <class A, std::size_t N>
void add_elements(cudaStream_t stream, TensorView<A, N, CudaMemory> const& into,
                  TensorView<A const, N, CudaMemory> const& from) {
  AxisPlan<A, N> const plan(into);
  add(stream, plan.extents, plan.of(into), plan.of(from));
}

}  // namespace annulus::cuda::detail
