#pragma once
// Memory in use after some, and after all, of many calls of varying shapes on one ring.

#include <annulus/attention/ring_attention.hpp>
#include <annulus/backend/reference/reference.hpp>
#include <array>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <span>
#include <vector>

#include "support/allocation_counts.hpp"

#if defined(__linux__)
#include <fcntl.h>
#include <unistd.h>
#endif

namespace annulus_test {

/// Memory in use by the process.
struct MemoryUse {
  long allocations = 0, bytes = 0;  ///< not freed yet
  long resident = 0;                ///< resident bytes of the process; 0 if the system does not report them
};

inline MemoryUse memory_use() {
  MemoryUse use{live_allocations, live_bytes, 0};
#if defined(__linux__)
  // Without a stream, whose buffer another rank would count.
  if (int const file = open("/proc/self/statm", O_RDONLY); file >= 0) {
    char text[128] = {};
    long all = 0, resident = 0;
    if (read(file, text, sizeof text - 1) > 0 && std::sscanf(text, "%ld %ld", &all, &resident) == 2)
      use.resident = resident * 4096;
    close(file);
  }
#endif
  return use;
}

/// Memory of the process after `some` calls and after `all`, both multiples of 40. Ten shapes alternate, on
/// RingAttention objects that are made for each call and on ones that are kept.
template <class Ring>
std::array<MemoryUse, 2> memory_of_calls(Ring& ring, int some, int all) {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  annulus::ReferenceBackend backend;
  std::vector<annulus::RingAttention<Ring, annulus::ReferenceBackend>> kept;
  for (int shape = 0; shape < 10; ++shape)
    kept.emplace_back(ring, backend, annulus::Options{.mask = annulus::causal()});
  std::vector<std::byte> records(static_cast<std::size_t>(ring.size()));
  auto const synchronize_ranks = [&] {
    std::byte const mine{};
    ring.all_gather({&mine, 1}, records);
  };
  std::array<MemoryUse, 2> uses{};
  for (int call = 0; call < all;) {
    int const shape = call % 10;
    Tensor q(1, 1 + shape % 4, 2, 4 + shape), k(1, 1 + shape % 4, 1, 4 + shape);
    q.setConstant(0.5f), k.setConstant(0.25f);
    std::optional<annulus::RingAttention<Ring, annulus::ReferenceBackend>> made;
    if (call / 10 % 2 == 0) made.emplace(ring, backend, annulus::Options{.mask = annulus::causal()});
    auto& attention = made ? *made : kept[static_cast<std::size_t>(shape)];
    auto const forward = attention.forward(q, k, k);
    if (call / 20 % 2 == 0) attention.backward(q, forward, q, k, k);
    made.reset();
    ++call;
    if (call != some && call != all) continue;
    synchronize_ranks();
    uses[call == some ? 0 : 1] = memory_use();
    synchronize_ranks();
  }
  return uses;
}

}  // namespace annulus_test
