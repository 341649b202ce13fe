#pragma once
// Instruction, byte and multiply-add counts of a program, computed without executing it. Shapes do not depend on loop
// variables, so a loop counts as its body times its trip count.

#include <array>
#include <numeric>

#include "annulus/nki/program/program.hpp"

namespace annulus::nki {

/// Counts of one core, or the sum over both.
struct Counts {
  static constexpr std::size_t kinds = std::variant_size_v<Instruction>;

  std::array<Index, kinds> executed{};  ///< by index of the kind in Instruction
  Index hbm_read = 0;                   ///< bytes by DMA; those of collectives are in `permuted`
  Index hbm_written = 0;
  Index on_chip_read = 0;     ///< bytes of SBUF and PSUM operands of all engines and DMA
  Index on_chip_written = 0;  ///< an accumulating matmul both reads and writes its dst
  Index permuted = 0;         ///< bytes sent to the successor; counted on core 0, as both cores of a pair send together
  Index multiply_adds = 0;    ///< K * M * N of the matmuls; a transpose has none

  bool operator==(Counts const&) const = default;

  template <class I>
  Index of() const {
    return executed[Instruction(std::in_place_type<I>).index()];
  }
  Index instructions() const { return std::accumulate(executed.begin(), executed.end(), Index{0}); }

  Counts& operator+=(Counts const& other) {
    for (std::size_t kind = 0; kind < kinds; ++kind) executed[kind] += other.executed[kind];
    hbm_read += other.hbm_read;
    hbm_written += other.hbm_written;
    on_chip_read += other.on_chip_read;
    on_chip_written += other.on_chip_written;
    permuted += other.permuted;
    multiply_adds += other.multiply_adds;
    return *this;
  }
};

namespace count_detail {

inline bool is_collective(Instruction const& instruction) { return engine_of(instruction) == Engine::collective; }

inline void add(Program const& program, int core, Instruction const& instruction, Index times, Counts& counts) {
  counts.executed[instruction.index()] += times;
  if (is_collective(instruction)) {
    if (core == 0)
      for_each_access(instruction, [&](std::string_view, Use use, Access const& access) {
        if (use == Use::write) counts.permuted += times * access.size() * bytes_of(program.buffer(access).type);
      });
    return;
  }
  if (std::holds_alternative<CoreBarrier>(instruction)) return;
  for_each_access(instruction, [&](std::string_view, Use use, Access const& access) {
    Buffer const& buffer = program.buffer(access);
    Index const bytes = times * access.size() * bytes_of(buffer.type);
    if (use != Use::write) (on_chip(buffer.memory) ? counts.on_chip_read : counts.hbm_read) += bytes;
    if (use != Use::read) (on_chip(buffer.memory) ? counts.on_chip_written : counts.hbm_written) += bytes;
  });
  if (auto const* product = std::get_if<MatMul>(&instruction))
    counts.multiply_adds += times * product->stationary.size() * product->moving.elements();
}

inline void add(Program const& program, int core, Body const& body, Index times, Counts& counts) {
  for (Node const& node : body) {
    if (auto const* instruction = node.as<Instruction>()) {
      add(program, core, *instruction, times, counts);
    } else if (auto const* loop = node.as<Loop>()) {
      if (loop->count > 0) add(program, core, loop->body, times * loop->count, counts);
    } else if (auto const* branch = node.as<OnCore>()) {
      if (branch->core == core) add(program, core, branch->body, times, counts);
    }
  }
}

}  // namespace count_detail

/// Counts of one core.
inline Counts count(Program const& program, int core) {
  Counts counts;
  count_detail::add(program, core, program.body, 1, counts);
  return counts;
}

/// Counts of all cores of one rank.
inline Counts count(Program const& program) {
  Counts counts;
  for (int core = 0; core < program.cores; ++core) counts += count(program, core);
  return counts;
}

}  // namespace annulus::nki
