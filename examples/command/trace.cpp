#include "trace.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <annulus/core/error.hpp>
#include <cerrno>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "errors.hpp"
#include "options.hpp"
#include "output_folder.hpp"
#include "picture/svg.hpp"

namespace annulus_command {

namespace {

using annulus_picture::Anchor;
using annulus_picture::fixed;
using annulus_picture::Svg;

/// A time interval, in seconds.
struct Interval {
  double begin = 0, end = 0;
  double seconds() const { return end - begin; }
};

/// What one rank did in one pass.
struct RankTimeline {
  Interval whole{};
  std::vector<Interval> computes, waits;
  std::vector<Interval> transfers;  ///< shifts in flight, each to the end of the wait for it
  double bytes_sent = 0;

  double computing() const { return total(computes); }
  double waiting() const { return total(waits); }

 private:
  static double total(std::vector<Interval> const& intervals) {
    double sum = 0;
    for (Interval const& interval : intervals) sum += interval.seconds();
    return sum;
  }
};

/// One pass: its ranks, and what follows from them.
struct PassTimeline {
  std::map<int, RankTimeline> ranks;

  double begin() const {
    double least = std::numeric_limits<double>::infinity();
    for (auto const& [rank, timeline] : ranks) least = std::min(least, timeline.whole.begin);
    return least;
  }
  double end() const {
    double most = 0;
    for (auto const& [rank, timeline] : ranks) most = std::max(most, timeline.whole.end);
    return most;
  }
  double seconds() const { return end() - begin(); }
  /// Mean over the ranks of value(timeline).
  template <class Value>
  double mean(Value&& value) const {
    double sum = 0;
    for (auto const& [rank, timeline] : ranks) sum += value(timeline);
    return sum / static_cast<double>(ranks.size());
  }
  double computing() const {
    return mean([](RankTimeline const& timeline) { return timeline.computing(); });
  }
  double waiting() const {
    return mean([](RankTimeline const& timeline) { return timeline.waiting(); });
  }
  /// Longest compute time of a rank over the mean.
  double imbalance() const {
    double most = 0;
    for (auto const& [rank, timeline] : ranks) most = std::max(most, timeline.computing());
    return computing() > 0 ? most / computing() : 1;
  }
};

using Timelines = std::map<std::string, PassTimeline, std::greater<>>;  // "forward" before "backward"

[[noreturn]] void refuse(std::filesystem::path const& path, std::string const& reason) {
  throw InputError(path.string() + ": " + reason +
                   "; accepted: a file written by annulus attend --trace or write_trace");
}

nlohmann::json read_json(std::filesystem::path const& path) {
  std::error_code error;
  auto const status = std::filesystem::status(path, error);
  if (std::filesystem::is_directory(status)) refuse(path, "is a folder");
  // Reading a pipe may block, and a device may be endless.
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    refuse(path, "is not a regular file");
  errno = 0;
  std::ifstream file(path);
  if (!file) refuse(path, "cannot be read (" + std::generic_category().message(errno) + ")");
  nlohmann::json json = nlohmann::json::parse(file, nullptr, false);
  if (json.is_discarded()) refuse(path, "is not JSON");
  if (!json.is_object() || !json.contains("traceEvents") || !json["traceEvents"].is_array())
    refuse(path, "has no array \"traceEvents\"");
  return json;
}

double number(nlohmann::json const& event, char const* name, std::filesystem::path const& path) {
  if (!event.contains(name) || !event[name].is_number())
    refuse(path, std::string("has an event without the number \"") + name + '"');
  double const value = event[name].get<double>();
  // 10^18 microseconds are 30 thousand years; the table and the picture have no room for more digits.
  if (!(value >= 0 && value < 1e18))
    refuse(path, std::string("has an event whose \"") + name + "\" is negative, or 10^18 or more");
  return value;
}

Timelines read_timelines(std::filesystem::path const& path) {
  Timelines timelines;
  nlohmann::json const json = read_json(path);
  for (nlohmann::json const& event : json["traceEvents"]) {
    if (!event.is_object() || event.value("ph", nlohmann::json()) != "X") continue;
    nlohmann::json const name_of_event = event.value("name", nlohmann::json());
    if (!name_of_event.is_string()) refuse(path, "has an event without the text \"name\"");
    auto const name = name_of_event.get<std::string>();
    std::string const pass = name.substr(0, name.find(' ')), kind = name.substr(std::min(pass.size() + 1, name.size()));
    if (pass != "forward" && pass != "backward") continue;
    double const rank = number(event, "pid", path);
    if (rank >= most_ranks) refuse(path, "has rank " + fixed(rank, 0));
    // Times of the format are in microseconds.
    double const begin = number(event, "ts", path) * 1e-6, seconds = number(event, "dur", path) * 1e-6;
    Interval const interval{begin, begin + seconds};
    RankTimeline& timeline = timelines[pass].ranks[static_cast<int>(rank)];
    if (kind.empty()) {
      // A rank may have made several calls.
      bool const first = timeline.whole.end == 0;
      timeline.whole =
          first ? interval
                : Interval{std::min(timeline.whole.begin, interval.begin), std::max(timeline.whole.end, interval.end)};
    } else if (kind == "compute" || kind == "synchronize") {
      timeline.computes.push_back(interval);
    } else if (kind.starts_with("wait")) {
      timeline.waits.push_back(interval);
      nlohmann::json const arguments = event.value("args", nlohmann::json::object());
      if (!arguments.is_object()) refuse(path, "has a wait whose \"args\" are not an object");
      timeline.transfers.push_back({interval.end - number(arguments, "in_flight_us", path) * 1e-6, interval.end});
      timeline.bytes_sent += number(arguments, "bytes_sent", path);
    }
  }
  if (timelines.empty()) refuse(path, "has no pass");
  for (auto const& [pass, timeline] : timelines)
    for (auto const& [rank, of_rank] : timeline.ranks)
      if (of_rank.whole.seconds() < 1e-9)
        refuse(path, "has no whole " + pass + " pass of rank " + std::to_string(rank) + " of a nanosecond or more");
  return timelines;
}

std::string in_ms(double seconds) { return fixed(seconds * 1e3, 2); }

void print_table(std::ostream& out, Timelines const& timelines) {
  out << std::left << std::setw(10) << "pass" << std::right;
  for (char const* title :
       {"ranks", "ms", "compute ms", "exposed ms", "exposed %", "hidden %", "imbalance", "MiB sent"})
    out << "  " << std::setw(10) << title;
  out << '\n';
  for (auto const& [pass, timeline] : timelines) {
    double const in_flight = timeline.mean([](RankTimeline const& of_rank) {
      double sum = 0;
      for (Interval const& transfer : of_rank.transfers) sum += transfer.seconds();
      return sum;
    });
    double const waiting = timeline.waiting(),
                 sent = timeline.mean([](RankTimeline const&of_rank) { return of_rank.bytes_sent; });
    out << std::left << std::setw(10) << pass << std::right;
    for (std::string const& cell :
         {std::to_string(timeline.ranks.size()), in_ms(timeline.seconds()), in_ms(timeline.computing()), in_ms(waiting),
          fixed(100 * waiting / timeline.seconds(), 1),
          in_flight > 0 ? fixed(100 * (1 - std::min(1.0, waiting / in_flight)), 1) : std::string("-"),
          fixed(timeline.imbalance(), 2), fixed(sent / (1 << 20), 2)})
      out << "  " << std::setw(10) << cell;
    out << '\n';
  }
  out << "\ncolumns, means of the ranks\n"
         "  ms          from the first rank's begin to the last rank's end\n"
         "  exposed     time that a rank waits for messages, also of the pass; late ranks count as well\n"
         "  hidden      share of the time of messages in flight during which the rank computes\n"
         "  imbalance   longest compute time of a rank over the mean\n";
}

/// Draws one pass and returns the lower edge.
double draw_pass(Svg& svg, std::string const& pass, PassTimeline const& timeline, double top) {
  constexpr double left = 70, width = 760, row = 26, title = 44;
  double const begin = timeline.begin(), seconds = timeline.seconds();
  auto const x = [&](double time) { return left + width * std::clamp((time - begin) / seconds, 0.0, 1.0); };
  svg.text({left, top + 18},
           pass + ": " + in_ms(seconds) + " ms, " + fixed(100 * timeline.waiting() / seconds, 1) +
               " % of it waiting for messages or late ranks, imbalance " + fixed(timeline.imbalance(), 2),
           {.size = 14, .bold = true});
  double y = top + title - 10;
  for (auto const& [rank, of_rank] : timeline.ranks) {
    svg.text({left - 8, y + 15}, "rank " + std::to_string(rank), {.anchor = Anchor::end});
    svg.rectangle({x(of_rank.whole.begin), y + 2}, x(of_rank.whole.end) - x(of_rank.whole.begin), 16, "#eceff2");
    auto const draw = [&](std::vector<Interval> const& intervals, double offset, double height, char const* colour,
                          char const* what) {
      for (Interval const& interval : intervals)
        svg.rectangle({x(interval.begin), y + offset}, std::max(0.4, x(interval.end) - x(interval.begin)), height,
                      colour, std::string(what) + ", " + in_ms(interval.seconds()) + " ms");
    };
    draw(of_rank.computes, 2, 16, "#1b6ca8", "compute");
    draw(of_rank.waits, 2, 16, "#d1242f", "wait");
    draw(of_rank.transfers, 19, 3, "#e8a33d", "message in flight");
    y += row;
  }
  for (int tick = 0; tick <= 4; ++tick)
    svg.text({left + width * tick / 4, y + 14}, in_ms(seconds * tick / 4) + " ms", {.anchor = Anchor::middle});
  return y + 30;
}

void draw(std::ostream& stream, Timelines const& timelines) {
  constexpr double legend = 30;
  double height = legend;
  for (auto const& [pass, timeline] : timelines) height += 64 + 26 * static_cast<double>(timeline.ranks.size());
  Svg svg(stream, 900, height, "Timeline of the ranks of a ring");
  double x = 70;
  for (auto const& [colour, words] : {std::pair{"#1b6ca8", "compute"},
                                      {"#d1242f", "wait for a message or a late rank"},
                                      {"#e8a33d", "message in flight"},
                                      {"#eceff2", "other work, agreement of the ranks"}}) {
    svg.rectangle({x, 10}, 12, 12, colour);
    svg.text({x + 18, 20}, words);
    x += 40 + 6.6 * static_cast<double>(std::string_view(words).size());
  }
  double top = legend;
  for (auto const& [pass, timeline] : timelines) top = draw_pass(svg, pass, timeline, top);
}

}  // namespace

CLI::App& add_trace(CLI::App& app, TraceOptions& options) {
  CLI::App& trace = *app.add_subcommand(
      "trace", "work, exposed communication and imbalance of the ranks, from a timeline of annulus attend --trace");
  trace
      .add_option_function<std::string>(
          "FILE", [&options](std::string const& text) { options.trace = text; }, "timeline to read")
      ->required()
      ->type_name("");
  add_file(trace, "--svg", options.svg, "draw the timeline as an SVG picture");
  return trace;
}

void run_trace(TraceOptions const& options) {
  Timelines const timelines = read_timelines(options.trace);
  if (!options.svg.empty())
    write_file(options.svg, {options.trace}, [&](std::ostream& stream) { draw(stream, timelines); });
  print_table(std::cout, timelines);
}

}  // namespace annulus_command
