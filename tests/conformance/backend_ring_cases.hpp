#pragma once
// Backend cases in a ring: whole problems compared with the oracle, the same bits in every call, buffers as planned.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/attention/ring_attention.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "conformance/backend_step_cases.hpp"
#include "support/observed_backend.hpp"
#include "support/planned_pass.hpp"

namespace annulus_test::backend_cases {

/// One rank's results and the allocations of its backend.
struct ObservedRank {
  RingResult result;
  bool zero_copy = false;  ///< the ranks share memory
  Index allocations = 0, allocated_bytes = 0;
};

/// Every rank calls forward and backward `calls` times on the same RingAttention.
template <class T, class Implementation>
std::vector<ObservedRank> observe_ring(Implementation const& implementation, RingProblem const& problem, int calls,
                                       annulus::ZeroCopy zero_copy = annulus::ZeroCopy::automatic) {
  auto const run = [&](annulus::SimulatedRing& simulated) {
    decltype(auto) ring = implementation.ring(simulated);
    auto backend = implementation.make(static_cast<std::uint64_t>(100 + simulated.rank()));
    ObservedRank observed;
    observed.zero_copy = annulus::detail::shares_memory(ring);
    ObservedBackend watched(backend, [&](std::string_view operation, Index bytes) {
      observed.allocations += operation == "allocate";
      observed.allocated_bytes += bytes;
    });
    observed.result =
        run_rank<T, typename Implementation::Placement>(problem, ring, watched, annulus::EveryPair{}, calls);
    return observed;
  };
  return annulus::run_ring(problem.ranks, run, {.zero_copy = zero_copy});
}

inline RingResult assemble_observed(RingProblem const& problem, std::vector<ObservedRank> const& ranks) {
  std::vector<RingResult> results;
  for (auto const& rank : ranks) results.push_back(rank.result);
  return assemble(problem, results);
}

/// A random problem whose operands travel as stored, as all memory spaces accept. Keys and queries rotate alternately,
/// unless a bias or mask excludes rotating queries.
template <class T>
RingProblem problem_of_seed(std::uint64_t seed) {
  RingProblem problem = random_ring_problem(seed);
  problem.options.wire = annulus::Wire::as_stored;
  if (!problem.dense.bias && !problem.dense.mask)
    problem.options.rotation = seed % 2 ? annulus::Rotation::queries : annulus::Rotation::keys;
  problem.text += std::string(", run with rotation ") + std::string(name_of(problem.options.rotation));
  round_operands<T>(problem);
  return problem;
}

/// If the backend of a rank refuses a problem, every rank throws its reason. Returns the number of solved problems.
template <class T, class Implementation>
std::uint64_t whole_problems(Implementation const& implementation, std::uint64_t first_seed, std::uint64_t count) {
  std::uint64_t solved = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    RingProblem const problem = problem_of_seed<T>(seed);
    INFO(problem.text);
    std::string const refusal = refusal_of<T>(implementation.make(0), problem);
    if (!refusal.empty()) {
      CHECK_THROWS_WITH(observe_ring<T>(implementation, problem, 1), Catch::Matchers::ContainsSubstring(refusal));
      CHECK_THROWS_AS(observe_ring<T>(implementation, problem, 1), annulus::UnsupportedError);
      continue;
    }
    ++solved;
    auto const ranks = observe_ring<T>(implementation, problem, 1,
                                       seed % 4 < 2 ? annulus::ZeroCopy::automatic : annulus::ZeroCopy::never);
    CHECK(judge(problem, assemble_observed(problem, ranks), bounds_of<T>).complaint == "");
  }
  return solved;
}

/// The first call allocates the buffers of the plan, to the byte. Later calls give the same bits and allocate nothing.
/// Checksums, which require host memory, change no bits. `checked`: uses them in the run without zero-copy exchange
/// instead of the run with it.
template <class T, class Implementation>
void buffers_and_bits(Implementation const& implementation, RingProblem problem, bool checked) {
  constexpr bool on_host = std::is_same_v<typename Implementation::Backend::memory_space, annulus::HostMemory>;
  if (!refusal_of<T>(implementation.make(0), problem).empty()) return;
  using A = annulus::AccumulatorOf<typename Implementation::Backend, T>;
  constexpr bool closes = annulus::ClosingBackend<typename Implementation::Backend>;
  std::vector<ObservedRank> copied;
  for (auto const zero_copy : {annulus::ZeroCopy::never, annulus::ZeroCopy::automatic}) {
    problem.options.checked = on_host && checked == (zero_copy == annulus::ZeroCopy::never);
    auto const once = observe_ring<T>(implementation, problem, 1, zero_copy);
    auto const thrice = observe_ring<T>(implementation, problem, 3, zero_copy);
    if (copied.empty()) copied = once;
    auto const forward = plan_of<T, A>(problem, annulus::Pass::forward, false, once[0].zero_copy, closes);
    auto const backward = plan_of<T, A>(problem, annulus::Pass::backward, false, once[0].zero_copy, closes);
    for (int rank = 0; rank < problem.ranks; ++rank) {
      auto const r = static_cast<std::size_t>(rank);
      ObservedRank const &first = once[r], &later = thrice[r];
      INFO("rank " << rank << (first.zero_copy ? " zero-copy" : "") << (*problem.options.checked ? " checked: " : ": ")
                   << problem.text);
      CHECK(first.result.forward_buffers == forward.peak_buffer_bytes(rank));
      CHECK(first.result.backward_buffers == backward.peak_buffer_bytes(rank));
      // Buffers that others read through windows are the communicator's memory.
      if (!first.zero_copy)
        CHECK(first.allocated_bytes == forward.peak_buffer_bytes(rank) + backward.peak_buffer_bytes(rank));
      CHECK(later.allocated_bytes == first.allocated_bytes);
      CHECK(later.allocations == first.allocations);
      CHECK(same_bits(later.result, first.result));
      CHECK(same_bits(first.result, copied[r].result));
    }
  }
}

template <class T, class Implementation>
void planned_buffers(Implementation const& implementation, std::uint64_t first_seed, std::uint64_t count) {
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed)
    buffers_and_bits<T>(implementation, problem_of_seed<T>(seed), seed % 2 == 0);
  // Rings that end early, and shards of which only the visible rows are sent.
  for (auto rotation : {annulus::Rotation::keys, annulus::Rotation::queries})
    for (int left : {0, 3, 9, 20}) {
      RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 43, .head_dim = 8}, 6,
                                               annulus::Contiguous{}, rotation);
      problem.dense.causal = true;
      problem.dense.window_left = left;
      give_sinks(problem, 2);
      settle(problem);
      round_operands<T>(problem);
      CHECK(plan_of<T>(problem, annulus::Pass::forward).steps() < problem.ranks);
      buffers_and_bits<T>(implementation, problem, left % 2 == 0);
    }
}

/// Plain attention, and problems that each add one feature to it.
inline std::map<std::string, annulus::Problem> every_problem() {
  annulus::Problem plain;
  plain.shape = {.batch = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 64, .value_dim = 64};
  plain.ranks = 4;
  plain.local_queries = plain.local_keys = 128;
  plain.rules.softmax_scale = 0.125;
  std::map<std::string, annulus::Problem> problems{{"plain", plain}};
  auto const with = [&](std::string const& name, auto change) { change(problems.emplace(name, plain).first->second); };
  with("backward", [](auto& p) { p.pass = annulus::Pass::backward; });
  with("float64", [](auto& p) { p.data_type = annulus::DataType::float64; });
  with("float16", [](auto& p) { p.data_type = annulus::DataType::float16; });
  with("bfloat16", [](auto& p) { p.data_type = annulus::DataType::bfloat16; });
  with("one rank", [](auto& p) { p.ranks = 1; });
  with("no queries", [](auto& p) { p.local_queries = 0; });
  with("no keys", [](auto& p) { p.local_keys = 0; });
  with("odd dims", [](auto& p) { p.shape.head_dim = 7, p.shape.value_dim = 3; });
  with("causal", [](auto& p) { p.rules.mask = annulus::causal(); });
  with("window", [](auto& p) { p.rules.mask = annulus::sliding_window(3, 0); });
  with("sink tokens", [](auto& p) { p.rules.mask = {.window = {.left = 3}, .sink_tokens = 2}; });
  with("chunk", [](auto& p) { p.rules.mask.chunk = 5; });
  with("soft cap", [](auto& p) { p.rules.logit_softcap = 30; });
  with("dropout", [](auto& p) { p.rules.dropout = {0.1, 7}; });
  with("bias", [](auto& p) { p.bias = p.bias_gradient = true; });
  with("boolean mask", [](auto& p) { p.boolean_mask = true; });
  with("predicate", [](auto& p) { p.predicate = true; });
  with("documents", [](auto& p) { p.document_ids = true; });
  with("sinks", [](auto& p) { p.sinks = 1; });
  return problems;
}

/// supports() gives the same answer every time, every refusal has a reason, and some problem is supported.
template <class Implementation>
void support_answers(Implementation const& implementation) {
  auto const backend = implementation.make(13);
  int supported = 0;
  for (auto const& [name, problem] : every_problem()) {
    annulus::Support const support = backend.supports(problem), again = backend.supports(problem);
    INFO(name << ": " << support.reason());
    CHECK(support.reason().empty() == static_cast<bool>(support));
    CHECK(support.reason() == again.reason());
    supported += static_cast<bool>(support);
  }
  CHECK(supported > 0);
}

/// Buffers are aligned to 64 bytes, also if they are empty or moved.
template <class Implementation>
void allocations(Implementation const& implementation) {
  auto backend = implementation.make(14);
  for (Index bytes : {0, 1, 63, 64, 65, 100'000}) {
    auto buffer = backend.allocate(bytes);
    CHECK(buffer.size() == bytes);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.data()) % 64 == 0);
    auto* const data = buffer.data();
    auto moved = std::move(buffer);
    CHECK(moved.size() == bytes);
    CHECK(moved.data() == data);
  }
  typename Implementation::Backend::Buffer const none;
  CHECK(none.size() == 0);
}

}  // namespace annulus_test::backend_cases
