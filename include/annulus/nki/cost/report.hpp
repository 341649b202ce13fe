#pragma once
// Cost report: estimated time of a program by core, engine, instruction kind and section.

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/cost/timeline.hpp"
#include "annulus/nki/hardware/tile_space.hpp"
#include "annulus/nki/program/count.hpp"

namespace annulus::nki {

/// One engine of one core.
struct EngineCost {
  double busy = 0;  ///< seconds; DMA: of all the core's DMA engines together; collectives: counted for core 0 only
  Index instructions = 0;
  bool estimate = false;  ///< depends on an inferred constant
  /// Compute engines: idle seconds before instructions, by the engine that produced the data waited for, or whose
  /// access to dst had to end first.
  std::array<double, engine_count> waited{};
};
using EngineCosts = std::array<EngineCost, engine_count>;

/// One core of the rank.
struct CoreCost {
  double seconds = 0;  ///< end of its last instruction
  EngineCosts engines{};
  double tensor_utilisation = 0;  ///< operations of matmuls / (seconds of the report * peak)
};

/// All instructions between an entry of this section and the next entry of any section, summed over all its entries.
struct SectionCost {
  std::string name;
  Index number = 0;
  /// By how much the latest end of a compute engine advanced, maximum over the cores. For one core, the sum over all
  /// sections is that core's time.
  double seconds = 0;
  double permute = 0;  ///< seconds of collectives that it starts
  double exposed = 0;  ///< seconds by which it would be shorter if collectives took no time
  Index instructions = 0;
  std::array<double, engine_count> busy{};  ///< seconds of all cores
  bool estimate = false;
};

/// All instructions of one kind on one engine, of all cores.
struct KindCost {
  std::string name;
  Engine engine = Engine::tensor;
  double busy = 0;
  Index instructions = 0;
  bool estimate = false;
};

/// On-chip memory of one core: the sum over all tiles of all buffers.
struct OnChipCost {
  Index sbuf = 0, sbuf_limit = 0;              ///< bytes per partition
  Index psum = 0, psum_limit = 0;              ///< bytes per partition
  Index psum_banks = 0, psum_banks_limit = 0;  ///< the binding limit: every tile begins a bank
};

/// Estimated cost of one rank's program.
struct CostReport {
  std::string program;
  Target target = Target::trn2;
  double seconds = 0;             ///< end of the last instruction of all cores
  double exposed = 0;             ///< seconds by which that would be earlier if collectives took no time
  double tensor_utilisation = 0;  ///< mean of the cores
  bool estimate = false;          ///< some time depends on an inferred constant
  std::vector<CoreCost> cores;
  std::vector<KindCost> kinds;        ///< by engine, busiest first
  std::vector<SectionCost> sections;  ///< in the order of their first entries
  OnChipCost on_chip;
  Counts counts;  ///< of all cores of one rank
};

namespace report_detail {

/// Accumulates the costs of a timeline's executions.
class Observer {
 public:
  explicit Observer(Program const& program) : cores_(static_cast<std::size_t>(program.cores)) { enter_all("", 0); }

  void section(int core, Section const& section, Index number) {
    Core& here = cores_[static_cast<std::size_t>(core)];
    close(here, here.computed);
    here.section = number_of(section.name, number);
  }

  void executed(Execution const& execution) {
    Core& core = cores_[static_cast<std::size_t>(execution.core)];
    InstructionCost const& cost = execution.plan.cost;
    std::size_t const engine = static_cast<std::size_t>(cost.engine);
    EngineCost& sum = core.cost.engines[engine];
    sum.busy += execution.busy;
    ++sum.instructions;
    sum.estimate = sum.estimate || cost.estimate;
    sum.waited[static_cast<std::size_t>(execution.waited_for)] += execution.waited;
    KindCost& kind = kinds_[engine][execution.plan.instruction->index()];
    if (kind.instructions++ == 0) {
      kind.name = name_of(*execution.plan.instruction);
      kind.engine = cost.engine;
    }
    kind.busy += execution.busy;
    kind.estimate = kind.estimate || cost.estimate;
    core.cost.seconds = std::max(core.cost.seconds, execution.end);
    if (cost.engine != Engine::dma && cost.engine != Engine::collective)
      core.computed = std::max(core.computed, execution.end);
    SectionCost& section = sections_[core.section];
    section.busy[engine] += execution.busy;
    if (cost.engine == Engine::collective) section.permute += execution.busy;
    ++section.instructions;
    section.estimate = section.estimate || cost.estimate;
  }

  /// Call at the end. Time after the last end of a compute engine belongs to the last section.
  void finish() {
    for (Core& core : cores_) close(core, core.cost.seconds);
    for (std::size_t i = 0; i < sections_.size(); ++i)
      for (Core const& core : cores_)
        if (i < core.seconds.size()) sections_[i].seconds = std::max(sections_[i].seconds, core.seconds[i]);
  }

  std::vector<SectionCost>& sections() { return sections_; }
  std::vector<KindCost> kinds() const {
    std::vector<KindCost> all;
    for (auto const& of_engine : kinds_) {
      auto const first = static_cast<std::ptrdiff_t>(all.size());
      std::ranges::copy_if(of_engine, std::back_inserter(all),
                           [](KindCost const& kind) { return kind.instructions > 0; });
      std::ranges::stable_sort(all.begin() + first, all.end(), std::ranges::greater{}, &KindCost::busy);
    }
    return all;
  }
  CoreCost& core(std::size_t number) { return cores_[number].cost; }
  double seconds() const {
    double latest = 0;
    for (Core const& core : cores_) latest = std::max(latest, core.cost.seconds);
    return latest;
  }

 private:
  struct Core {
    CoreCost cost;
    std::size_t section = 0;
    double computed = 0, closed = 0;
    std::vector<double> seconds;  // by section
  };

  void enter_all(std::string const& name, Index number) {
    std::size_t const first = number_of(name, number);
    for (Core& core : cores_) core.section = first;
  }

  std::size_t number_of(std::string const& name, Index number) {
    auto const [found, is_new] = numbers_.try_emplace({name, number}, sections_.size());
    if (is_new) {
      sections_.emplace_back();
      sections_.back().name = name;
      sections_.back().number = number;
    }
    return found->second;
  }

  static void close(Core& core, double until) {
    if (core.seconds.size() <= core.section) core.seconds.resize(core.section + 1, 0.0);
    core.seconds[core.section] += until - core.closed;
    core.closed = until;
  }

  std::vector<Core> cores_;
  std::array<std::array<KindCost, Counts::kinds>, engine_count> kinds_;
  std::vector<SectionCost> sections_;
  std::map<std::pair<std::string, Index>, std::size_t> numbers_;
};

inline OnChipCost on_chip_cost(Program const& program, Limits const& limits) {
  OnChipCost cost{.sbuf_limit = limits.sbuf_bytes,
                  .psum_limit = limits.psum_banks * limits.psum_bank_bytes,
                  .psum_banks_limit = limits.psum_banks};
  for (Buffer const& buffer : program.buffers) {
    if (!on_chip(buffer.memory)) continue;
    Index& bytes = buffer.memory == Memory::sbuf ? cost.sbuf : cost.psum;
    bytes = saturating_add(bytes, bytes_per_partition(buffer));
    if (buffer.memory == Memory::psum) cost.psum_banks = saturating_add(cost.psum_banks, psum_banks(buffer, limits));
  }
  return cost;
}

}  // namespace report_detail

/// Runs the program's timeline, without computing values; if there are collectives, a second time as if they took no
/// time. The program must have passed validation. Throws Error if its cores do not reach the same barriers and
/// collectives, or if it uses undeclared names, tiles that are not allocated or elements out of bounds.
inline CostReport cost_report(Program const& program, Hardware const& hardware) {
  report_detail::Observer observed(program);
  Timeline(program, hardware).run(observed);
  observed.finish();

  CostReport report;
  report.program = program.name;
  report.target = hardware.target;
  report.seconds = observed.seconds();
  report.counts = count(program);
  report.on_chip = report_detail::on_chip_cost(program, hardware.limits);
  for (int c = 0; c < program.cores; ++c) {
    CoreCost& core = report.cores.emplace_back(observed.core(static_cast<std::size_t>(c)));
    double const operations = 2.0 * static_cast<double>(count(program, c).multiply_adds);
    if (report.seconds > 0) core.tensor_utilisation = operations / (report.seconds * hardware.costs.tensor_peak);
    report.tensor_utilisation += core.tensor_utilisation / program.cores;
    for (EngineCost const& engine : core.engines) report.estimate = report.estimate || engine.estimate;
  }
  report.kinds = observed.kinds();
  report.sections = std::move(observed.sections());

  if (report.counts.permuted > 0) {
    Hardware instant = hardware;
    instant.costs.permute_latency = 0;
    instant.costs.permute_rate = std::numeric_limits<double>::infinity();
    report_detail::Observer without(program);
    Timeline(program, instant).run(without);
    without.finish();
    report.exposed = std::max(0.0, report.seconds - without.seconds());
    for (std::size_t i = 0; i < report.sections.size(); ++i)
      report.sections[i].exposed = std::max(0.0, report.sections[i].seconds - without.sections()[i].seconds);
  }
  std::erase_if(report.sections, [](SectionCost const& section) { return section.instructions == 0; });
  return report;
}

}  // namespace annulus::nki
