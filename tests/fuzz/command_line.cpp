// Fuzz target: the command line. The input is one argument a line. Parses it, checks the consistency of options, and
// runs `annulus plan` where the problem is small.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "command/attend.hpp"
#include "command/demo.hpp"
#include "command/errors.hpp"
#include "command/nki.hpp"
#include "command/plan.hpp"
#include "command/trace.hpp"
#include "command_unit/npy_file.hpp"
#include "fuzz/captured_output.hpp"
#include "fuzz/property.hpp"

namespace {

using namespace annulus_command;
using annulus_fuzz::require;

/// The command line that main() sets up.
struct Commands {
  CLI::App app{"fuzzed", "annulus"};
  AttendOptions attend_options;
  DemoOptions demo_options;
  PlanOptions plan_options;
  TraceOptions trace_options;
  NkiOptions nki_options;
  CLI::App const &attend, &plan, &nki;

  Commands()
      : attend(add_attend(app, attend_options)), plan(add_plan(app, plan_options)), nki(add_nki(app, nki_options)) {
    add_demo(app, demo_options);
    add_trace(app, trace_options);
    app.require_subcommand(1);
  }
};

std::vector<std::string> lines_of(std::string const& text) {
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    std::size_t const end = std::min(text.find('\n', begin), text.size());
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

/// Parses the arguments; false if they are refused or ask for help. A callback of an option may throw nothing else.
bool is_parsed(CLI::App& app, std::vector<std::string> arguments) {
  std::reverse(arguments.begin(), arguments.end());  // the order that CLI11 takes
  try {
    app.parse(arguments);
    return true;
  } catch (CLI::Success const&) {
    return false;
  } catch (CLI::ParseError const& error) {
    require(!std::string(error.what()).empty(), "a parse error without a message");
    return false;
  }
}

/// Runs act(). It may throw an error of bad input alone, with a message of one line; returns true if it throws none.
template <class Act>
bool is_accepted(Act&& act) {
  std::string message;
  try {
    act();
    return true;
  } catch (InputError const& error) {
    message = error.what();
  } catch (annulus::ShapeError const& error) {
    message = error.what();
  } catch (annulus::UnsupportedError const& error) {
    message = error.what();
  }
  require(!message.empty() && message.find('\n') == std::string::npos && message.size() < 2000,
          "the message is not clear: ", message);
  return false;
}

/// True if planning takes milliseconds: few ranks and steps, and few runs of positions.
bool is_small(PlanOptions const& options) {
  using annulus::Index;
  Index const positions = std::max({options.tokens.value_or(0), options.queries.value_or(0), options.keys.value_or(0)});
  bool const few_runs =
      options.sharding == annulus::Sharding() || options.sharding == annulus::Sharding(annulus::Zigzag{});
  return options.ranks <= 12 && (positions <= 512 || (few_runs && options.mask.chunk == 0));
}

void check_plan(PlanOptions options) {
  static annulus_test::TemporaryFolder const folder;
  if (!options.svg.empty()) options.svg = folder / "balance.svg";
  if (!options.svg_memory.empty()) options.svg_memory = folder / "memory.svg";
  annulus_fuzz::CapturedOutput const output;
  if (!is_accepted([&] { run_plan(options); })) return;
  std::string const text = output.text();
  require(!text.empty(), "a plan prints nothing");
  require(!options.json || nlohmann::json::accept(text), "this is not JSON: ", text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  Commands commands;
  if (!is_parsed(commands.app, lines_of(std::string(reinterpret_cast<char const*>(data), size)))) return 0;
  if (commands.attend.parsed()) is_accepted([&] { require_consistent(commands.attend_options); });
  if (commands.nki.parsed()) is_accepted([&] { require_consistent(commands.nki_options); });
  if (commands.plan.parsed() && is_small(commands.plan_options)) check_plan(commands.plan_options);
  return 0;
}
