#pragma once
// Memory-space tags. A tensor, a backend and a communicator each name a space; a call compiles only if the three agree.

namespace annulus {

/// Memory that the CPU accesses through ordinary pointers.
struct HostMemory {};

}  // namespace annulus
