#pragma once
// Memory that other processes of this node can map. It has no name: nothing is left behind whatever ends a process, and
// it lives until the last process that has mapped it unmaps it.

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

/// Where another process finds a segment.
struct MappingAddress {
  std::int32_t process = -1, descriptor = -1;
  std::uint64_t bytes = 0;  ///< 0: there is none
};

/// A mapping, by the process that made the segment or by another one.
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

  /// New, all zero. Empty where the system has no such memory or no more of it.
  static SharedMapping make(std::uint64_t bytes) {
    SharedMapping segment;
#if defined(__linux__)
    int const descriptor = ::memfd_create("annulus", MFD_CLOEXEC);
    if (descriptor < 0) return segment;
    segment.owned_ = true;
    segment.address_ = {static_cast<std::int32_t>(::getpid()), descriptor, bytes};
    if (::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0) segment.map(descriptor);
#else
    static_cast<void>(bytes);
#endif
    return segment;
  }

  /// What another process has made. Empty where it cannot be reached: on another node, in another container, or gone.
  static SharedMapping open(MappingAddress const& address) {
    SharedMapping segment;
#if defined(__linux__)
    if (address.bytes == 0) return segment;
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", static_cast<int>(address.process),
                  static_cast<int>(address.descriptor));
    int const descriptor = ::open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return segment;
    segment.address_ = address;
    // The number may be that of an unrelated process on this node: a shorter file would fault when read.
    if (::lseek(descriptor, 0, SEEK_END) == static_cast<off_t>(address.bytes)) segment.map(descriptor);
    ::close(descriptor);
#else
    static_cast<void>(address);
#endif
    return segment;
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
    // Fewer page faults, where the system gives shared memory large pages.
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
