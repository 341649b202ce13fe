#pragma once
// Memory and events of GPUs that processes of one node share. Needs the CUDA toolkit; not part of the umbrella.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "annulus/core/cuda/driver.hpp"
#include "annulus/core/cuda/memory.hpp"

namespace annulus::cuda::detail {

/// A place in memory of a GPU, as another process finds it. Plain data.
struct MemoryAddress {
  cudaIpcMemHandle_t allocation;
  std::uint64_t offset;  ///< from the first byte of the allocation
};

/// The address of memory that this process has allocated with cudaMalloc. Throws Error for any other memory: managed
/// memory and pools of cudaMallocAsync have no such address.
inline MemoryAddress address_of(void const* data) {
  using Find = int(unsigned long long* first, std::size_t* bytes, unsigned long long place);  // cuMemGetAddressRange
  static auto const find = driver_function<Find*>("cuMemGetAddressRange", 12000);
  auto const place = static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(data));
  unsigned long long first = 0;
  std::size_t bytes = 0;
  if (int const error = find(&first, &bytes, place); error != 0)
    throw Error(annulus::detail::message_of("cuMemGetAddressRange: error ", error, ": no memory of a GPU"));
  MemoryAddress address{{}, place - first};
  void* const allocation = reinterpret_cast<void*>(static_cast<std::uintptr_t>(first));
  check(cudaIpcGetMemHandle(&address.allocation, allocation), "cudaIpcGetMemHandle");
  return address;
}

/// Closes memory of another process, which may have freed it: that is no error of the next call.
inline void close_memory(void* data) noexcept {
  if (cudaIpcCloseMemHandle(data) != cudaSuccess) cudaGetLastError();
}

/// Memory of other processes, opened for the GPU that is current then. Each allocation is opened once, and closed at
/// the end, or when it has not been used for long; the process that has allocated it must not free it before.
class OpenedMemory {
 public:
  /// The first byte at the address, in this process. Throws Error if the process has allocated the memory itself, or
  /// the memory is gone.
  std::byte* open(MemoryAddress const& address) { return first_byte(address.allocation) + address.offset; }

  /// Closes the memory that has not been opened since this was called 8 times: it may have been freed. No work uses it.
  void close_unused() {
    constexpr int longest = 8;
    std::erase_if(opened_, [](Opened& one) { return ++one.unused > longest; });
  }

 private:
  struct Opened {
    cudaIpcMemHandle_t allocation;
    Owned<void*, &close_memory> data;
    int unused = 0;  ///< calls of close_unused
  };

  std::byte* first_byte(cudaIpcMemHandle_t const& allocation) {
    for (Opened& one : opened_)
      if (std::memcmp(&one.allocation, &allocation, sizeof allocation) == 0) {
        one.unused = 0;
        return bytes_of(one);
      }
    opened_.reserve(opened_.size() + 1);  // so that no opened memory is lost
    void* data = nullptr;
    check(cudaIpcOpenMemHandle(&data, allocation, cudaIpcMemLazyEnablePeerAccess), "cudaIpcOpenMemHandle");
    opened_.push_back({allocation, Owned<void*, &close_memory>(data)});
    return bytes_of(opened_.back());
  }
  static std::byte* bytes_of(Opened const& one) { return static_cast<std::byte*>(static_cast<void*>(one.data)); }

  std::vector<Opened> opened_;
};

/// An event of the current GPU on which streams of other processes can wait, too. It must outlive their use of it.
inline Event make_interprocess_event() { return make_event(cudaEventInterprocess | cudaEventDisableTiming); }

inline cudaIpcEventHandle_t address_of(Event const& event) {
  cudaIpcEventHandle_t handle{};
  check(cudaIpcGetEventHandle(&handle, event), "cudaIpcGetEventHandle");
  return handle;
}
/// An event that another process has made. Throws Error if this process has made it.
inline Event open_event(cudaIpcEventHandle_t const& handle) {
  cudaEvent_t event = nullptr;
  check(cudaIpcOpenEventHandle(&event, handle), "cudaIpcOpenEventHandle");
  return Event(event);
}

}  // namespace annulus::cuda::detail
