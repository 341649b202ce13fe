// Program annulus_nki_emit FOLDER [key=value...]: writes the files with which a test executes a printed kernel and
// compares its results into FOLDER, which must exist:
//   kernel.py                  the printed program
//   stream.txt                 the instructions that its cores execute, see stream_file.hpp
//   NAME.WORKER.npy            inputs of each worker, float32 with values of the element type; for the backward pass
//                              also those of the forward pass
//   NAME.WORKER.simulated.npy  outputs of the simulator
// Keys: see kernel_case.hpp. Exit status 1, with one line on stderr, if no valid kernel can be built.

#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>

#include "annulus/nki/kernels/backward_kernel.hpp"
#include "annulus/nki/kernels/forward_kernel.hpp"
#include "annulus/nki/print/to_python.hpp"
#include "annulus/nki/simulate/arithmetic.hpp"
#include "annulus/nki/validate/validate.hpp"
#include "nki/emit/kernel_case.hpp"
#include "nki/emit/npy_file.hpp"
#include "nki/emit/stream_file.hpp"
#include "nki/simulate/simulated_launch.hpp"

namespace {

using namespace annulus;
using namespace annulus::nki;
using annulus_test::KernelCase;

std::vector<float> random_values(Index count, float size, std::seed_seq seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0, size);
  std::vector<float> values(static_cast<std::size_t>(count));
  std::ranges::generate(values, [&] { return normal(generator); });
  return values;
}

/// Values of a rank for each head and pair of global positions: of a bias, about one in 11 of which hides the pair, or
/// whether dropout keeps it.
std::vector<float> pair_values(KernelCase const& problem, bool queries_rotate, Buffer const& buffer, int rank) {
  std::vector<RankRows> const queries = problem.rank_rows(Side::query), keys = problem.rank_rows(Side::key);
  bool const kept = buffer.name == "kept";
  std::vector<float> values;
  for (Index other = 0; other < buffer.shape[0]; ++other) {
    auto const at = static_cast<std::size_t>(other % problem.spec.ranks), here = static_cast<std::size_t>(rank);
    auto const of_queries = positions_of(queries[queries_rotate ? at : here].segments),
               of_keys = positions_of(keys[queries_rotate ? here : at].segments);
    for (Index head = 0; head < buffer.shape[1]; ++head)
      for (Index i = 0; i < buffer.shape[2]; ++i)
        for (Index j = 0; j < buffer.shape[3]; ++j) {
          std::uint64_t hash = problem.seed + 2 * kept;
          for (Index place :
               {head, kept || problem.spec.bias.by_query ? of_queries[static_cast<std::size_t>(i)] + 1 : 0,
                kept || problem.spec.bias.by_key ? of_keys[static_cast<std::size_t>(j)] + 1 : 0})
            hash = (hash ^ static_cast<std::uint64_t>(place)) * 0x9e3779b97f4a7c15, hash ^= hash >> 29;
          double const part = static_cast<double>(hash % 4096) / 4096;
          values.push_back(kept             ? part < 1 / problem.spec.keep_scale
                           : hash % 11 == 0 ? hiding_bias
                                            : static_cast<float>(4 * part) - 2);
        }
  }
  return values;
}

/// The values of one input buffer for one worker, numbered across all groups. Buffers are named as in the kernels.
std::vector<float> input_values(KernelCase const& problem, RingMask const& mask, bool queries_rotate,
                                Buffer const& buffer, int worker, Tensors const& forward) {
  int const rank = worker % problem.spec.ranks;
  if (buffer.name == "mask_offsets") return mask.offsets(rank, problem.spec.groups, queries_rotate);
  if (buffer.name == "mask_ranges") return mask.ranges(rank, problem.spec.groups, queries_rotate);
  if (buffer.name == "mask_key_ranges") return mask.key_ranges(rank, problem.spec.groups);
  if (buffer.name == "bias" || buffer.name == "kept") return pair_values(problem, queries_rotate, buffer, rank);
  if (auto const found = forward.find(buffer.name); found != forward.end()) return found->second;
  std::uint32_t place = 0;
  for (char letter : buffer.name) place = 31 * place + static_cast<unsigned char>(letter);
  if (buffer.name == "sinks") {  // the same for every worker and batch item
    std::vector<float> const of_heads = random_values(buffer.size() / buffer.shape[0], 1, {problem.seed, place});
    std::vector<float> all;
    for (Index item = 0; item < buffer.shape[0]; ++item) all.insert(all.end(), of_heads.begin(), of_heads.end());
    return all;
  }
  return random_values(buffer.size(), buffer.name == "q" ? problem.query_size : 1.0f,
                       {problem.seed, place, static_cast<std::uint32_t>(worker)});
}

/// A program with its inputs and simulated outputs.
struct Run {
  ValidatedProgram validated;
  std::vector<Tensors> inputs, outputs;  // of each worker
};

/// Simulates the program on all groups. `forward`: per worker, results of another kernel that are inputs; empty: none.
Run run(Program program, KernelCase const& problem, RingMask const& mask, std::vector<Tensors> const& forward) {
  int const ranks = problem.spec.ranks;
  bool const queries_rotate = !forward.empty() && problem.spec.travels == RotatingSide::queries;
  Run result{annulus_test::valid(std::move(program)), {}, {}};
  Program const& checked = result.validated.program();
  for (int group = 0; group < problem.spec.groups; ++group) {
    std::vector<Tensors> inputs;
    for (int worker = group * ranks; worker < (group + 1) * ranks; ++worker) {
      Tensors& tensors = inputs.emplace_back();
      for (int number : checked.with_role(Role::input)) {
        Buffer const& buffer = checked.buffer(number);
        auto values = input_values(problem, mask, queries_rotate, buffer, worker,
                                   forward.empty() ? Tensors{} : forward[static_cast<std::size_t>(worker)]);
        simulator::round_to(buffer.type, values.data(), static_cast<Index>(values.size()));
        tensors[buffer.name] = std::move(values);
      }
    }
    Arrangement const arrangement{.ring = problem.ring,
                                  .ids = problem.global_ids ? Arrangement::Ids::global : Arrangement::Ids::position,
                                  .group_begin = group * ranks,
                                  .first_core = problem.spec.cores - 1};
    auto outputs = annulus_test::launch(result.validated, inputs, arrangement);
    std::ranges::move(inputs, std::back_inserter(result.inputs));
    std::ranges::move(outputs, std::back_inserter(result.outputs));
  }
  return result;
}

void write(Run const& run, std::filesystem::path const& folder) {
  Program const& program = run.validated.program();
  std::ofstream(folder / "kernel.py") << to_python(program);
  annulus_test::write_stream(folder / "stream.txt", program);
  for (std::size_t worker = 0; worker < run.inputs.size(); ++worker) {
    auto const file = [&](Buffer const& buffer, char const* ending) {
      return folder / (buffer.name + "." + std::to_string(worker) + ending);
    };
    for (int number : program.with_role(Role::input)) {
      Buffer const& buffer = program.buffer(number);
      annulus_test::write_npy(file(buffer, ".npy"), buffer.shape, run.inputs[worker].at(buffer.name));
    }
    for (int number : program.with_role(Role::output)) {
      Buffer const& buffer = program.buffer(number);
      annulus_test::write_npy(file(buffer, ".simulated.npy"), buffer.shape, run.outputs[worker].at(buffer.name));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    annulus::detail::check<Error>(argc >= 2, "usage: annulus_nki_emit FOLDER [key=value...]");
    KernelCase const problem = annulus_test::read_kernel_case(annulus_test::Words(argc - 2, argv + 2));
    RingMask const mask = problem.ring_mask();
    Run const forward =
        run(ForwardKernel(problem.spec, mask, {.least_half = problem.least_half}).ring(), problem, mask, {});
    write(forward, argv[1]);
    if (problem.backward)
      write(run(BackwardKernel(problem.spec, mask).ring(), problem, mask, forward.outputs), argv[1]);
  } catch (std::exception const& error) {
    std::cerr << "annulus_nki_emit: " << error.what() << '\n';
    return 1;
  }
}
