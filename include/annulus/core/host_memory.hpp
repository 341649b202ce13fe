#pragma once
// Aligned buffers in host memory.

#include <cstddef>
#include <memory>
#include <new>

#include "annulus/core/index.hpp"
#include "annulus/core/memory_space.hpp"

namespace annulus {

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
