#pragma once
// Views of tensors of other libraries through DLPack, https://dmlc.github.io/dlpack (its C interface, versions 0.2 to
// 1.x). The structures are those of the caller's dlpack.h, which this header does not include.

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "annulus/core/scalar.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus {

/// DLTensor of the caller's dlpack.h.
template <class D>
concept DLPackTensor = requires(D const& tensor) {
  tensor.data;
  tensor.device.device_type;
  tensor.device.device_id;
  { tensor.ndim } -> std::convertible_to<int>;
  tensor.dtype.code;
  tensor.dtype.bits;
  tensor.dtype.lanes;
  { tensor.shape } -> std::convertible_to<std::int64_t const*>;
  { tensor.strides } -> std::convertible_to<std::int64_t const*>;
  { tensor.byte_offset } -> std::convertible_to<std::uint64_t>;
};

namespace detail {

/// DLDataTypeCode of an element type.
template <class T>
inline constexpr int dlpack_code = std::same_as<T, bool>              ? 6
                                   : std::same_as<T, Eigen::bfloat16> ? 4
                                   : Scalar<T>                        ? 2
                                   : std::is_signed_v<T>              ? 0
                                                                      : 1;

inline std::string dlpack_type_name(int code, int bits, int lanes) {
  constexpr std::array<char const*, 7> names{"int", "uint", "float", "opaque handle", "bfloat", "complex", "bool"};
  bool const known = code >= 0 && static_cast<std::size_t>(code) < names.size();
  return (known ? std::string(names[static_cast<std::size_t>(code)]) : message_of("type code ", code, " of ")) +
         message_of(bits, lanes == 1 ? "" : message_of(" x ", lanes));
}

/// DLDeviceType codes of memory that a space addresses: CPU and pinned, or CUDA and managed. A space of a device says
/// them in dlpack_devices.
template <class Space>
constexpr auto dlpack_devices() {
  if constexpr (requires { Space::dlpack_devices; })
    return Space::dlpack_devices;
  else
    return std::array<int, 2>{1, 3};
}

template <class Codes>
bool contains(Codes const& codes, int code) {
  for (int const one : codes)
    if (one == code) return true;
  return false;
}

}  // namespace detail

/// A view of the elements of a DLTensor, which must outlive it. T: element type, const for a read-only view: float,
/// double, Eigen::half, Eigen::bfloat16, bool or an integer type. N: number of axes, in the order of the tensor: see
/// bhsd() for tensors that are not [batch, sequence, heads, dim]. Space: HostMemory or that of a device. `name`: of the
/// tensor in errors. Tensors without strides are dense, row-major.
/// Throws ShapeError for another number of axes, UnsupportedError for another element type or device.
template <class T, std::size_t N = 4, class Space = HostMemory, DLPackTensor D>
TensorView<T, N, Space> dlpack_view(D const& tensor, std::string_view name = "the DLPack tensor") {
  using E = std::remove_const_t<T>;
  detail::check<ShapeError>(tensor.ndim == static_cast<int>(N), name, " has ", tensor.ndim, " axes; accepted: ", N);
  auto const code = static_cast<int>(tensor.dtype.code), bits = static_cast<int>(tensor.dtype.bits);
  auto const lanes = static_cast<int>(tensor.dtype.lanes);
  constexpr int accepted_code = detail::dlpack_code<E>, accepted_bits = 8 * static_cast<int>(sizeof(E));
  detail::check<UnsupportedError>(code == accepted_code && bits == accepted_bits && lanes == 1, name, " has elements ",
                                  detail::dlpack_type_name(code, bits, lanes),
                                  "; accepted: ", detail::dlpack_type_name(accepted_code, accepted_bits, 1));
  auto const device = static_cast<int>(tensor.device.device_type);
  constexpr auto devices = detail::dlpack_devices<Space>();
  detail::check<UnsupportedError>(detail::contains(devices, device), name, " is on a device of type ", device,
                                  "; accepted: ", devices, " (DLDeviceType)");
  std::array<Index, N> extents{}, strides{};
  for (std::size_t a = 0; a < N; ++a) extents[a] = static_cast<Index>(tensor.shape[a]);
  if (tensor.strides)
    for (std::size_t a = 0; a < N; ++a) strides[a] = static_cast<Index>(tensor.strides[a]);
  else
    strides = detail::row_major_strides(extents);
  auto* const first = static_cast<std::byte*>(tensor.data);
  auto* const data = first ? reinterpret_cast<T*>(first + tensor.byte_offset) : nullptr;
  TensorView<T, N, Space> const view(data, extents, strides);
  detail::require_addressable(name, view);
  return view;
}

}  // namespace annulus
