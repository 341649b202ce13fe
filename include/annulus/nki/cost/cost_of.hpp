#pragma once
// Cost of each instruction: engine, seconds and latency.

#include "annulus/nki/cost/compute_cycles.hpp"
#include "annulus/nki/cost/instruction_cost.hpp"
#include "annulus/nki/cost/transfer_cost.hpp"
#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/program/program.hpp"

namespace annulus::nki {

namespace cost_of_detail {

inline double permuted_bytes(Program const& program, Instruction const& instruction) {
  auto const* permute = std::get_if<CollectivePermute>(&instruction);
  Access const& dst = permute ? permute->dst : std::get<CollectivePermuteReduce>(instruction).dst;
  return static_cast<double>(dst.size() * bytes_of(program.buffer(dst).type));
}

}  // namespace cost_of_detail

/// The cost of an instruction that waits for nothing. It is the same for every execution, because shapes are constant.
inline InstructionCost cost_of(Program const& program, Hardware const& hardware, Instruction const& instruction) {
  Costs const& costs = hardware.costs;
  Engine const engine = engine_of(instruction);
  if (auto const* copy = std::get_if<DmaCopy>(&instruction))
    return dma_cost(program, costs, copy->dst, copy->src, false);
  if (auto const* transpose = std::get_if<DmaTranspose>(&instruction))
    return dma_cost(program, costs, transpose->dst, transpose->src, true);
  if (engine == Engine::collective)  // I
    return {.engine = engine,
            .seconds = cost_of_detail::permuted_bytes(program, instruction) / costs.permute_rate,
            .latency = costs.permute_latency,
            .estimate = true};
  if (std::holds_alternative<CoreBarrier>(instruction))  // I
    return {.engine = engine, .seconds = costs.barrier, .estimate = true};
  if (std::holds_alternative<ProcessingRank>(instruction))  // I
    return {.engine = engine, .seconds = costs.register_load, .estimate = true};
  auto const cycles = std::visit(ComputeCycles(program, hardware), instruction);
  double const clock = costs.clock[static_cast<std::size_t>(engine)];
  return {.engine = engine,
          .seconds = cycles.count / clock,
          .dependent = cycles.tiny ? costs.dependent_tiny_instruction / clock : 0,
          .estimate = cycles.estimate};
}

}  // namespace annulus::nki
