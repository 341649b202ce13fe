#include "attend.hpp"

#include <CLI/CLI.hpp>
#include <annulus/attention/call_request.hpp>
#include <annulus/attention/validate.hpp>
#include <iostream>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "attend_files.hpp"
#include "attend_on_ranks.hpp"
#include "errors.hpp"
#include "options.hpp"
#include "output_stream.hpp"
#include "packed_documents.hpp"
#include "progress.hpp"
#include "verification.hpp"

namespace annulus_command {

namespace {

void add_files(CLI::App& app, AttendOptions& options) {
  add_file(app, "--q", options.q, "queries, four axes in the order of --axes")->required();
  add_file(app, "--k", options.k, "keys")->required();
  add_file(app, "--v", options.v, "values; their last extent may differ from that of q and k")->required();
  CLI::Option* const dout =
      add_file(app, "--dout", options.dout, "gradient of the output; also runs the backward pass");
  CLI::Option* const bias =
      add_file(app, "--bias", options.bias, "[batch|1, heads|1, queries, keys], added to the logits");
  add_switch(app, "--bias-gradient", options.bias_gradient, "also write dbias.npy")->needs(bias)->needs(dout);
  add_file(app, "--mask", options.mask, "same shape as --bias, bool or 0 and 1, true where a query may see a key");
  CLI::Option* const q_segments = add_file(app, "--q-segments", options.q_segments,
                                           "[batch, queries], document id of each query; 0 or negative: padding");
  CLI::Option* const kv_segments =
      add_file(app, "--kv-segments", options.kv_segments, "[batch, keys], document id of each key");
  q_segments->needs(kv_segments);
  kv_segments->needs(q_segments);
  add_file(app, "--sinks", options.sinks, "[heads] or [heads, n], sink logits: extra terms of the softmax denominator");
  CLI::Option* const joint_k =
      add_file(app, "--joint-k", options.joint_k, "keys that all ranks hold, visible to every query; extents as --k");
  CLI::Option* const joint_v = add_file(app, "--joint-v", options.joint_v, "their values; extents as --v");
  joint_k->needs(joint_v);
  joint_v->needs(joint_k);
  add_file(
      app, "--out-dir", options.out_dir,
      "output folder for out.npy, lse.npy and the gradients; created if missing. out.npy is deleted first and written "
      "last: if it exists, the results are complete. Concurrent runs that use the same folder are refused")
      ->required()
      ->type_name("DIR");
  add_file(app, "--trace", options.trace, "write a timeline of all ranks, for Perfetto and chrome://tracing");
}

void add_ring(CLI::App& app, AttendOptions& options) {
  app.add_option("--ranks", options.ranks, "ranks of the ring")
      ->check(whole_number(1, most_ranks))
      ->type_name("N")
      ->default_str(std::to_string(default_simulated_ranks) + ", with mpi all of them, with cuda one a GPU");
  add_comm(app, options.asked_comm);
  add_timeout(app, options.timeout);
  add_sharding(app, options.attention.sharding, options.block);
  add_rotation(app, options.attention.rotation);
  add_schedule(app, options.attention.schedule, options.attention.ranks_per_group);
  add_wire(app, options.attention.wire);
  add_reproducible(app, options.attention.reproducible, options.attention.reproducible_leaf);
  app.add_option("--backend", options.backend, "compute backend: " + names_of_backends())
      ->default_str(options.backend)
      ->type_name("cpu|reference|nki|cuda");
  add_choice(app, "--dtype", options.dtype, data_types, "element type to compute with")
      ->default_str("that of q where it is f8 or f2, else float32");
  app.add_option("--threads", options.threads, "threads per rank; 0: the cores of the node divided by its ranks")
      ->check(whole_number(0, 1024))
      ->type_name("N")
      ->default_str("0");
  add_axes(app, options.axes);
}

void add_attention(CLI::App& app, AttendOptions& options) {
  annulus::Options& attention = options.attention;
  add_mask_options(app, attention.mask, attention.query_offset);
  add_logit_options(app, attention);
  CLI::Option* const dropout =
      app.add_option("--dropout", attention.dropout.probability, "probability of dropping a weight, 0 <= P < 1")
          ->check(finite_number())
          ->type_name("P")
          ->capture_default_str();
  app.add_option("--seed", attention.dropout.seed, "seed of the dropout")
      ->check(whole_number(std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max()))
      ->type_name("N")
      ->capture_default_str()
      ->needs(dropout);
}

}  // namespace

CLI::App& add_attend(CLI::App& app, AttendOptions& options) {
  CLI::App& attend = *app.add_subcommand("attend", "ring attention over tensors in .npy files");
  add_files(attend, options);
  add_ring(attend, options);
  add_attention(attend, options);
  add_switch(
      attend, "--hash", options.hash,
      "print the FNV-1a hash (64 bits) of each result and of the remainders of lse: of the bytes of all elements "
      "in the order of the file");
  add_switch(attend, "--require-finite", options.attention.require_finite,
             "end with status 1 at the first result that is not finite, and name its rank, step and row");
  add_switch(
      attend, "--verify", options.verify,
      "compare the results with those of the reference backend on one rank in double; exit status 1 if a difference is "
      "larger than rounding explains");
  return attend;
}

namespace {

/// Ranks that are threads.
int ranks_of(AttendOptions const& options) {
  if (options.ranks) return *options.ranks;
  return options.backend == gpu_backend ? number_of_gpus() : default_simulated_ranks;
}

}  // namespace

void require_consistent(AttendOptions const& options) {
  annulus::validate_rules(annulus::rules_of(options.attention));
  if (options.attention.rotation == annulus::Rotation::queries && !(options.bias.empty() && options.mask.empty()))
    throw InputError(
        "--rotation queries cannot be combined with --bias or --mask, whose rows span all keys and stay with their "
        "queries; "
        "accepted: auto|keys");
  if (!options.joint_k.empty()) annulus::detail::validate_joint_keys(annulus::rules_of(options.attention));
  require_block(options.attention.sharding, options.block);
  if (options.comm() != Comm::mpi) require_group(options.attention.schedule, options.attention.ranks_per_group);
  require_backend(options.backend, options.threads);
  require_comm(options.comm(), options.backend);
  if (options.backend != gpu_backend) return;
  if (options.attention.wire != annulus::Wire::as_stored)
    throw InputError("--wire with --backend cuda; accepted: stored");
  if (options.attention.require_finite) throw InputError("--require-finite with --backend cuda; accepted: without it");
  require_gpus(options.comm(), ranks_of(options));
}

namespace {

/// documents: of all batch items, for a balanced sharding.
Call call_of(AttendOptions const& options, CallShape const& shape, annulus::Documents const& documents, int ranks) {
  Call call{.shape = shape,
            .options = options.attention,
            .axes = options.axes,
            .backend = options.backend,
            .threads = options.threads};
  call.options.sharding = sharding_of(options.attention.sharding, options.block,
                                      {shape.queries, shape.keys, ranks, options.attention.mask, documents});
  call.options.query_offset = annulus::query_offset_of(annulus::rules_of(call.options), shape.queries, shape.keys);
  return call;
}

/// Steps of one rank in all passes, with those of both directions counted apart. Throws the library's errors for a bad
/// problem before any file is created.
std::size_t steps_of_a_rank(Call const& call, int ranks) {
  auto const computes = [&](annulus::Pass pass) {
    annulus::RingPlan const plan = plan_of(call, pass, ranks);
    return plan.steps() * static_cast<int>(plan.lanes().size());
  };
  int steps = computes(annulus::Pass::forward);
  if (call.shape.backward) steps += computes(annulus::Pass::backward);
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
  require_consistent(options);
  int const ranks = ranks_of(options);
  AttendFiles files = read_files(options);
  Call const call = call_of(options, shape_of(files, options), documents_in(files), ranks);
  std::size_t const steps = steps_of_a_rank(call, ranks);
  with_scalar(call.shape.dtype, [&]<class T>(std::type_identity<T>) {
    Inputs<T> const inputs = inputs_of<T>(std::move(files), call.shape);
    ResultFiles files_out(options, call.shape);
    Results<T> results;
    Intervals intervals;
    {
      Progress progress("attend", steps * static_cast<std::size_t>(ranks));
      std::vector<Timeline> timelines(static_cast<std::size_t>(ranks), Timeline(&progress));
      results = attend_on_threads(inputs, call, options.comm(), timelines, options.timeout);
      for (Timeline const& timeline : timelines) intervals.push_back(timeline.intervals());
    }
    files_out.write(results, intervals);
    if (options.verify) verify(inputs, call, results);
  });
}

void attend_on_all_processes(AttendOptions const& options, MpiSession& session) {
  Collectives& ranks = session.ranks();
  bool const first = ranks.rank() == 0;
  AttendFiles files;
  CallShape shape;
  annulus::Documents documents;
  std::size_t steps = 0;
  auto const call_on_processes = [&] {
    Call call = call_of(options, shape, documents, ranks.size());
    if (call.options.schedule == annulus::Schedule::double_ring && call.options.ranks_per_group == 0)
      call.options.ranks_per_group = annulus::detail::near_of(ranks.ring(), call.options);
    return call;
  };
  auto const read = [&] {
    if (options.ranks && *options.ranks != ranks.size())
      throw InputError("--ranks " + std::to_string(*options.ranks) + ": mpirun started " +
                       std::to_string(ranks.size()) + " processes; accepted: that number, or no --ranks");
    require_consistent(options);
    files = read_files(options);
    shape = shape_of(files, options);
    documents = documents_in(files);
    steps = steps_of_a_rank(call_on_processes(), ranks.size());
  };
  session.on_first(read, WhenLost::end_at_once);
  shape = ranks.from_first(shape);
  documents = ranks.list_from_first(documents);
  Call const call = call_on_processes();
  with_scalar(shape.dtype, [&]<class T>(std::type_identity<T>) {
    std::optional<Inputs<T>> inputs;
    std::optional<ResultFiles> files_out;
    auto const prepare = [&] {
      inputs = inputs_of<T>(std::move(files), shape);
      files_out.emplace(options, shape);
    };
    session.on_first(prepare, WhenLost::finish_first);
    std::optional<Results<T>> results;
    Intervals intervals;
    {
      std::optional<Progress> progress;
      if (first) progress.emplace("attend", steps);
      // Clocks of different machines differ, so the time axis of every rank starts at this barrier.
      ranks.barrier();
      Timeline timeline(first ? &*progress : nullptr, Timeline::Clock::now());
      results = attend_over_mpi(ranks, first ? &*inputs : nullptr, call, timeline);
      intervals = all_intervals(ranks, timeline.intervals());
    }
    session.on_first([&] { files_out->write(*results, intervals); }, WhenLost::finish_first);
    if (options.verify) session.on_first([&] { verify(*inputs, call, *results); }, WhenLost::end_at_once);
  });
}

}  // namespace

void run_attend(AttendOptions const& options, MpiSession* session) {
  session ? attend_on_all_processes(options, *session) : attend_in_one_process(options);
}

}  // namespace annulus_command
