#pragma once
// Elements of tensors in any memory space that the host reads and writes, behind the work of a backend.

#include <concepts>
#include <cstddef>

#include "annulus/attention/collectives.hpp"

namespace annulus::interop::detail {

/// A host tensor with the elements of a tensor, when the work on the backend's queue is done: in host memory the view
/// itself. Of other memory HostCopies copies dense tensors, to which the backend copies any strides.
template <class B, class T, std::size_t N>
auto read_on_host(B& backend, TensorView<T const, N, typename B::memory_space> from) {
  if constexpr (std::same_as<typename B::memory_space, HostMemory>) {
    return from;
  } else {
    using Copies = HostCopies<typename B::memory_space>;
    auto dense = Copies::to_space(annulus::detail::eigen_tensor<T, N, Eigen::RowMajor>(from.extents()));
    backend.copy(from, view_of(dense));
    backend.synchronize();
    return Copies::to_host(dense);
  }
}

/// Calls write(view of host memory), and returns when the elements that it writes are those of `to`.
template <class B, class T, std::size_t N, class Write>
void write_on_host(B& backend, TensorView<T, N, typename B::memory_space> to, Write&& write) {
  if constexpr (std::same_as<typename B::memory_space, HostMemory>) {
    write(to);
  } else {
    auto host = annulus::detail::eigen_tensor<T, N, Eigen::RowMajor>(to.extents());
    write(view_of(host));
    auto const dense = HostCopies<typename B::memory_space>::to_space(host);
    backend.copy(view_of(dense), to);
    backend.synchronize();
  }
}

}  // namespace annulus::interop::detail
