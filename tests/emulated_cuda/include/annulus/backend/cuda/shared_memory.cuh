#pragma once
// Dynamic shared memory of the block that runs, in place of the library's header of this name.

namespace annulus::cuda::detail {

/// As many bytes as an H100 has.
inline void* shared_memory() {
  alignas(16) static unsigned char bytes[232448];
  return bytes;
}

}  // namespace annulus::cuda::detail
