#pragma once
// Tensor maps: how the copy engine finds boxes of a tensor. Encoded on the host, passed to kernels by value.

#include <cuda.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <type_traits>

#include "annulus/backend/cuda/step_arguments.hpp"
#include "annulus/core/cuda/driver.hpp"
#include "annulus/core/cuda/memory.hpp"

namespace annulus::cuda::detail::hopper {

/// The driver's encoder.
inline auto tensor_map_encoder() {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static auto const encoder = driver_function<Encode>("cuTensorMapEncodeTiled", 12000);
  return encoder;
}

/// A map of `Rank` dimensions, the first of which has unit stride; strides, in bytes, are those of the others. Boxes
/// are swizzled by 128 bytes; what lies outside the tensor reads as 0 and is not written.
template <std::size_t Rank>
CUtensorMap encode_map(CUtensorMapDataType type, void const* data, std::array<cuuint64_t, Rank> const& extents,
                       std::array<cuuint64_t, Rank - 1> strides, std::array<cuuint32_t, Rank> const& box) {
  std::array<cuuint32_t, Rank> steps;
  steps.fill(1);
  for (std::size_t i = 0; i + 1 < Rank; ++i)
    if (extents[i + 1] == 1) strides[i] = 16;  // of no meaning, but checked
  CUtensorMap map{};
  CUresult const result =
      tensor_map_encoder()(&map, type, Rank, const_cast<void*>(data), extents.data(), strides.data(), box.data(),
                           steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw Error(annulus::detail::message_of("cuTensorMapEncodeTiled: CUDA error ", static_cast<int>(result)));
  return map;
}

/// Of operands [batch, rows, heads, columns]: boxes of 64 columns of `box_rows` rows of a head.
template <class T>
CUtensorMap operand_map(StridedRows<T const> const& operand, int batch, int rows, int heads, int columns,
                        int box_rows) {
  constexpr auto type = std::is_same_v<T, __half> ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  auto const bytes = [](long long stride) { return static_cast<cuuint64_t>(stride) * sizeof(T); };
  auto const extent = [](int count) { return static_cast<cuuint64_t>(count); };
  return encode_map<4>(type, operand.data, {extent(columns), extent(rows), extent(heads), extent(batch)},
                       {bytes(operand.row), bytes(operand.head), bytes(operand.batch)},
                       {64, static_cast<cuuint32_t>(box_rows), 1, 1});
}

/// Of fp32 sums [batch, rows, heads, columns]: boxes [columns / 32][box_rows][32].
inline CUtensorMap sum_map(StridedRows<float> const& sum, int batch, int rows, int heads, int columns, int box_rows) {
  auto const bytes = [](long long stride) { return static_cast<cuuint64_t>(stride) * sizeof(float); };
  auto const extent = [](int count) { return static_cast<cuuint64_t>(count); };
  return encode_map<5>(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, sum.data,
                       {32, extent(rows), extent(columns / 32), extent(heads), extent(batch)},
                       {bytes(sum.row), 128, bytes(sum.head), bytes(sum.batch)},
                       {32, static_cast<cuuint32_t>(box_rows), static_cast<cuuint32_t>(columns / 32), 1, 1});
}

}  // namespace annulus::cuda::detail::hopper
