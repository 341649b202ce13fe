#pragma once
// Exchange of tensors with other libraries through DLPack, https://dmlc.github.io/dlpack (its C interface, versions 0.2
// to 1.x): views of their tensors, and tensors that are handed to them. The structures are those of the caller's
// dlpack.h, which this header does not include. For memory of GPUs see also tensor/cuda/dlpack.hpp.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "annulus/core/scalar.hpp"
#include "annulus/tensor/tensor_like.hpp"
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

/// DLManagedTensor or DLManagedTensorVersioned of the caller's dlpack.h.
template <class M>
concept DLPackManagedTensor = requires(M& managed, void (*deleter)(M*)) {
  requires DLPackTensor<std::remove_cvref_t<decltype(managed.dl_tensor)>>;
  managed.manager_ctx = nullptr;
  managed.deleter = deleter;
};

namespace detail {

/// M is a DLManagedTensorVersioned, which has flags.
template <class M>
concept DLPackVersioned = requires(M const& managed) {
  managed.version.major;
  managed.flags;
};
/// The major version of DLPack, whose structures have one layout, and DLPACK_FLAG_BITMASK_READ_ONLY.
inline constexpr unsigned dlpack_major_version = 1, dlpack_read_only = 1;

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

/// The same for the tensor of a DLManagedTensor or DLManagedTensorVersioned, whose deleter is left to the caller. Also
/// throws UnsupportedError for another major version than 1, and if the tensor is read-only and T is not const.
template <class T, std::size_t N = 4, class Space = HostMemory, DLPackManagedTensor M>
TensorView<T, N, Space> dlpack_view(M const& managed, std::string_view name = "the DLPack tensor") {
  if constexpr (detail::DLPackVersioned<M>) {
    detail::check<UnsupportedError>(managed.version.major == detail::dlpack_major_version, name, " is of DLPack ",
                                    managed.version.major, "; accepted: ", detail::dlpack_major_version);
    detail::check<UnsupportedError>(std::is_const_v<T> || (managed.flags & detail::dlpack_read_only) == 0, name,
                                    " is read-only; accepted: a view of const elements");
  }
  return dlpack_view<T, N, Space>(managed.dl_tensor, name);
}

namespace detail {

/// A managed tensor and what it refers to.
template <class M, TensorLike X>
struct DLPackOwner {
  X tensor;  ///< an owner of elements, or a view
  std::array<std::int64_t, rank_of<X>> shape{}, strides{};
  M managed{};

  static void destroy(M* managed) { delete static_cast<DLPackOwner*>(managed->manager_ctx); }
};

/// to_dlpack for memory of this DLDevice.
template <class M, TensorLike X>
M* hand_out(X tensor, int device_type, int device_id) {
  using Owner = DLPackOwner<M, X>;
  std::unique_ptr<Owner> owner(new Owner{std::move(tensor)});
  auto const view = view_of(owner->tensor);
  require_addressable("the tensor for DLPack", view);
  using Element = typename decltype(view)::element_type;
  using E = std::remove_const_t<Element>;
  static_assert(Scalar<E> || std::integral<E>, "annulus: DLPack has no type code for these elements");
  M& managed = owner->managed;
  if constexpr (DLPackVersioned<M>) {
    managed.version = {dlpack_major_version, 2};
    managed.flags = std::is_const_v<Element> ? dlpack_read_only : 0;
  } else {
    static_assert(!std::is_const_v<Element>,
                  "annulus: DLManagedTensor cannot say that a tensor is read-only; use DLManagedTensorVersioned");
  }
  for (std::size_t a = 0; a < rank_of<X>; ++a) {
    owner->shape[a] = view.extent(a);
    owner->strides[a] = view.stride(a);
  }
  auto& described = managed.dl_tensor;
  described.data = view.size() > 0 ? const_cast<E*>(view.data()) : nullptr;
  described.device.device_type = static_cast<decltype(described.device.device_type)>(device_type);
  described.device.device_id = device_id;
  described.ndim = static_cast<int>(rank_of<X>);
  described.dtype = {dlpack_code<E>, 8 * sizeof(E), 1};
  described.shape = owner->shape.data();
  described.strides = owner->strides.data();
  managed.manager_ctx = owner.get();
  managed.deleter = &Owner::destroy;
  return &owner.release()->managed;
}

}  // namespace detail

/// Hands a tensor to another library: M is its DLManagedTensor or, where elements are const, DLManagedTensorVersioned,
/// of version 1.2, so that strides are always given. A tensor is moved into it, and freed by its deleter, which must be
/// called once; a view, or bhsd(x) of a named x, is handed out without ownership: its memory must outlive the use of
/// the result. Axes are in attention order. Throws ShapeError for a view of elements without data.
template <DLPackManagedTensor M, TensorLike X>
requires std::same_as<SpaceOf<X>, HostMemory>
[[nodiscard]] M* to_dlpack(X tensor) { return detail::hand_out<M>(std::move(tensor), 1, 0); }

}  // namespace annulus
