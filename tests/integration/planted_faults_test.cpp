// Faults planted in a backend or communicator: the judge that all other tests rely on detects each of them.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <limits>

#include "integration/solve.hpp"
#include "support/catch.hpp"
#include "support/faulty_backend.hpp"
#include "support/faulty_communicator.hpp"

using namespace annulus_test;
using annulus::Rotation;
using annulus::SimulatedRing;

#if defined(__has_feature)
#define ANNULUS_TEST_HAS_FEATURE(feature) __has_feature(feature)
#else
#define ANNULUS_TEST_HAS_FEATURE(feature) 0
#endif
#if defined(__SANITIZE_THREAD__) || ANNULUS_TEST_HAS_FEATURE(thread_sanitizer)
constexpr bool under_thread_sanitizer = true;
#else
constexpr bool under_thread_sanitizer = false;
#endif

namespace {

/// Small problems that together use every option that a fault can affect.
std::vector<RingProblem> fixed_problems() {
  std::vector<RingProblem> problems;
  auto const add = [&](annulus::Sharding sharding, Rotation rotation, auto&& change) {
    RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 24, .value_dim = 3}, 4,
                                             sharding, rotation);
    // The judge is tested, so that nothing else may notice a fault before.
    problem.options.checked = false;
    change(problem);
    settle(problem);
    round_operands<float>(problem);
    problems.push_back(std::move(problem));
  };
  for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
    add(annulus::Contiguous{}, rotation, [](RingProblem&) {});
    add(annulus::Zigzag{}, rotation, [](RingProblem& p) { p.dense.causal = true, give_sinks(p, 2); });
    add(annulus::Contiguous{}, rotation, [](RingProblem& p) { p.dense.window_left = 8, p.dense.window_right = 2; });
    add(annulus::Contiguous{}, rotation, [](RingProblem& p) { p.dense.causal = true, p.dense.query_offset = -5; });
    add(annulus::Striped{}, rotation, [](RingProblem& p) { p.dense.dropout_probability = 0.4; });
    add(annulus::Zigzag{}, rotation, [](RingProblem& p) {
      p.dense.logit_softcap = 0.6;
      p.dense.softmax_scale = 1.7;
      give_documents(p, {1, 1, 1, 1, 1, 0, 0, 2, 2, 2, 2, 2, 2, 2, 0, 3, 3, 3, 3, -1, -1, -1, 0, 0});
    });
  }
  add(annulus::Contiguous{}, Rotation::keys, [](RingProblem& p) { give_bias(p, 1, 4), p.dense.logit_softcap = 0.9; });
  add(annulus::Contiguous{}, Rotation::keys, [](RingProblem& p) {
    give_bias(p, 1, 4);
    std::fill_n(p.dense.bias->values.begin(), p.dense.key_length, -1e30);
  });
  return problems;
}

/// Complaint of the judge about one problem, or the error of the ring if it fails.
std::string complaint_with(BackendFault backend_fault, RingFault ring_fault, RingProblem const& problem) {
  try {
    auto const results = annulus::run_ring(problem.ranks, [&](SimulatedRing& inner) {
      FaultyCommunicator<SimulatedRing> ring(inner, ring_fault);
      FaultyBackend backend(backend_fault);
      return run_rank<float>(problem, ring, backend);
    });
    return judge(problem, assemble(problem, results), float_bounds).complaint;
  } catch (annulus::CommunicationError const& error) {
    return error.what();
  }
}

std::string complaints_with(BackendFault backend_fault, RingFault ring_fault) {
  std::string complaints;
  for (RingProblem const& problem : fixed_problems()) complaints += complaint_with(backend_fault, ring_fault, problem);
  return complaints;
}

bool mentions(std::string const& complaints, char const* result) {
  return complaints.find(std::string(result) + " is off") != std::string::npos;
}

}  // namespace

TEST_CASE("without a fault the test-only backend and communicator pass", "[trap][C43]") {
  CHECK(complaints_with(BackendFault::none, RingFault::none) == "");
}

TEST_CASE("every fault planted in a backend is detected", "[trap][C43]") {
  struct Row {
    BackendFault fault;
    char const* name;
    char const* wrong;  ///< result that the complaint must name
  };
  Row const rows[] = {
      {BackendFault::rescale_forgotten, "rescale forgotten", "output"},
      {BackendFault::merge_misses_a_term, "merge misses a term", "lse"},
      {BackendFault::band_off_by_one, "band off by one", "output"},
      {BackendFault::window_offset_missing, "window offset missing", "output"},
      {BackendFault::padding_is_a_document, "padding is a document", "output"},
      {BackendFault::kv_head_by_modulo, "kv head by modulo", "output"},
      {BackendFault::bias_by_local_key, "bias by local key", "output"},
      {BackendFault::dropout_by_local_position, "dropout by local position", "output"},
      {BackendFault::dropout_not_scaled_up, "dropout not scaled up", "output"},
      {BackendFault::dropout_thins_the_sum, "dropout thins the sum", "lse"},
      {BackendFault::backward_drops_others, "backward pass drops others", "dv"},
      {BackendFault::state_in_16_bits, "state in 16 bits", "output"},
      {BackendFault::lse_in_base_2, "lse in base 2", "lse"},
      {BackendFault::lse_remainder_forgotten, "remainder of lse forgotten", "dv"},
      {BackendFault::empty_row_has_lse_0, "empty row has lse 0", "lse"},
      {BackendFault::sinks_counted_twice, "sink logits counted twice", "lse"},
      {BackendFault::sink_gradient_of_wrong_sign, "gradient of sink logits of wrong sign", "dsinks"},
      {BackendFault::delta_is_zero, "delta is zero", "dq"},
      {BackendFault::scale_forgotten_in_backward, "scale forgotten in backward", "dk"},
      {BackendFault::soft_cap_slope_forgotten, "slope of the soft cap forgotten", "dq"},
      {BackendFault::bias_gradient_through_cap, "bias gradient through the soft cap", "dbias"},
      {BackendFault::group_not_summed, "dk not summed over the group", "dk"},
      {BackendFault::dv_of_all_weights, "dv of the weights before dropout", "dv"},
  };
  bool const shares_heads =
      asked_schedule() == annulus::Schedule::both_directions || asked_schedule() == annulus::Schedule::two_levels;
  for (Row const& row : rows) {
    // A rank that has gathered all keys merges no states of steps, and its local keys are the global ones.
    if (asked_schedule() == annulus::Schedule::all_gather &&
        (row.fault == BackendFault::merge_misses_a_term || row.fault == BackendFault::bias_by_local_key))
      continue;
    if (shares_heads && row.fault == BackendFault::kv_head_by_modulo) continue;  // a step has one kv head
    INFO(row.name);
    CHECK(mentions(complaints_with(row.fault, RingFault::none), row.wrong));
  }
}

TEST_CASE("every fault planted in a communicator is detected", "[trap][C43]") {
  struct Row {
    RingFault fault;
    char const* name;
    char const* wrong;
  };
  Row const rows[] = {
      {RingFault::stale_prefetched, "stale keys", "output"},
      {RingFault::early_wait, "wait returns early", "output"},
      {RingFault::wrong_neighbour, "wrong neighbour", "output"},
      {RingFault::send_buffer_reused, "send buffer reused early", "output"},
      {RingFault::last_carried_lost, "last carried shift lost", "dk"},
      {RingFault::carried_in_16_bits, "carried gradients in 16 bits", "dk"},
      {RingFault::reduction_of_own_share, "sums over ranks of one share", "dsinks"},
  };
  bool const in_groups = asked_schedule() && annulus::has_groups(*asked_schedule());
  for (Row const& row : rows) {
    // Bytes that arrive after wait() has returned are a data race, which the thread sanitizer reports by itself.
    if (under_thread_sanitizer && row.fault == RingFault::early_wait) continue;
    // Ranks of a group send each other one message of each kind, so that none is stale and none is the last.
    if (in_groups && (row.fault == RingFault::send_buffer_reused || row.fault == RingFault::last_carried_lost))
      continue;
    INFO(row.name);
    CHECK(mentions(complaints_with(BackendFault::none, row.fault), row.wrong));
  }
}

TEST_CASE("the judge rejects a small change of any result") {
  RingProblem problem = small_ring_problem({}, 3, annulus::Zigzag{});
  give_bias(problem, 1, 2);
  give_sinks(problem, 1);
  problem.dense.causal = true;
  RingResult const right = solve<float>(problem);
  REQUIRE(judge(problem, right, float_bounds).complaint == "");
  for (auto member : {&RingResult::output, &RingResult::lse, &RingResult::dq, &RingResult::dk, &RingResult::dv,
                      &RingResult::dbias, &RingResult::dsinks}) {
    RingResult wrong = right;
    for (double& value : wrong.*member) value *= 1 + 1e-5;
    CHECK(judge(problem, wrong, float_bounds).complaint != "");
    wrong = right;
    (wrong.*member).back() = std::numeric_limits<double>::quiet_NaN();
    CHECK(judge(problem, wrong, float_bounds).complaint != "");
  }
}
