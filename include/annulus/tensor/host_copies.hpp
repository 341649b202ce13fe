#pragma once
// Copies between host tensors and tensors in the memory of a device.

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

/// Host memory itself: nothing is copied.
template <>
struct HostCopies<HostMemory> {
  /// The tensor that is given.
  template <class X>
  static X&& to_space(X&& x) {
    return std::forward<X>(x);
  }
  /// The same.
  template <class X>
  static X&& to_host(X&& x) {
    return std::forward<X>(x);
  }

  /// The queue of host memory, on which work is done at once.
  struct OwnedQueue {
    HostMemory::Queue queue{};  ///< the queue
  };
};

namespace detail {

/// True if host tensors can be copied to the space.
template <class Space>
concept CopiedFromHost = requires {
  typename HostCopies<Space>::OwnedQueue;
};

/// A host tensor with the elements of a tensor, in the same axis order: the tensor itself if it is one.
template <TensorLike X>
decltype(auto) on_host(X const& x) {
  return HostCopies<SpaceOf<X>>::to_host(x);
}
template <class X>
auto on_host(InAxisOrder<X> const& x) {
  return with_axes(on_host(x.tensor), x.order);
}

}  // namespace detail
}  // namespace annulus
