#pragma once
// Memory-space tag of the host, and aligned buffers there. A tensor, a backend and a communicator each name a space; a
// call compiles only if the three agree.

#include <cstddef>
#include <memory>
#include <new>

#include "annulus/core/index.hpp"

namespace annulus {

/// Memory that the CPU accesses through ordinary pointers.
struct HostMemory {};

namespace detail {

/// Bytes aligned to a cache line of 64 bytes. Throws std::bad_alloc.
class HostBuffer {
 public:
  HostBuffer() = default;
  explicit HostBuffer(Index bytes) : size_(bytes) {
    if (bytes > 0) data_.reset(static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), alignment)));
  }

  std::byte* data() const { return data_.get(); }
  Index size() const { return size_; }

 private:
  static constexpr std::align_val_t alignment{64};
  struct Free {
    void operator()(std::byte* data) const { ::operator delete(data, alignment); }
  };
  std::unique_ptr<std::byte, Free> data_;
  Index size_ = 0;
};

}  // namespace detail

}  // namespace annulus
