#include "attend.hpp"

#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "attend_files.hpp"
#include "mpi_attend.hpp"
#include "progress.hpp"
#include "result_files.hpp"
#include "simulated_attend.hpp"
#include "verification.hpp"

namespace annulus_command {

namespace {

Call call_of(AttendOptions const& options, CallShape const& shape) {
  return {.shape = shape,
          .options = options.attention,
          .axes = options.axes,
          .backend = options.backend,
          .threads = options.threads};
}

/// Steps of one rank in all passes. Throws what the library would, so that it is said before anything is made.
std::size_t steps_of_a_rank(Call const& call, int ranks) {
  int steps = plan_of(call, annulus::Pass::forward, ranks).steps();
  if (call.shape.backward) steps += plan_of(call, annulus::Pass::backward, ranks).steps();
  return static_cast<std::size_t>(steps);
}

template <annulus::Scalar T>
void verify(Inputs<T> const& inputs, Call const& call, Results<T> const& results) {
  Errors errors;
  {
    Progress const progress("verify", 1);
    errors = errors_against_reference(inputs, call, results);
  }
  std::puts("largest relative error against the reference backend on one rank, in double");
  for (auto const& [name, error] : errors) std::printf("  %-6s %.3g\n", name.c_str(), error);
  for (auto const& [name, error] : errors)
    if (!std::isfinite(error))
      throw std::runtime_error("--verify: " + name + " has elements that are not finite where the reference, in double, "
                               "is, or that are no numbers at all");
}

void attend_in_one_process(AttendOptions const& options) {
  int const ranks = options.ranks.value_or(default_simulated_ranks);
  require_consistent(options);
  AttendFiles files = read_files(options);
  Call const call = call_of(options, shape_of(files, options));
  std::size_t const steps = steps_of_a_rank(call, ranks);
  with_scalar(call.shape.dtype, [&]<class T>(std::type_identity<T>) {
    Inputs<T> const inputs = inputs_of<T>(std::move(files), call.shape);
    ResultFiles files_out(options, call.shape);
    Results<T> results;
    std::vector<std::vector<Span>> spans;
    {
      Progress progress("attend", steps * static_cast<std::size_t>(ranks));
      std::vector<StepLog> logs(static_cast<std::size_t>(ranks), StepLog(StepLog::Clock::now(), &progress));
      results = attend_simulated(inputs, call, logs);
      for (StepLog& log : logs) spans.push_back(std::move(log.spans()));
    }
    files_out.write(results, spans);
    if (options.verify) verify(inputs, call, results);
  });
}

void require_ranks_of(MpiSession const& session, AttendOptions const& options) {
  if (options.ranks && *options.ranks != session.size())
    throw InputError("--ranks " + std::to_string(*options.ranks) + ": mpirun started " +
                     std::to_string(session.size()) + "; accepted: that number, or no --ranks");
}

void attend_on_all_processes(AttendOptions const& options, MpiSession& session) {
  bool const first = session.rank() == 0;
  AttendFiles files;
  CallShape shape;
  std::size_t steps = 0;
  session.together([&] {
    if (!first) return;
    require_ranks_of(session, options);
    require_consistent(options);
    files = read_files(options);
    shape = shape_of(files, options);
    steps = steps_of_a_rank(call_of(options, shape), session.size());
  });
  session.broadcast(shape);
  Call const call = call_of(options, shape);
  with_scalar(shape.dtype, [&]<class T>(std::type_identity<T>) {
    std::optional<Inputs<T>> inputs;
    std::optional<ResultFiles> files_out;
    session.together([&] {
      if (!first) return;
      inputs = inputs_of<T>(std::move(files), shape);
      files_out.emplace(options, shape);
    });
    std::optional<Results<T>> results;
    std::vector<std::vector<Span>> spans;
    {
      std::optional<Progress> progress;
      if (first) progress.emplace("attend", steps);
      // Clocks of different machines show different times: they all start here.
      session.barrier();
      StepLog log(StepLog::Clock::now(), first ? &*progress : nullptr);
      results = attend_over_mpi(session, first ? &*inputs : nullptr, call, log);
      spans = all_spans(session, log.spans());
    }
    session.together([&] {
      if (!first) return;
      files_out->write(*results, spans);
      if (options.verify) verify(*inputs, call, *results);
    });
  });
}

}  // namespace

void run_attend(AttendOptions const& options, MpiSession* session) {
  if (session)
    attend_on_all_processes(options, *session);
  else
    attend_in_one_process(options);
}

}  // namespace annulus_command
