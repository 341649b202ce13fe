#pragma once
// Trace: the intervals of all ranks in the JSON format of Chrome's tracing, which Perfetto opens.

#include <algorithm>
#include <chrono>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/ring/observer.hpp"

namespace annulus {

/// Writes the intervals of all ranks, a list for each, as a JSON object with the array "traceEvents", that
/// https://ui.perfetto.dev opens. A rank is a process there. Times count from the first one; lists whose times are of
/// different clocks must have been aligned. Exchanges are events of their own, because they overlap; the wait for one
/// repeats its bytes and its time in flight.
void write_trace(std::ostream& out, std::span<std::vector<Interval> const> ranks);

#if defined(ANNULUS_DEFINITIONS)

namespace detail {

/// Microseconds, the unit of the format, with three decimals, in any locale.
inline std::string trace_time(Interval::Clock::duration time) {
  auto const nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  std::string const decimals = std::to_string(nanoseconds % 1000);
  return std::to_string(nanoseconds / 1000) + "." + std::string(3 - decimals.size(), '0') + decimals;
}

/// Name of the event: the pass, then the kind and the channel.
inline std::string trace_name(Interval const& interval) {
  std::string name(name_of(interval.pass));
  if (interval.kind == IntervalKind::call) return name;
  name.append(" ").append(name_of(interval.kind));
  if (interval.kind == IntervalKind::exchange || interval.kind == IntervalKind::wait)
    name.append(" ").append(name_of(interval.channel));
  return name;
}

/// The member "args" of an event.
inline std::string trace_arguments(Interval const& interval) {
  std::string arguments = "\"call\": " + std::to_string(interval.call);
  auto const add = [&](std::string const& name, std::string const& value) {
    arguments += ", \"" + name + "\": " + value;
  };
  if (interval.step >= 0) add("step", std::to_string(interval.step));
  if (interval.kind == IntervalKind::compute) add("multiply_adds", std::to_string(interval.multiply_adds));
  if (interval.kind == IntervalKind::wait || interval.kind == IntervalKind::exchange) {
    std::string parts;
    for (Part part : interval.parts) parts += (parts.empty() ? "" : ", ") + std::string(name_of(part));
    add("parts", "\"" + parts + "\"");
    add("bytes_sent", std::to_string(interval.bytes));
  }
  if (interval.kind == IntervalKind::wait) add("in_flight_us", trace_time(interval.end - interval.started));
  return "\"args\": {" + arguments + "}";
}

/// Members that all events have: name, category, phase, rank and time since `origin`.
inline std::string trace_event(Interval const& interval, char phase, Interval::Clock::duration time) {
  std::string const rank = std::to_string(interval.rank);
  bool const waits = interval.kind == IntervalKind::wait || interval.kind == IntervalKind::agreement;
  std::string const category = waits ? "exchange" : interval.kind == IntervalKind::exchange ? "in flight" : "work";
  return "\"name\": \"" + trace_name(interval) + "\", \"cat\": \"" + category + "\", \"ph\": \"" + phase +
         "\", \"pid\": " + rank + ", \"tid\": " + rank + ", \"ts\": " + trace_time(time);
}

}  // namespace detail

ANNULUS_INLINE void write_trace(std::ostream& out, std::span<std::vector<Interval> const> ranks) {
  auto origin = Interval::Clock::time_point::max();
  for (auto const& rank : ranks)
    for (Interval const& interval : rank) origin = std::min(origin, interval.begin);
  out << "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [";
  char const* separator = "\n";
  auto const put = [&](std::string const& members) { out << std::exchange(separator, ",\n") << '{' << members << '}'; };
  long overlapping = 0;
  for (auto const& rank : ranks) {
    if (rank.empty()) continue;
    std::string const number = std::to_string(rank.front().rank);
    put("\"name\": \"process_name\", \"ph\": \"M\", \"pid\": " + number + ", \"tid\": " + number +
        ", \"args\": {\"name\": \"rank " + number + "\"}");
    for (Interval const& interval : rank) {
      auto const begin = interval.begin - origin, end = interval.end - origin;
      std::string const arguments = ", " + detail::trace_arguments(interval);
      if (interval.kind == IntervalKind::exchange) {
        std::string const id = ", \"id\": " + std::to_string(overlapping++);
        put(detail::trace_event(interval, 'b', begin) + id + arguments);
        put(detail::trace_event(interval, 'e', end) + id);
      } else {
        put(detail::trace_event(interval, 'X', begin) + ", \"dur\": " + detail::trace_time(end - begin) + arguments);
      }
    }
  }
  out << "\n]}\n";
}

#endif

}  // namespace annulus
