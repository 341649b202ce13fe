#include "trace_file.hpp"

#include <nlohmann/json.hpp>
#include <string>

namespace annulus_command {

namespace {

std::string name_of(Span const& span) {
  std::string const pass(annulus::name_of(span.pass));
  switch (span.kind) {
    case Span::Kind::pass:
      return pass;
    case Span::Kind::compute:
      return pass + " compute";
    case Span::Kind::synchronize:
      return pass + " synchronize";
    case Span::Kind::wait:
      return pass + " wait " + std::string(annulus::name_of(span.channel));
    case Span::Kind::agree:
      return pass + " agree";
  }
  return pass;
}

nlohmann::json event_of(Span const& span, std::size_t rank) {
  // Times of the format are in microseconds.
  nlohmann::json event{{"name", name_of(span)},
                       {"cat", span.kind == Span::Kind::compute ? "compute"
                               : span.kind == Span::Kind::pass  ? "pass"
                                                                : "exchange"},
                       {"ph", "X"},
                       {"ts", span.begin * 1e6},
                       {"dur", span.seconds * 1e6},
                       {"pid", rank},
                       {"tid", rank}};
  if (span.step >= 0) event["args"]["step"] = span.step;
  if (span.kind == Span::Kind::wait) {
    event["args"]["bytes_sent"] = span.bytes;
    event["args"]["in_flight_us"] = span.in_flight * 1e6;
  }
  return event;
}

}  // namespace

void TraceFile::write(std::vector<std::vector<Span>> const& spans_of_ranks) {
  nlohmann::json events = nlohmann::json::array();
  for (std::size_t rank = 0; rank < spans_of_ranks.size(); ++rank) {
    events.push_back({{"name", "process_name"},
                      {"ph", "M"},
                      {"pid", rank},
                      {"tid", rank},
                      {"args", {{"name", "rank " + std::to_string(rank)}}}});
    for (Span const& span : spans_of_ranks[rank]) events.push_back(event_of(span, rank));
  }
  file_.stream() << nlohmann::json{{"traceEvents", std::move(events)}, {"displayTimeUnit", "ms"}}.dump(1) << '\n';
  file_.close();
}

}  // namespace annulus_command
