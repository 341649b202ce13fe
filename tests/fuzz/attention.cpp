// Fuzz target: both passes of a tiny problem on a simulated ring, by the reference and the CPU backend, against dense
// attention in double. Documents, maps, masks and operands are of any form; the contents of padding are NaN.

#include <annulus/annulus.hpp>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "fuzz/fuzzed_sharding.hpp"
#include "fuzz/property.hpp"
#include "support/judge.hpp"

namespace {

using namespace annulus_test;
using annulus::Rotation;
using annulus_fuzz::ByteReader;
using annulus_fuzz::require;

constexpr Index longest = 12;

/// Document ids from -1, which is padding like 0, to 4, in any order.
std::vector<int> document_ids(ByteReader& in, Index count) {
  std::vector<int> ids;
  for (Index i = 0; i < count; ++i) {
    ids.push_back(static_cast<int>(in.between(0, 5) + 1) % 6);
    if (in.one_in(16)) --ids.back();
  }
  return ids;
}

void choose_extents(ByteReader& in, RingProblem& problem) {
  OracleProblem& d = problem.dense;
  problem.ranks = static_cast<int>(in.between(1, 4));
  d.batch = in.between(1, 2);
  d.kv_heads = in.between(1, 2);
  d.query_heads = d.kv_heads * in.between(1, 2);
  d.head_dim = in.between(1, 5);
  d.value_dim = in.between(1, 5);
  d.query_length = in.between(0, longest);
  d.key_length = in.one_in(3) ? in.between(0, longest) : d.query_length;
}

void choose_lengths(ByteReader& in, RingProblem& problem) {
  OracleProblem const& d = problem.dense;
  if (in.one_in(4)) {
    problem.query_lengths = annulus_fuzz::uneven_lengths(in, problem.ranks, d.query_length);
    problem.key_lengths = annulus_fuzz::uneven_lengths(in, problem.ranks, d.key_length);
  } else {
    problem.options.sharding = annulus_fuzz::valid_sharding(in, problem.ranks, d.query_length, d.key_length);
    take_lengths_from_sharding(problem);
  }
}

void choose_rules(ByteReader& in, OracleProblem& d) {
  annulus::Mask const mask = annulus_fuzz::valid_mask(in, longest);
  d.causal = mask.causal;
  d.window_left = mask.window.left;
  d.window_right = mask.window.right;
  d.sink_tokens = mask.sink_tokens;
  d.chunk = mask.chunk;
  if (in.one_in(3)) d.query_offset = in.between(-longest, longest);
  if (in.one_in(4)) d.softmax_scale = in.of({0.0, -0.5, 1.0, 8.0});
  if (in.one_in(4)) d.logit_softcap = in.of({0.5, 2.0, 30.0});
  if (in.one_in(4)) {
    d.dropout_probability = in.of({0.5, 0.1, 0.9});
    d.dropout_seed = in.byte();
  }
}

void choose_operands(ByteReader& in, RingProblem& problem, std::mt19937_64& engine) {
  OracleProblem& d = problem.dense;
  auto const broadcast = [&](std::int64_t extent) { return in.one_in(2) ? extent : 1; };
  if (in.one_in(3)) {
    d.bias = {broadcast(d.batch), broadcast(d.query_heads), {}};
    d.bias->values = uniform(engine, d.bias->batch * d.bias->heads * d.query_length * d.key_length, 2);
  }
  if (in.one_in(3)) {
    d.mask = {broadcast(d.batch), broadcast(d.query_heads), {}};
    for (Index i = 0; i < d.mask->batch * d.mask->heads * d.query_length * d.key_length; ++i)
      d.mask->values.push_back(in.one_in(2) ? 0 : 1);
  }
  if (in.one_in(2)) {
    d.query_documents = document_ids(in, d.batch * d.query_length);
    d.key_documents =
        d.query_length == d.key_length && !in.one_in(2) ? *d.query_documents : document_ids(in, d.batch * d.key_length);
  }
  if (in.one_in(3)) {
    d.sinks.emplace();
    d.sinks->count = in.between(1, 3);
    d.sinks->values = uniform(engine, d.query_heads * d.sinks->count, 2);
  }
}

/// Makes the values of rows that are padding NaN.
void poison(std::vector<double>& values, std::vector<int> const& ids) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (ids[i * ids.size() / values.size()] <= 0) values[i] = std::numeric_limits<double>::quiet_NaN();
}

RingProblem problem_of(ByteReader& in) {
  RingProblem problem;
  choose_extents(in, problem);
  choose_lengths(in, problem);
  choose_rules(in, problem.dense);
  std::mt19937_64 engine(in.byte());
  fill_operands(problem, engine);
  choose_operands(in, problem, engine);
  take_options_from_dense(problem);
  OracleProblem& d = problem.dense;
  problem.options.rotation = d.bias || d.mask ? in.of({Rotation::automatic, Rotation::keys})
                                              : in.of({Rotation::automatic, Rotation::keys, Rotation::queries});
  problem.options.checked = in.one_in(2);
  if (d.query_documents && in.one_in(2)) {
    poison(d.q, *d.query_documents);
    poison(problem.dout, *d.query_documents);
    poison(d.k, *d.key_documents);
    poison(d.v, *d.key_documents);
  }
  return problem;
}

/// make() returns the backend of a rank.
template <class Make>
void check(RingProblem const& problem, char const* name, Make&& make) {
  auto const by_rank = annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
    auto backend = make();
    return run_rank<double>(problem, ring, backend);
  });
  std::string const complaint = judge(problem, assemble(problem, by_rank), double_bounds).complaint;
  require(complaint.empty(), name, ": ", complaint);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  ByteReader in(data, size);
  RingProblem const problem = problem_of(in);
  check(problem, "reference backend", [] { return annulus::ReferenceBackend{}; });
  check(problem, "CPU backend", [] { return annulus::CpuBackend{.threads = 1}; });
  return 0;
}
