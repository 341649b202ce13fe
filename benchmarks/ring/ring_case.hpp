#pragma once
// What is measured of a ring: a case of self-attention, and how it is spread on the ranks.

#include <annulus/sharding/sharding.hpp>

#include <string>

#include "attention/attention_case.hpp"

namespace annulus_bench {

struct RingCase {
  AttentionCase attention{};  ///< tokens: of all ranks; threads: of a rank, 0: the cores that other ranks leave
  annulus::Sharding sharding{};
  std::string sharding_name = "contiguous";

  std::string name() const { return sharding_name + "/" + attention.name(); }
};

}  // namespace annulus_bench
