#pragma once
// Memory spaces: tags that a tensor, a backend and a communicator name, so that a call compiles only if the three
// agree. A space names its queue, the order of the work in it.

#include <concepts>
#include <type_traits>

namespace annulus {

/// Memory that the CPU accesses through ordinary pointers.
struct HostMemory {
  /// Empty: a call returns when its work is done.
  struct Queue {};
};

/// The order of the work in a memory space. One that is not empty has wait(), which returns when the work that is on
/// the queue has been done, and a copy of it is the same queue.
template <class Space>
using QueueOf = typename Space::Queue;

/// A type of queues.
template <class Q>
concept WorkQueue = std::is_empty_v<Q> ||(std::copyable<Q>&& requires(Q const& queue) { queue.wait(); });

/// True if calls in this memory space return when their work is done, so that no queue need be passed.
template <class Space>
constexpr bool works_at_once = requires {
  requires std::is_empty_v<QueueOf<Space>>;
};

}  // namespace annulus
