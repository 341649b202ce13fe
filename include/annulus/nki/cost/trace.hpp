#pragma once
// Timeline of a program in the Trace Event Format of chrome://tracing and Perfetto.

#include <algorithm>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/nki/definitions.hpp"
#include "annulus/nki/hardware/hardware.hpp"
#if defined(ANNULUS_NKI_DEFINITIONS)
#include "annulus/nki/cost/report.hpp"
#include "annulus/nki/cost/timeline.hpp"
#endif

namespace annulus::nki {

/// Writes the trace. Processes are cores, threads are engines (DMA: lanes), times are in microseconds. Events whose
/// durations or begins depend on inferred constants are marked in their args, as the trace's otherData explains. Only
/// the first `most_events` instructions are written; a last event then gives the number left out. Throws Error for
/// programs that validation would refuse.
void write_trace(std::ostream& out, Program const& program, Hardware const& hardware, Index most_events = 200000);

#if defined(ANNULUS_NKI_DEFINITIONS)

namespace trace_detail {

/// The text as a quoted JSON string.
inline std::string json_text(std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  std::string result = "\"";
  for (char const c : text) {
    if (auto const code = static_cast<unsigned char>(c); code < 0x20) {
      result += {'\\', 'u', '0', '0', digits[code / 16], digits[code % 16]};
    } else {
      if (c == '"' || c == '\\') result += '\\';
      result += c;
    }
  }
  return result + '"';
}

/// Writes events as they are executed. DMAs run concurrently: each is drawn in the first free lane of its core.
class Observer {
 public:
  Observer(std::ostream& out, Program const& program, Index most_events)
      : out_(out), program_(program), most_events_(most_events), cores_(static_cast<std::size_t>(program.cores)) {
    for (int core = 0; core < program.cores; ++core) {
      name("process_name", core, 0, concat("core ", core));
      for (int engine = 0; engine < engine_count; ++engine)
        if (static_cast<Engine>(engine) != Engine::dma)
          name("thread_name", core, engine, name_of(static_cast<Engine>(engine)));
    }
  }

  void section(int core, Section const& section, Index number) {
    nth(cores_, core).section = json_text(concat(section.name, " ", number));
  }

  void executed(Execution const& execution) {
    if (++executed_ > most_events_) return;
    Core& core = nth(cores_, execution.core);
    Engine const engine = execution.plan.cost.engine;
    int const thread = engine == Engine::dma ? lane(execution, core) : static_cast<int>(engine);
    last_ = std::max(last_, execution.begin);
    std::string event = concat("{\"ph\":\"X\",\"name\":", json_text(name_of(*execution.plan.instruction)),
                               ",\"cat\":", json_text(name_of(engine)), place(execution.core, thread),
                               ",\"ts\":", microseconds(execution.begin),
                               ",\"dur\":", microseconds(execution.end - execution.begin), ",\"args\":{");
    if (!core.section.empty()) event += "\"section\":" + core.section + ",";
    if (core.begins_by_estimate) event += "\"begin estimate\":true,";
    if (execution.plan.cost.estimate) {
      event += "\"estimate\":true,";
      // Later instructions of this core may wait for it; those of all cores for a collective.
      for (Core& other : cores_)
        other.begins_by_estimate = other.begins_by_estimate || engine == Engine::collective || &other == &core;
    }
    if (execution.waited > 0)
      event += concat("\"idle before\":", microseconds(execution.waited),
                      ",\"waiting for\":", json_text(name_of(execution.waited_for)), ",");
    event += "\"operands\":{";
    char const* separator = "";
    for_each_access(*execution.plan.instruction, [&](std::string_view keyword, Use, Access const& access) {
      event += std::exchange(separator, ",") + json_text(keyword) + ":" + json_text(program_.buffer(access).name);
    });
    write(event + "}}}");
  }

  void finish() {
    if (executed_ > most_events_)
      write(
          concat("{\"ph\":\"i\",\"s\":\"g\",\"name\":", json_text(concat(executed_ - most_events_, " events left out")),
                 place(0, 0), ",\"ts\":", microseconds(last_), "}"));
  }

 private:
  static constexpr int first_lane = 100;

  struct Core {
    std::string section;              // as JSON
    std::vector<double> lanes;        // seconds at which each becomes free
    bool begins_by_estimate = false;  // later instructions may have waited for an estimated time
  };

  static std::string microseconds(double seconds) { return decimal(seconds * 1e6, 4); }
  static std::string place(int core, int thread) { return concat(",\"pid\":", core, ",\"tid\":", thread); }

  void name(std::string_view what, int core, int thread, std::string_view is) {
    write(concat("{\"ph\":\"M\",\"name\":", json_text(what), place(core, thread), ",\"args\":{\"name\":", json_text(is),
                 "}}"));
  }

  int lane(Execution const& execution, Core& core) {
    auto const free = [&](double until) { return until <= execution.begin; };
    auto const lane = static_cast<int>(std::ranges::find_if(core.lanes, free) - core.lanes.begin());
    if (lane == std::ssize(core.lanes)) {
      core.lanes.push_back(0);
      name("thread_name", execution.core, first_lane + lane, concat("dma ", lane));
    }
    nth(core.lanes, lane) = execution.end;
    return first_lane + lane;
  }

  void write(std::string const& event) { out_ << std::exchange(separator_, ",\n") << event; }

  std::ostream& out_;
  Program const& program_;
  Index most_events_;
  std::vector<Core> cores_;
  Index executed_ = 0;
  double last_ = 0;
  char const* separator_ = "";
};

}  // namespace trace_detail

ANNULUS_NKI_INLINE void write_trace(std::ostream& out, Program const& program, Hardware const& hardware,
                                    Index most_events) {
  Timeline timeline(program, hardware);
  out << "{\"displayTimeUnit\":\"ns\",\n\"otherData\":{\"program\":" << trace_detail::json_text(program.name)
      << ",\"target\":" << trace_detail::json_text(name_of(hardware.target))
      << ",\"estimate\":\"the duration rests on inferred constants\""
      << ",\"begin estimate\":\"when it begins, and how long its engine was idle before, may rest on them\"},\n"
      << "\"traceEvents\":[\n";
  trace_detail::Observer observer(out, program, most_events);
  timeline.run(observer);
  observer.finish();
  out << "\n]}\n";
}

#endif

}  // namespace annulus::nki
