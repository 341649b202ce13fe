#pragma once
// Benchmark case of a ring: a case of self-attention and its sharding.

#include <annulus/sharding/sharding.hpp>

#include <string>

#include "attention/attention_case.hpp"

namespace annulus_bench {

struct RingCase {
  AttentionCase attention{};  ///< tokens: of all ranks; threads: per rank, 0: the cores that other ranks do not use
  annulus::Sharding sharding{};
  std::string sharding_name = "contiguous";

  std::string name() const { return sharding_name + "/" + attention.name(); }
};

}  // namespace annulus_bench
