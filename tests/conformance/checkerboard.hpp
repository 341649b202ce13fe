#pragma once
// A predicate of the backend suite.

#include <cstdint>

namespace annulus_test::backend_cases {

/// A checkerboard of blocks, which no other mask rule can express.
struct Checkerboard {
  constexpr bool operator()(std::int64_t batch, std::int64_t head, std::int64_t query, std::int64_t key) const {
    return (batch + head + query / 2 + key / 3) % 2 == 0;
  }
};

}  // namespace annulus_test::backend_cases
