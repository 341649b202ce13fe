#pragma once
// Anonymous memory that other processes of this node can map. It has no file name, so nothing is left behind however a
// process ends, and it lives until the last process that has mapped it unmaps it.

#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <utility>

namespace annulus::detail {

/// Process and file descriptor through which another process maps the memory.
struct MappingAddress {
  std::int32_t process = -1, descriptor = -1;
  std::uint64_t bytes = 0;  ///< 0: no memory
};

/// A mapping of such memory, in the process that created it or in another one.
class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept { *this = std::move(other); }
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(address_, other.address_);
    std::swap(owned_, other.owned_);
    return *this;
  }
  ~SharedMapping() { unmap(); }

  /// New memory of `bytes` bytes, all zero. Empty if the system has no such memory, or no more of it.
  static SharedMapping make(std::uint64_t bytes) {
    SharedMapping mapping;
#if defined(__linux__)
    int const descriptor = ::memfd_create("annulus", MFD_CLOEXEC);
    if (descriptor < 0) return mapping;
    mapping.owned_ = true;
    mapping.address_ = {static_cast<std::int32_t>(::getpid()), descriptor, bytes};
    if (::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0) mapping.map(descriptor);
#else
    static_cast<void>(bytes);
#endif
    return mapping;
  }

  /// Memory that another process has created. Empty if it cannot be mapped: on another node, in another container, or
  /// gone.
  static SharedMapping open(MappingAddress const& address) {
    SharedMapping mapping;
#if defined(__linux__)
    if (address.bytes == 0) return mapping;
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", static_cast<int>(address.process),
                  static_cast<int>(address.descriptor));
    int const descriptor = ::open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return mapping;
    mapping.address_ = address;
    // The address may refer to a file of an unrelated process on this node: a shorter one would fault when read.
    if (::lseek(descriptor, 0, SEEK_END) == static_cast<off_t>(address.bytes)) mapping.map(descriptor);
    ::close(descriptor);
#else
    static_cast<void>(address);
#endif
    return mapping;
  }

  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  MappingAddress const& address() const { return address_; }

 private:
#if defined(__linux__)
  void map(int descriptor) {
    auto const bytes = static_cast<std::size_t>(address_.bytes);
    void* const place = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (place == MAP_FAILED) return;
    // Large pages, where the system grants them for shared memory, cause fewer page faults.
    ::madvise(place, bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(place);
  }
#endif
  void unmap() {
#if defined(__linux__)
    if (data_) ::munmap(data_, static_cast<std::size_t>(address_.bytes));
    if (owned_) ::close(address_.descriptor);
#endif
  }

  std::byte* data_ = nullptr;
  MappingAddress address_{};
  bool owned_ = false;
};

}  // namespace annulus::detail
