// The annulus command: ring attention on the command line. Each subcommand has its own files.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attend.hpp"
#include "demo.hpp"
#include "errors.hpp"
#include "launch.hpp"
#include "mpi_session.hpp"
#include "nki.hpp"
#include "output_stream.hpp"
#include "pending_file.hpp"
#include "plan.hpp"
#include "trace.hpp"

namespace {

using namespace annulus_command;

/// Flushes standard output, prints the message on stderr if `reports`, and returns the exit status.
int end_with(Ending const& ending, bool reports) {
  std::cout.flush();
  if (reports) std::fprintf(stderr, "annulus: %s\n", ending.text());
  return ending.status;
}

/// Message of a parse error: the error, and what is accepted or which --help lists it.
std::string parse_error_line(CLI::App const& app, CLI::ParseError const& error) {
  std::string command = app.get_name();
  if (app.get_subcommands().empty()) {
    std::string accepted;
    for (CLI::App const* subcommand : app.get_subcommands({}))
      accepted += (accepted.empty() ? "" : "|") + subcommand->get_name();
    auto const given = app.remaining();
    return (given.empty() ? "no subcommand is given" : "'" + excerpt(given[0]) + "' is not a subcommand") +
           "; accepted: " + accepted;
  }
  for (CLI::App const* subcommand : app.get_subcommands()) command += " " + subcommand->get_name();
  return std::string(error.what()) + "; '" + command + " --help' lists the accepted options";
}

/// The parsed command line of this process. Errors and requests for help are kept until the ranks have met.
class CommandLine {
 public:
  CommandLine(int argc, char** argv)
      : attend_(add_attend(app_, attend_options_)),
        demo_(add_demo(app_, demo_options_)),
        plan_(add_plan(app_, plan_options_)),
        trace_(add_trace(app_, trace_options_)) {
    add_nki(app_, nki_options_);
    app_.require_subcommand(1);
    app_.set_version_flag("--version", "annulus " ANNULUS_VERSION);
    try {
      app_.parse(argc, argv);
    } catch (CLI::Success const&) {
      help_ = std::current_exception();
    } catch (CLI::ParseError const& error) {
      error_ = std::make_exception_ptr(InputError(parse_error_line(app_, error)));
    }
  }

  AttendOptions const& attend_options() const { return attend_options_; }
  bool asks_for_help() const { return help_ != nullptr; }

  /// Throws InputError if the command line could not be parsed.
  void require_parsed() const {
    if (error_) std::rethrow_exception(error_);
  }

  /// Prints the requested help.
  void print_help() const {
    try {
      std::rethrow_exception(help_);
    } catch (CLI::Success const& help) {
      app_.exit(help);
    }
  }

  /// Throws InputError if the subcommand cannot run on the several processes of `launch`.
  void require_for_all_processes(Launch const& launch) const {
    if (!attend_.parsed())
      throw InputError(started(launch) + ", but '" + app_.get_subcommands()[0]->get_name() +
                       "' runs on one process; accepted: one process");
    if (Comm const comm = attend_options_.comm(); comm != Comm::mpi)
      throw InputError(started(launch) + ", but with --comm " + name_of(comm) +
                       " each would compute and write the same results; " + "accepted: --comm mpi, or one process");
  }

  /// Runs the subcommand in this process alone.
  void run_alone() const {
    if (attend_.parsed())
      run_attend(attend_options_, nullptr);
    else if (demo_.parsed())
      run_demo(demo_options_);
    else if (plan_.parsed())
      run_plan(plan_options_);
    else if (trace_.parsed())
      run_trace(trace_options_);
    else
      run_nki_command(nki_options_);
  }

  /// The values that must be equal on all ranks.
  OptionValues values() const {
    OptionValues values;
    values.add("--help", help_ ? "given" : "");
    if (help_) return values;
    CLI::App const& subcommand = *app_.get_subcommands()[0];
    values.add("the subcommand", subcommand.get_name());
    values.add_all(subcommand);
    return values;
  }

 private:
  CLI::App app_{"Exact attention over a sequence sharded across the ranks of a ring.", "annulus"};
  AttendOptions attend_options_;
  DemoOptions demo_options_;
  PlanOptions plan_options_;
  TraceOptions trace_options_;
  NkiOptions nki_options_;
  CLI::App const &attend_, &demo_, &plan_, &trace_;
  std::exception_ptr help_, error_;
};

/// Runs the command on all ranks of `session`. Collective.
void run_together(CommandLine const& line, MpiSession& session, std::optional<Launch> const& launch,
                  StandardOutput& output) {
  Collectives& ranks = session.ranks();
  ranks.together([&] { line.require_parsed(); });
  std::vector<std::string> const records = ranks.all_texts(line.values().text());
  ranks.together([&] {
    OptionValues::require_equal(records);
    if (launch && launch->processes > 1 && !line.asks_for_help()) line.require_for_all_processes(*launch);
  });
  if (!line.asks_for_help())
    run_attend(line.attend_options(), &session);
  else if (ranks.rank() == 0)
    line.print_help();
  ranks.together([&] { output.finish(); });
}

// Sanitizers intercept calls of the C library and are not ready so early; not every C library has such an array.
#if defined(__GLIBC__) && !defined(ANNULUS_SANITIZED)
[[gnu::section(".preinit_array"), gnu::used]] void (*const before_libraries)() = detail::note_ignored_signals;
#else
[[gnu::constructor]] void before_main() { detail::note_ignored_signals(); }
#endif

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_descriptors();
  clean_up_on_signals();
  StandardOutput output;
  // If MPI does not connect the processes of a launch, only the first one prints messages.
  bool reports = true;
  try {
    std::optional<Launch> const launch = launch_of([](char const* name) { return std::getenv(name); });
    bool const several = launch && launch->processes > 1;
    CommandLine const line(argc, argv);
    bool const wants_mpi = asks_for_mpi(std::span(argv, static_cast<std::size_t>(argc)));
    if (wants_mpi || (several && starts_mpi(launch->variable))) {
      reports = !launch || launch->rank == 0;
      MpiSession session(argc, argv, line.attend_options().timeout, launch ? launch->rank : 0);
      // Under the launcher of a different MPI implementation each process is a job of its own.
      bool const connected = !several || session.ranks().size() > 1;
      int const status = session.run([&] {
        if (!connected) return int{bad_input};
        run_together(line, session, launch, output);
        return int{success};
      });
      if (connected) return status;
      throw InputError(
          started(*launch) +
          ", but MPI does not connect them; accepted: the launcher of the MPI that the command was built with");
    }
    reports = !several || launch->rank == 0;
    line.require_parsed();
    if (several && !line.asks_for_help()) line.require_for_all_processes(*launch);
    if (!line.asks_for_help())
      line.run_alone();
    else if (reports)
      line.print_help();
    output.finish();
    return success;
  } catch (...) {
    return end_with(ending_of(std::current_exception()), reports);
  }
}
