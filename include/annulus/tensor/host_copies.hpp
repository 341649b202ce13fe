#pragma once
// Copies between host tensors and tensors in the memory of a device.

#include <type_traits>
#include <utility>

#include "annulus/core/memory_space.hpp"
#include "annulus/tensor/tensor_like.hpp"

namespace annulus {

/// Customisation point of a memory space of a device, with which scatter and gather take host tensors there. Specialise
/// it with these members:
///   static to_space(x)       a new tensor in the space, dense, with the elements of a host tensor
///   static to_host(x)        a new host tensor with the elements of such a tensor
///   static to_host(x, view)  the same, to a view of host memory of equal extents
///   OwnedQueue               a movable owner of a queue, `queue`
template <class Space>
struct HostCopies;

namespace detail {

/// True if host tensors can be copied to the space: also for host memory itself.
template <class Space>
concept CopiedFromHost = std::same_as<Space, HostMemory> || requires {
  typename HostCopies<Space>::OwnedQueue;
};

/// A tensor with the elements of a host tensor in memory `Space`: itself in host memory.
template <class Space, class X>
auto in_space(X x) {
  if constexpr (std::same_as<Space, HostMemory>)
    return x;
  else
    return HostCopies<Space>::to_space(x);
}

/// A host tensor with the elements of a tensor, in the same axis order: the tensor itself if it is one.
template <TensorLike X>
decltype(auto) on_host(X const& x) {
  if constexpr (std::same_as<SpaceOf<X>, HostMemory>)
    return (x);
  else
    return HostCopies<SpaceOf<X>>::to_host(x);
}
template <class X>
auto on_host(InAxisOrder<X> const& x) {
  return with_axes(on_host(x.tensor), x.order);
}

}  // namespace detail
}  // namespace annulus
