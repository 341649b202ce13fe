#pragma once
// Cost report: estimated time of a program by core, engine, instruction kind and section, and its text.

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "annulus/nki/definitions.hpp"
#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/program/walk.hpp"
#if defined(ANNULUS_NKI_DEFINITIONS)
#include "annulus/nki/cost/timeline.hpp"
#endif

namespace annulus::nki {

/// The value in fixed notation, with `digits` digits after the point.
inline std::string decimal(double value, int digits) {
  std::array<char, 400> text;  // the longest double has 309 digits before the point
  auto const end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, digits).ptr;
  return std::string(text.data(), end);
}

/// One engine of one core.
struct EngineCost {
  double busy = 0;  ///< seconds; DMA: of all the core's DMA engines together; collectives: counted for core 0 only
  Index instructions = 0;  ///< executed
  bool estimate = false;   ///< depends on an inferred constant
  /// Compute engines: idle seconds before instructions, by the engine that produced the data waited for, or whose
  /// access to dst had to end first.
  std::array<double, engine_count> waited{};
};
/// By engine.
using EngineCosts = std::array<EngineCost, engine_count>;

/// One core of the rank.
struct CoreCost {
  double seconds = 0;             ///< end of its last instruction
  EngineCosts engines{};          ///< by engine
  double tensor_utilisation = 0;  ///< operations of matmuls / (seconds of the report * peak)
};

/// All instructions between an entry of this section and the next entry of any section, summed over all its entries.
struct SectionCost {
  std::string name;  ///< of the section
  Index number = 0;  ///< of the section
  /// By how much the latest end of a compute engine advanced, maximum over the cores. For one core, the sum over all
  /// sections is that core's time.
  double seconds = 0;
  double permute = 0;                       ///< seconds of collectives that it starts
  double exposed = 0;                       ///< seconds by which it would be shorter if collectives took no time
  Index instructions = 0;                   ///< executed
  std::array<double, engine_count> busy{};  ///< seconds of all cores
  bool estimate = false;                    ///< depends on an inferred constant
};

/// All instructions of one kind on one engine, of all cores.
struct KindCost {
  std::string name;                ///< of the NKI call
  Engine engine = Engine::tensor;  ///< that executes them
  double busy = 0;                 ///< seconds
  Index instructions = 0;          ///< executed
  bool estimate = false;           ///< depends on an inferred constant
};

/// On-chip memory of one core: the sum over all tiles of all buffers.
struct OnChipCost {
  Index sbuf = 0, sbuf_limit = 0;              ///< bytes per partition
  Index psum_banks = 0, psum_banks_limit = 0;  ///< the binding limit: every tile begins a bank
};

/// Estimated cost of one rank's program.
struct CostReport {
  std::string program;                ///< name
  Target target = Target::trn2;       ///< hardware generation
  double seconds = 0;                 ///< end of the last instruction of all cores
  double exposed = 0;                 ///< seconds by which that would be earlier if collectives took no time
  double tensor_utilisation = 0;      ///< mean of the cores
  bool estimate = false;              ///< some time depends on an inferred constant
  std::vector<CoreCost> cores;        ///< by core
  std::vector<KindCost> kinds;        ///< by engine, busiest first
  std::vector<SectionCost> sections;  ///< in the order of their first entries
  OnChipCost on_chip;                 ///< of one core
  Counts counts;                      ///< of all cores of one rank
};

/// Runs the program's timeline, without computing values; if there are collectives, a second time as if they took no
/// time. The program must have passed validation. Throws Error if its cores do not reach the same barriers and
/// collectives, or if it uses undeclared names, tiles that are not allocated or elements out of bounds.
CostReport cost_report(Program const& program, Hardware const& hardware);

/// Tables of totals, engines, idle times, instruction kinds (of all cores) and sections. Equal reports give equal text
/// on every platform and in every locale.
std::string table(CostReport const& report);

#if defined(ANNULUS_NKI_DEFINITIONS)

namespace report_detail {

/// Adds the executions of a timeline to the cores, kinds and sections of a report.
class Observer {
 public:
  /// Every core begins in a section without a name.
  Observer(Program const& program, CostReport& report)
      : report_(report), cores_(static_cast<std::size_t>(program.cores)) {
    report.cores.resize(cores_.size());
    number_of("", 0);
  }

  void section(int core, Section const& section, Index number) {
    Core& here = nth(cores_, core);
    close(here, here.computed);
    here.section = number_of(section.name, number);
  }

  void executed(Execution const& execution) {
    Core& core = nth(cores_, execution.core);
    CoreCost& core_cost = nth(report_.cores, execution.core);
    InstructionCost const& cost = execution.plan.cost;
    std::size_t const engine = static_cast<std::size_t>(cost.engine);
    EngineCost& sum = core_cost.engines[engine];
    KindCost& kind = kinds_[engine][execution.plan.instruction->index()];
    SectionCost& section = report_.sections[core.section];
    if (kind.instructions == 0)
      kind = {.name = std::string(name_of(*execution.plan.instruction)), .engine = cost.engine};
    auto const add = [&](auto& to, double& busy) {
      busy += execution.busy;
      ++to.instructions;
      to.estimate = to.estimate || cost.estimate;
    };
    add(sum, sum.busy);
    add(kind, kind.busy);
    add(section, section.busy[engine]);
    nth(sum.waited, execution.waited_for) += execution.waited;
    core_cost.seconds = std::max(core_cost.seconds, execution.end);
    if (cost.engine != Engine::dma && cost.engine != Engine::collective)
      core.computed = std::max(core.computed, execution.end);
    if (cost.engine == Engine::collective) section.permute += execution.busy;
    report_.estimate = report_.estimate || cost.estimate;
  }

  /// Call at the end. Time after the last end of a compute engine belongs to the last section.
  void finish() {
    for (std::size_t c = 0; c < cores_.size(); ++c) {
      double const seconds = report_.cores[c].seconds;
      report_.seconds = std::max(report_.seconds, seconds);
      close(cores_[c], seconds);
      for (std::size_t i = 0; i < cores_[c].seconds.size(); ++i)
        report_.sections[i].seconds = std::max(report_.sections[i].seconds, cores_[c].seconds[i]);
    }
    for (auto& of_engine : kinds_) {
      std::ranges::stable_sort(of_engine, std::ranges::greater{}, &KindCost::busy);
      std::ranges::copy_if(of_engine, std::back_inserter(report_.kinds),
                           [](KindCost const& kind) { return kind.instructions > 0; });
    }
  }

 private:
  struct Core {
    std::size_t section = 0;
    double computed = 0, closed = 0;
    std::vector<double> seconds;  // by section
  };

  std::size_t number_of(std::string const& name, Index number) {
    auto const [found, is_new] = numbers_.try_emplace({name, number}, report_.sections.size());
    if (is_new) report_.sections.push_back({.name = name, .number = number});
    return found->second;
  }

  static void close(Core& core, double until) {
    if (core.seconds.size() <= core.section) core.seconds.resize(core.section + 1, 0.0);
    core.seconds[core.section] += until - core.closed;
    core.closed = until;
  }

  CostReport& report_;
  std::vector<Core> cores_;
  std::array<std::array<KindCost, Counts::kinds>, engine_count> kinds_;
  std::map<std::pair<std::string, Index>, std::size_t> numbers_;
};

/// The times of a report.
inline CostReport timed(Program const& program, Hardware const& hardware) {
  CostReport report;
  Observer observer(program, report);
  Timeline(program, hardware).run(observer);
  observer.finish();
  return report;
}

/// Rows of cells. The first column is left-aligned, the others right-aligned; rows of estimates begin with ~, and so do
/// single cells that are estimates in other rows.
class Rows {
 public:
  template <class... Cells>
  void add(bool estimate, std::string_view first, Cells const&... cells) {
    rows_.push_back({concat(estimate ? "~ " : "  ", first), concat(cells)...});
  }

  std::string text() const {
    std::vector<std::size_t> widths;
    for (auto const& row : rows_) {
      widths.resize(std::max(widths.size(), row.size()), 0);
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string text;
    for (auto const& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        std::string const gap(widths[i] - row[i].size(), ' ');
        text += i == 0 ? row[i] + gap : "  " + gap + row[i];
      }
      text.erase(text.find_last_not_of(' ') + 1);
      text += '\n';
    }
    return text;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

inline std::string microseconds(double seconds) { return decimal(seconds * 1e6, 2); }
inline std::string percent(double part, double whole) {
  return whole > 0 ? decimal(100 * part / whole, 1) + " %" : "-";
}

/// A percentage of the report's time; an estimate if that time is one.
inline std::string share(CostReport const& report, double part, double time) {
  return (report.estimate && time > 0 ? "~ " : "") + percent(part, time);
}

inline Rows totals(CostReport const& report) {
  Counts const& counts = report.counts;
  OnChipCost const& chip = report.on_chip;
  bool const timed = report.estimate;
  Rows rows;
  rows.add(timed, "time", microseconds(report.seconds) + " us");
  rows.add(timed, "tensor engine utilisation", percent(report.tensor_utilisation, 1));
  rows.add(timed, "exposed communication", microseconds(report.exposed) + " us",
           percent(report.exposed, report.seconds));
  rows.add(false, "multiply-adds", counts.multiply_adds);
  rows.add(false, "instructions", counts.instructions());
  rows.add(false, "HBM read by DMA", concat(counts.hbm_read, " bytes"));
  rows.add(false, "HBM written by DMA", concat(counts.hbm_written, " bytes"));
  rows.add(false, "sent to the successor", concat(counts.permuted, " bytes"));
  rows.add(true, "SBUF per partition", concat(chip.sbuf, " of ", chip.sbuf_limit, " bytes"),
           percent(double(chip.sbuf), double(chip.sbuf_limit)));
  rows.add(false, "PSUM", concat(chip.psum_banks, " of ", chip.psum_banks_limit, " banks"),
           percent(double(chip.psum_banks), double(chip.psum_banks_limit)));
  return rows;
}

/// Busy times of the engines, and idle times of each compute engine by the engine it waited for.
inline std::pair<Rows, Rows> engines(CostReport const& report) {
  Rows busy, idle;
  busy.add(false, "engine", "core", "busy us", "of time", "instructions");
  idle.add(false, "idle us, for", "core", "tensor", "vector", "scalar", "gpsimd", "sync", "dma", "collective");
  for (int e = 0; e < engine_count; ++e)
    for (std::size_t core = 0; core < report.cores.size(); ++core) {
      EngineCost const& engine = nth(report.cores[core].engines, e);
      std::string_view const name = name_of(static_cast<Engine>(e));
      if (engine.instructions > 0)
        busy.add(engine.estimate, name, core, microseconds(engine.busy), share(report, engine.busy, report.seconds),
                 engine.instructions);
      if (std::ranges::count(engine.waited, 0) < engine_count)
        std::apply([&](auto... seconds) { idle.add(report.estimate, name, core, microseconds(seconds)...); },
                   engine.waited);
    }
  return {busy, idle};
}

inline Rows kinds(CostReport const& report) {
  Rows rows;
  rows.add(false, "instruction", "engine", "busy us", "of time", "instructions");
  double const time = report.seconds * static_cast<double>(report.cores.size());
  for (KindCost const& kind : report.kinds)
    rows.add(kind.estimate, kind.name, name_of(kind.engine), microseconds(kind.busy), share(report, kind.busy, time),
             kind.instructions);
  return rows;
}

/// Busy times as percentages of the section's time on all cores. A section's begin and end depend on all earlier
/// instructions, so its row is an estimate if any time of the report is one.
inline Rows sections(CostReport const& report) {
  Rows rows;
  rows.add(false, "section", "us", "tensor", "vector", "scalar", "gpsimd", "dma", "permute us", "exposed us",
           "instructions");
  for (SectionCost const& section : report.sections) {
    double const time = section.seconds * static_cast<double>(report.cores.size());
    auto const part_of = [&](Engine engine) { return percent(nth(section.busy, engine), time); };
    rows.add(section.estimate || report.estimate,
             section.name.empty() ? "before the first" : concat(section.name, " ", section.number),
             microseconds(section.seconds), part_of(Engine::tensor), part_of(Engine::vector), part_of(Engine::scalar),
             part_of(Engine::gpsimd), part_of(Engine::dma), microseconds(section.permute),
             microseconds(section.exposed), section.instructions);
  }
  return rows;
}

}  // namespace report_detail

ANNULUS_NKI_INLINE CostReport cost_report(Program const& program, Hardware const& hardware) {
  CostReport report = report_detail::timed(program, hardware);
  report.program = program.name;
  report.target = hardware.target;
  report.counts = count(program);
  OnChipCost& chip =
      report.on_chip = {.sbuf_limit = hardware.limits.sbuf_bytes, .psum_banks_limit = hardware.limits.psum_banks};
  for (Buffer const& buffer : program.buffers) {
    if (buffer.memory == Memory::sbuf) chip.sbuf = detail::saturating_sum(chip.sbuf, bytes_per_partition(buffer));
    if (buffer.memory == Memory::psum)
      chip.psum_banks = detail::saturating_sum(chip.psum_banks, psum_banks(buffer, hardware.limits));
  }
  for (int c = 0; c < program.cores; ++c) {
    CoreCost& core = nth(report.cores, c);
    double const operations = 2.0 * static_cast<double>(count(program, c).multiply_adds);
    if (report.seconds > 0) core.tensor_utilisation = operations / (report.seconds * hardware.costs.tensor_peak);
    report.tensor_utilisation += core.tensor_utilisation / program.cores;
  }
  if (report.counts.permuted > 0) {
    Hardware instant = hardware;
    instant.costs.permute_latency = 0;
    instant.costs.permute_rate = std::numeric_limits<double>::infinity();
    CostReport const without = report_detail::timed(program, instant);
    report.exposed = std::max(0.0, report.seconds - without.seconds);
    for (std::size_t i = 0; i < report.sections.size(); ++i)
      report.sections[i].exposed = std::max(0.0, report.sections[i].seconds - without.sections[i].seconds);
  }
  std::erase_if(report.sections, [](SectionCost const& section) { return section.instructions == 0; });
  return report;
}

ANNULUS_NKI_INLINE std::string table(CostReport const& report) {
  using namespace report_detail;
  auto const [busy, idle] = engines(report);
  std::size_t const cores = report.cores.size();
  return concat(report.program, ": one rank of ", name_of(report.target), ", ", cores, cores == 1 ? " core" : " cores",
                "; every rank in lockstep\n", totals(report).text(), "\n", busy.text(), "\n", idle.text(), "\n",
                kinds(report).text(), "\n", sections(report).text(), "~ estimate: rests on inferred constants\n");
}

#endif

}  // namespace annulus::nki
