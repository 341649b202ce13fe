// annulus: ring attention on the command line. Each subcommand has its own files.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <optional>
#include <span>
#include <string>

#include "attend.hpp"
#include "attend_options.hpp"
#include "demo.hpp"
#include "exit_status.hpp"
#include "mpi_session.hpp"
#include "nki.hpp"
#include "plan.hpp"

namespace {

using namespace annulus_command;

/// One line, from one rank.
int end_with(Ending const& ending, bool speaks) {
  if (speaks) std::fprintf(stderr, "annulus: %s\n", ending.line.c_str());
  return ending.status;
}

/// What CLI11 says, and where to read what is accepted.
Ending ending_of_parsing(CLI::App const& app, CLI::ParseError const& error) {
  std::string command = app.get_name();
  if (app.get_subcommands().empty()) {
    std::string accepted;
    for (CLI::App const* subcommand : app.get_subcommands({}))
      accepted += (accepted.empty() ? "" : "|") + subcommand->get_name();
    auto const given = app.remaining();
    return {bad_input, (given.empty() ? "no subcommand is given" : "'" + excerpt(given[0]) + "' is no subcommand") +
                           "; accepted: " + accepted};
  }
  for (CLI::App const* subcommand : app.get_subcommands()) command += " " + subcommand->get_name();
  return {bad_input, detail::one_line(error.what()) + "; '" + command + " --help' lists what is accepted"};
}

int run(int argc, char** argv, MpiSession* session) {
  bool const speaks = !session || session->rank() == 0;
  CLI::App app("Exact attention over a sequence that is spread on the ranks of a ring.", "annulus");
  AttendOptions attend_options;
  DemoOptions demo_options;
  PlanOptions plan_options;
  NkiOptions nki_options;
  CLI::App const& attend = add_attend(app, attend_options);
  CLI::App const& demo = add_demo(app, demo_options);
  CLI::App const& plan = add_plan(app, plan_options);
  add_nki(app, nki_options);
  app.require_subcommand(1);
  try {
    app.parse(argc, argv);
  } catch (CLI::Success const& help) {
    return speaks ? app.exit(help) : 0;
  } catch (CLI::ParseError const& error) {
    return end_with(ending_of_parsing(app, error), speaks);
  }
  try {
    if (attend.parsed())
      run_attend(attend_options, session);
    else if (demo.parsed())
      return run_demo(demo_options);
    else if (plan.parsed())
      run_plan(plan_options);
    else
      run_nki_command(nki_options);
    return success;
  } catch (...) {
    return end_with(ending_of(std::current_exception()), speaks);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::optional<MpiSession> session;
    if (asks_for_mpi(std::span(argv, static_cast<std::size_t>(argc)))) session.emplace(argc, argv);
    return run(argc, argv, session ? &*session : nullptr);
  } catch (...) {
    return end_with(ending_of(std::current_exception()), true);
  }
}
