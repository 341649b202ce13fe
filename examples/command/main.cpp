// annulus: ring attention on the command line. Each subcommand has its own files.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attend.hpp"
#include "attend_options.hpp"
#include "demo.hpp"
#include "exit_status.hpp"
#include "input_error.hpp"
#include "launch.hpp"
#include "mpi_session.hpp"
#include "nki.hpp"
#include "option_values.hpp"
#include "plan.hpp"
#include "removed_unless_kept.hpp"
#include "standard_output.hpp"

namespace {

using namespace annulus_command;

/// One line, from one rank, after what was printed before.
int end_with(Ending const& ending, bool speaks) {
  std::cout.flush();
  if (speaks) std::fprintf(stderr, "annulus: %s\n", ending.text());
  return ending.status;
}

/// What CLI11 says, and where to read what is accepted.
std::string line_of_parsing(CLI::App const& app, CLI::ParseError const& error) {
  std::string command = app.get_name();
  if (app.get_subcommands().empty()) {
    std::string accepted;
    for (CLI::App const* subcommand : app.get_subcommands({}))
      accepted += (accepted.empty() ? "" : "|") + subcommand->get_name();
    auto const given = app.remaining();
    return (given.empty() ? "no subcommand is given" : "'" + excerpt(given[0]) + "' is no subcommand") +
           "; accepted: " + accepted;
  }
  for (CLI::App const* subcommand : app.get_subcommands()) command += " " + subcommand->get_name();
  return std::string(error.what()) + "; '" + command + " --help' lists what is accepted";
}

/// A process's command line, parsed.
class CommandLine {
 public:
  CommandLine(int argc, char** argv)
      : attend_(add_attend(app_, attend_options_)),
        demo_(add_demo(app_, demo_options_)),
        plan_(add_plan(app_, plan_options_)) {
    add_nki(app_, nki_options_);
    app_.require_subcommand(1);
    app_.set_version_flag("--version", "annulus " ANNULUS_VERSION);
    try {
      app_.parse(argc, argv);
    } catch (CLI::Success const&) {
      help_ = std::current_exception();
    } catch (CLI::ParseError const& error) {
      error_ = std::make_exception_ptr(InputError(line_of_parsing(app_, error)));
    }
  }

  AttendOptions const& attend_options() const { return attend_options_; }
  bool asks_for_help() const { return help_ != nullptr; }

  /// Throws what is wrong with the options.
  void require_parsed() const {
    if (error_) std::rethrow_exception(error_);
  }

  /// Prints the help that is asked for.
  void print_help() const {
    try {
      std::rethrow_exception(help_);
    } catch (CLI::Success const& help) {
      app_.exit(help);
    }
  }

  /// Throws InputError for a subcommand that the processes of one launch do not share.
  void require_for_all_processes(Launch const& launch) const {
    if (!attend_.parsed())
      throw InputError(started(launch) + ", and '" + app_.get_subcommands()[0]->get_name() +
                       "' is computed by one; accepted: one process");
    if (!attend_options_.mpi)
      throw InputError(started(launch) + ", and with --comm sim each of them would compute and write the same; " +
                       "accepted: --comm mpi, or one process");
  }

  /// Runs the subcommand in this process alone.
  void run_alone() const {
    if (attend_.parsed())
      run_attend(attend_options_, nullptr);
    else if (demo_.parsed())
      run_demo(demo_options_);
    else if (plan_.parsed())
      run_plan(plan_options_);
    else
      run_nki_command(nki_options_);
  }

  /// All that must be the same on all ranks.
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
  CLI::App app_{"Exact attention over a sequence that is spread on the ranks of a ring.", "annulus"};
  AttendOptions attend_options_;
  DemoOptions demo_options_;
  PlanOptions plan_options_;
  NkiOptions nki_options_;
  CLI::App const &attend_, &demo_, &plan_;
  std::exception_ptr help_, error_;
};

/// What the processes of a launch do, which have met in `session`. Called by all of them.
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

}  // namespace

int main(int argc, char** argv) {
  occupy_standard_descriptors();
  clean_up_on_signals();
  StandardOutput output;
  // Of several processes that MPI does not connect, the first speaks.
  bool speaks = true;
  try {
    std::optional<Launch> const launch = launch_of([](char const* name) { return std::getenv(name); });
    bool const several = launch && launch->processes > 1;
    CommandLine const line(argc, argv);
    bool const asks = asks_for_mpi(std::span(argv, static_cast<std::size_t>(argc)));
    if (asks || (several && starts_mpi(launch->variable))) {
      speaks = !launch || launch->rank == 0;
      MpiSession session(argc, argv, line.attend_options().timeout, launch ? launch->rank : 0);
      // With the launcher of another MPI each process is alone.
      bool const connected = !several || session.ranks().size() > 1;
      int const status = session.run([&] {
        if (!connected) return int{bad_input};
        run_together(line, session, launch, output);
        return int{success};
      });
      if (connected) return status;
      throw InputError(
          started(*launch) +
          ", which MPI does not connect; accepted: the launcher of the MPI that the command was built with");
    }
    speaks = !several || launch->rank == 0;
    line.require_parsed();
    if (several && !line.asks_for_help()) line.require_for_all_processes(*launch);
    if (!line.asks_for_help())
      line.run_alone();
    else if (speaks)
      line.print_help();
    output.finish();
    return success;
  } catch (...) {
    return end_with(ending_of(std::current_exception()), speaks);
  }
}
