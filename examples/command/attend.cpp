#include "attend.hpp"

#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "attend_files.hpp"
#include "mpi_attend.hpp"
#include "progress.hpp"
#include "result_files.hpp"
#include "ring_options.hpp"
#include "simulated_attend.hpp"
#include "standard_output.hpp"
#include "verification.hpp"

namespace annulus_command {

namespace {

Call call_of(AttendOptions const& options, CallShape const& shape) {
  Call call{.shape = shape,
            .options = options.attention,
            .axes = options.axes,
            .backend = options.backend,
            .threads = options.threads};
  call.options.sharding = sharding_of(options.attention.sharding, options.block);
  return call;
}

/// Steps of one rank in all passes. Throws the library's errors for a bad problem before any file is created.
std::size_t steps_of_a_rank(Call const& call, int ranks) {
  int steps = plan_of(call, annulus::Pass::forward, ranks).steps();
  if (call.shape.backward) steps += plan_of(call, annulus::Pass::backward, ranks).steps();
  return static_cast<std::size_t>(steps);
}

/// Prints the errors of all results. Throws std::runtime_error if one exceeds its rounding bound.
template <annulus::Scalar T>
void verify(Inputs<T> const& inputs, Call const& call, Results<T> const& results) {
  std::vector<Verified> all;
  {
    Progress const progress("verify", 1);
    all = verified(inputs, call, results);
  }
  std::cout << "largest relative error against the reference backend on one rank, in double; share: the largest ratio "
               "of an\n"
               "element's error to its rounding bound, accepted up to 1; bound: that of this element\n";
  print_formatted("  %-6s %10s %10s %10s\n", "", "error", "bound", "share");
  for (Verified const& result : all)
    print_formatted("  %-6s %10.3g %10.3g %10.3g\n", result.name.c_str(), result.largest, result.bound,
                    result.of_bound);
  for (Verified const& result : all)
    if (!result.good()) throw std::runtime_error("--verify: " + result.worst);
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
      results = attend_simulated(inputs, call, logs, options.timeout);
      for (StepLog& log : logs) spans.push_back(std::move(log.spans()));
    }
    files_out.write(results, spans);
    if (options.verify) verify(inputs, call, results);
  });
}

void require_ranks_of(int started, AttendOptions const& options) {
  if (options.ranks && *options.ranks != started)
    throw InputError("--ranks " + std::to_string(*options.ranks) + ": mpirun started " + std::to_string(started) +
                     " processes; accepted: that number, or no --ranks");
}

void attend_on_all_processes(AttendOptions const& options, MpiSession& session) {
  Collectives& ranks = session.ranks();
  bool const first = ranks.rank() == 0;
  AttendFiles files;
  CallShape shape;
  std::size_t steps = 0;
  auto const read = [&] {
    require_ranks_of(ranks.size(), options);
    require_consistent(options);
    files = read_files(options);
    shape = shape_of(files, options);
    steps = steps_of_a_rank(call_of(options, shape), ranks.size());
  };
  session.on_first(read, WhenLost::end_at_once);
  shape = ranks.from_first(shape);
  Call const call = call_of(options, shape);
  with_scalar(shape.dtype, [&]<class T>(std::type_identity<T>) {
    std::optional<Inputs<T>> inputs;
    std::optional<ResultFiles> files_out;
    auto const prepare = [&] {
      inputs = inputs_of<T>(std::move(files), shape);
      files_out.emplace(options, shape);
    };
    session.on_first(prepare, WhenLost::finish_first);
    std::optional<Results<T>> results;
    std::vector<std::vector<Span>> spans;
    {
      std::optional<Progress> progress;
      if (first) progress.emplace("attend", steps);
      // Clocks of different machines differ, so the time axis of every rank starts at this barrier.
      ranks.barrier();
      StepLog log(StepLog::Clock::now(), first ? &*progress : nullptr);
      results = attend_over_mpi(ranks, first ? &*inputs : nullptr, call, log);
      spans = all_spans(ranks, log.spans());
    }
    session.on_first([&] { files_out->write(*results, spans); }, WhenLost::finish_first);
    if (options.verify) session.on_first([&] { verify(*inputs, call, *results); }, WhenLost::end_at_once);
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
