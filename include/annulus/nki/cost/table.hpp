#pragma once
// Text tables of a CostReport.

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "annulus/nki/cost/decimal.hpp"
#include "annulus/nki/cost/report.hpp"

namespace annulus::nki {

namespace table_detail {

/// Rows of cells. The first column is left-aligned, the others right-aligned; rows of estimates begin with ~, and so do
/// single cells that are estimates in other rows.
class Rows {
 public:
  void add(bool estimate, std::vector<std::string> cells) { rows_.push_back({estimate, std::move(cells)}); }

  std::string text() const {
    std::vector<std::size_t> widths;
    for (Row const& row : rows_) {
      widths.resize(std::max(widths.size(), row.cells.size()), 0);
      for (std::size_t i = 0; i < row.cells.size(); ++i) widths[i] = std::max(widths[i], row.cells[i].size());
    }
    std::string text;
    for (Row const& row : rows_) {
      text += row.estimate ? "~ " : "  ";
      for (std::size_t i = 0; i < row.cells.size(); ++i) {
        std::string const gap(widths[i] - row.cells[i].size(), ' ');
        text += i == 0 ? row.cells[i] + gap : "  " + gap + row.cells[i];
      }
      text.erase(text.find_last_not_of(' ') + 1);
      text += '\n';
    }
    return text;
  }

 private:
  struct Row {
    bool estimate;
    std::vector<std::string> cells;
  };
  std::vector<Row> rows_;
};

inline std::string microseconds(double seconds) { return decimal(seconds * 1e6, 2); }
inline std::string percent(double part, double whole) {
  return whole > 0 ? decimal(100 * part / whole, 1) + " %" : "-";
}

/// A percentage of the report's time; an estimate if that time is one.
inline std::string share(CostReport const& report, double part, double time) {
  return (report.estimate && time > 0 ? "~ " : "") + percent(part, time);
}

inline std::string totals(CostReport const& report) {
  Rows rows;
  Counts const& counts = report.counts;
  bool const timed = report.estimate;
  rows.add(timed, {"time", microseconds(report.seconds) + " us"});
  rows.add(timed, {"tensor engine utilisation", percent(report.tensor_utilisation, 1)});
  rows.add(timed,
           {"exposed communication", microseconds(report.exposed) + " us", percent(report.exposed, report.seconds)});
  rows.add(false, {"multiply-adds", std::to_string(counts.multiply_adds)});
  rows.add(false, {"instructions", std::to_string(counts.instructions())});
  rows.add(false, {"HBM read by DMA", std::to_string(counts.hbm_read) + " bytes"});
  rows.add(false, {"HBM written by DMA", std::to_string(counts.hbm_written) + " bytes"});
  rows.add(false, {"sent to the successor", std::to_string(counts.permuted) + " bytes"});
  OnChipCost const& chip = report.on_chip;
  auto const of = [](Index used, Index limit, std::string_view unit) {
    return std::to_string(used) + " of " + std::to_string(limit) + ' ' + std::string(unit);
  };
  rows.add(true, {"SBUF per partition", of(chip.sbuf, chip.sbuf_limit, "bytes"),
                  percent(double(chip.sbuf), double(chip.sbuf_limit))});
  rows.add(false, {"PSUM", of(chip.psum_banks, chip.psum_banks_limit, "banks"),
                   percent(double(chip.psum_banks), double(chip.psum_banks_limit))});
  return rows.text();
}

inline std::string engines(CostReport const& report) {
  Rows rows;
  rows.add(false, {"engine", "core", "busy us", "of time", "instructions"});
  for (std::size_t e = 0; e < engine_count; ++e) {
    for (std::size_t core = 0; core < report.cores.size(); ++core) {
      EngineCost const& engine = report.cores[core].engines[e];
      if (engine.instructions == 0) continue;
      rows.add(engine.estimate,
               {std::string(name_of(static_cast<Engine>(e))), std::to_string(core), microseconds(engine.busy),
                share(report, engine.busy, report.seconds), std::to_string(engine.instructions)});
    }
  }
  return rows.text();
}

/// Idle time of each compute engine by the engine it waited for.
inline std::string waits(CostReport const& report) {
  Rows rows;
  rows.add(false, {"idle us, for", "core", "tensor", "vector", "scalar", "gpsimd", "sync", "dma", "collective"});
  for (std::size_t e = 0; e < engine_count; ++e) {
    for (std::size_t core = 0; core < report.cores.size(); ++core) {
      EngineCost const& engine = report.cores[core].engines[e];
      if (std::ranges::all_of(engine.waited, [](double seconds) { return seconds == 0; })) continue;
      std::vector<std::string> cells{std::string(name_of(static_cast<Engine>(e))), std::to_string(core)};
      for (double const seconds : engine.waited) cells.push_back(microseconds(seconds));
      rows.add(report.estimate, std::move(cells));
    }
  }
  return rows.text();
}

inline std::string kinds(CostReport const& report) {
  Rows rows;
  rows.add(false, {"instruction", "engine", "busy us", "of time", "instructions"});
  double const time = report.seconds * static_cast<double>(report.cores.size());
  for (KindCost const& kind : report.kinds)
    rows.add(kind.estimate, {kind.name, std::string(name_of(kind.engine)), microseconds(kind.busy),
                             share(report, kind.busy, time), std::to_string(kind.instructions)});
  return rows.text();
}

/// Busy times as percentages of the section's time on all cores. A section's begin and end depend on all earlier
/// instructions, so its row is an estimate if any time of the report is one.
inline std::string sections(CostReport const& report) {
  Rows rows;
  rows.add(false, {"section", "us", "tensor", "vector", "scalar", "gpsimd", "dma", "permute us", "exposed us",
                   "instructions"});
  for (SectionCost const& section : report.sections) {
    double const time = section.seconds * static_cast<double>(report.cores.size());
    auto const part_of = [&](Engine engine) { return percent(section.busy[static_cast<std::size_t>(engine)], time); };
    rows.add(section.estimate || report.estimate,
             {section.name.empty() ? "before the first" : section.name + " " + std::to_string(section.number),
              microseconds(section.seconds), part_of(Engine::tensor), part_of(Engine::vector), part_of(Engine::scalar),
              part_of(Engine::gpsimd), part_of(Engine::dma), microseconds(section.permute),
              microseconds(section.exposed), std::to_string(section.instructions)});
  }
  return rows.text();
}

}  // namespace table_detail

/// Tables of totals, engines, idle times, instruction kinds (of all cores) and sections. Equal reports give equal text
/// on every platform and in every locale.
inline std::string table(CostReport const& report) {
  std::string const cores = std::to_string(report.cores.size()) + (report.cores.size() == 1 ? " core" : " cores");
  return report.program + ": one rank of " + std::string(name_of(report.target)) + ", " + cores +
         "; every rank in lockstep\n" + table_detail::totals(report) + "\n" + table_detail::engines(report) + "\n" +
         table_detail::waits(report) + "\n" + table_detail::kinds(report) + "\n" + table_detail::sections(report) +
         "~ estimate: rests on inferred constants\n";
}

}  // namespace annulus::nki
