#pragma once
// Cost of an instruction that waits for nothing.

#include "annulus/nki/program/operators.hpp"

namespace annulus::nki {

/// All times in seconds.
struct InstructionCost {
  Engine engine = Engine::tensor;
  double seconds = 0;     ///< busy time of the engine; DMA and collectives: transfer time
  double latency = 0;     ///< DMA and collectives: time before the transfer
  double issue = 0;       ///< DMA: busy time of a descriptor generator, before the latency
  double share = 1;       ///< DMA: fraction of the core's DMA bandwidth used during the transfer
  double dependent = 0;   ///< added if it needs what the same engine has just written
  bool estimate = false;  ///< depends on an inferred constant or formula

  bool operator==(InstructionCost const&) const = default;
  /// Total duration without contention.
  double alone() const { return issue + latency + seconds; }
};

}  // namespace annulus::nki
