#pragma once
// What an instruction takes when it waits for nothing.

#include "annulus/backend/nki/program/operators.hpp"

namespace annulus::nki {

/// Seconds.
struct InstructionCost {
  Engine engine = Engine::tensor;
  double seconds = 0;     ///< how long the engine works; DMA and collectives: how long data move
  double latency = 0;     ///< DMA and collectives: before data move
  double issue = 0;       ///< DMA: how long a descriptor generator works, before the latency
  double share = 1;       ///< DMA: which part of the core's DMA bandwidth it takes while data move
  double dependent = 0;   ///< added where it needs what its own engine has just written
  bool estimate = false;  ///< rests on an inferred constant or formula

  bool operator==(InstructionCost const&) const = default;
  /// How long it takes alone.
  double alone() const { return issue + latency + seconds; }
};

}  // namespace annulus::nki
