// Ring attention over MPI: the same bits as on a simulated ring, and errors that reach every rank.

#include <mpi.h>

#include <annulus/annulus.hpp>
#include <annulus/comm/device_ring.hpp>
#include <annulus/comm/mpi.hpp>
#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mpi/mpi_runner.hpp"
#include "support/catch.hpp"
#include "support/foreign_backend.hpp"
#include "support/random_ring_problem.hpp"
#include "support/refusal.hpp"
#include "support/reproducible_problem.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"
#include "support/unruly_communicator.hpp"

using namespace annulus_test;
using annulus::MpiRing;

namespace {

/// Random problems for the number of ranks of this launch; the same on every rank.
template <class T>
std::vector<RingProblem> problems_of_this_world(std::uint64_t first_seed, std::size_t count,
                                                annulus::Schedule schedule = annulus::Schedule::ring) {
  std::vector<RingProblem> problems;
  for (std::uint64_t seed = first_seed; problems.size() < count; ++seed) {
    RingProblem problem = random_ring_problem(seed);
    if (problem.ranks != world_size()) continue;
    problem.options.schedule = schedule;
    round_operands<T>(problem);
    problems.push_back(std::move(problem));
  }
  return problems;
}

template <class T>
void check_same_bits(std::uint64_t first_seed, std::size_t count, annulus::ZeroCopy zero_copy,
                     annulus::Schedule schedule = annulus::Schedule::ring) {
  annulus::MpiRingOptions options = options_of_tests();
  options.zero_copy = zero_copy;
  MpiRing ring(MPI_COMM_WORLD, options);
  for (RingProblem const& problem : problems_of_this_world<T>(first_seed, count, schedule)) {
    INFO(problem.text);
    annulus::ReferenceBackend backend;
    RingResult const over_mpi = run_rank<T>(problem, ring, backend);
    CHECK(same_bits(over_mpi, results_of_ranks<T>(problem)[static_cast<std::size_t>(ring.rank())]));
  }
}

RingProblem plain_problem() {
  RingProblem problem = small_ring_problem({.query_length = 4 * world_size(), .head_dim = 8}, world_size());
  settle(problem);
  return problem;
}

void run_with(MpiRing& ring, RingProblem const& problem) {
  annulus::ReferenceBackend backend;
  run_rank<float>(problem, ring, backend);
}

}  // namespace

TEST_CASE("ring attention over MPI gives the same bits as on a simulated ring", "[mpi]") {
  for (auto const zero_copy : {annulus::ZeroCopy::always, annulus::ZeroCopy::never}) {
    check_same_bits<float>(810'000, 24, zero_copy);
    check_same_bits<Eigen::bfloat16>(820'000, 8, zero_copy);
  }
}

TEST_CASE("both directions over MPI give the same bits as on a simulated ring", "[mpi][lanes]") {
  for (auto const zero_copy : {annulus::ZeroCopy::always, annulus::ZeroCopy::never})
    check_same_bits<float>(810'000, 16, zero_copy, annulus::Schedule::both_directions);
}

TEST_CASE("joint keys and a wire type over MPI give the same bits as on a simulated ring", "[mpi][joint]") {
  RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 29, .head_dim = 8},
                                           world_size(), annulus::Zigzag{});
  problem.options.wire = annulus::Wire::half;
  std::mt19937_64 engine(3);
  problem.joint_length = 6;
  problem.joint_keys = problem.joint_values = uniform(engine, 6 * 2 * 8);
  settle(problem);
  for (auto const zero_copy : {annulus::ZeroCopy::always, annulus::ZeroCopy::never}) {
    annulus::MpiRingOptions options = options_of_tests();
    options.zero_copy = zero_copy;
    MpiRing ring(MPI_COMM_WORLD, options);
    annulus::ReferenceBackend backend;
    CHECK(same_bits(run_rank<float>(problem, ring, backend),
                    results_of_ranks<float>(problem)[static_cast<std::size_t>(ring.rank())]));
  }
}

TEST_CASE("reproducible: ring attention over MPI gives the bits of one rank", "[mpi][reproducible]") {
  for (auto const zero_copy : {annulus::ZeroCopy::always, annulus::ZeroCopy::never}) {
    annulus::MpiRingOptions options = options_of_tests();
    options.zero_copy = zero_copy;
    MpiRing ring(MPI_COMM_WORLD, options);
    for (std::uint64_t seed = 840'000; seed < 840'016; ++seed) {
      RingProblem problem = random_ring_problem(seed);
      round_operands<float>(problem);
      auto const deal = static_cast<Deal>(seed % 4);
      auto const rotation = seed % 8 < 4 ? annulus::Rotation::keys : annulus::Rotation::queries;
      RingProblem const alone = reproducible_on(problem, 1, Deal::contiguous, 4, rotation, seed);
      RingProblem const spread = reproducible_on(problem, world_size(), deal, 4, rotation, seed);
      INFO(spread.text);
      annulus::CpuBackend backend;
      // All ranks in one process, which give the bits of one rank, hold the rows of this one in the same order.
      auto const simulated = results_of_ranks<float>(spread, annulus::CpuBackend{});
      auto const one = results_of_ranks<float>(alone, annulus::CpuBackend{});
      CHECK(same_bits(assemble(spread, simulated), assemble(alone, one)));
      CHECK(same_bits(run_rank<float>(spread, ring, backend), simulated[static_cast<std::size_t>(ring.rank())]));
    }
  }
}

TEST_CASE("ring attention over MPI gives the same bits with late and reordered shifts and split messages", "[mpi]") {
  annulus::MpiRingOptions pieces = options_of_tests();
  pieces.max_message_bytes = 257;
  MpiRing ring(MPI_COMM_WORLD, pieces);
  for (RingProblem const& problem : problems_of_this_world<float>(840'000, 4)) {
    auto const expected = results_of_ranks<float>(problem)[static_cast<std::size_t>(ring.rank())];
    for (std::uint64_t run = 0; run < 5; ++run) {
      INFO(problem.text << ": run " << run);
      UnrulyCommunicator unruly(ring, {.seed = run});
      annulus::ReferenceBackend backend;
      CHECK(same_bits(run_rank<float>(problem, unruly, backend), expected));
    }
  }
}

TEST_CASE("a device that works late over MPI gives the same bits as the reference", "[mpi][foreign]") {
  MpiRing ring(MPI_COMM_WORLD, options_of_tests());
  for (auto when : {DeferralOptions::delayed, DeferralOptions::lazy})
    for (RingProblem problem : problems_of_this_world<float>(850'000, 6)) {
      problem.options.wire = annulus::Wire::as_stored;  // Host memory only.
      INFO(problem.text);
      annulus::DeviceRing<ForeignMemory, MpiRing> foreign(ring);
      ForeignBackend<> backend({.deferral = {.when = when, .seed = static_cast<std::uint64_t>(ring.rank())}});
      CHECK(same_bits(run_rank<float, ForeignPlacement>(problem, foreign, backend),
                      results_of_ranks<float>(problem)[static_cast<std::size_t>(ring.rank())]));
    }
}

TEST_CASE("ring attention runs on several replica groups at the same time", "[mpi]") {
  // Even and odd ranks, in descending order: places in the ring are places in the list.
  std::vector<std::vector<int>> groups(world_size() > 1 ? 2 : 1);
  for (int rank = world_size() - 1; rank >= 0; --rank)
    groups[static_cast<std::size_t>(rank) % groups.size()].push_back(rank);
  MpiRing ring = MpiRing::from_replica_groups(MPI_COMM_WORLD, groups, options_of_tests());
  std::size_t const group = static_cast<std::size_t>(world_rank()) % groups.size();
  REQUIRE(ring.size() == static_cast<int>(groups[group].size()));
  // Each group has a problem of its own.
  RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 29, .head_dim = 8},
                                           ring.size(), annulus::Zigzag{}, annulus::Rotation::automatic, 5 + group);
  problem.dense.causal = true;
  settle(problem);
  round_operands<float>(problem);
  annulus::ReferenceBackend backend;
  RingResult const over_mpi = run_rank<float>(problem, ring, backend);
  CHECK(same_bits(over_mpi, results_of_ranks<float>(problem)[static_cast<std::size_t>(ring.rank())]));
}

TEST_CASE("repeated calls with zero-copy exchange give the same bits while ranks run ahead of each other", "[mpi]") {
  RingProblem problem = small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 41, .head_dim = 8},
                                           world_size(), annulus::Zigzag{}, annulus::Rotation::automatic, 17);
  problem.dense.causal = true;
  settle(problem);
  round_operands<float>(problem);
  MpiRing ring(MPI_COMM_WORLD, options_of_tests());
  REQUIRE(ring.shares_memory());
  auto const expected = results_of_ranks<float>(problem)[static_cast<std::size_t>(ring.rank())];
  annulus::ReferenceBackend backend;
  for (int call = 0; call < 20; ++call) {
    if (call % world_size() == ring.rank()) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    CHECK(same_bits(run_rank<float>(problem, ring, backend), expected));
  }
}

TEST_CASE("where one rank over MPI is called differently, every rank throws the same error", "[mpi]") {
  if (world_size() == 1) {
    SUCCEED("requires more than one rank");
    return;
  }
  bool const refused = GENERATE(false, true), odd = world_rank() == world_size() - 1;
  RingProblem problem = plain_problem();
  problem.options.mask.causal = odd && !refused;
  problem.options.logit_softcap = odd && refused ? -1 : 0;
  MpiRing ring(MPI_COMM_WORLD, options_of_tests());
  Thrown const thrown = attempt([&] { run_with(ring, problem); });
  if (refused)
    check_thrown(thrown, "UnsupportedError", ": logit soft cap is -1");
  else
    check_thrown(thrown, "CommunicationError", "different mask.causal: rank 0 has false, rank ");
  // The text is identical on all ranks.
  std::array<char, 1024> text{};
  thrown.text.copy(text.data(), text.size() - 1);
  std::vector<char> all(text.size() * static_cast<std::size_t>(world_size()));
  MPI_Allgather(text.data(), static_cast<int>(text.size()), MPI_CHAR, all.data(), static_cast<int>(text.size()),
                MPI_CHAR, MPI_COMM_WORLD);
  for (int rank = 0; rank < world_size(); ++rank)
    CHECK(std::string(all.data() + static_cast<std::size_t>(rank) * text.size()) == text.data());
}

TEST_CASE("where all ranks throw the same error, ending one ring does not change that of the others", "[mpi][comm]") {
  for (int i = 0; i < 60; ++i) {
    Thrown const thrown = attempt([] {
      MpiRing ring(MPI_COMM_WORLD, options_of_tests());
      Eigen::Tensor<float, 4, Eigen::RowMajor> x(1, 2, 1, 4);
      x.setZero();
      annulus::ReferenceBackend backend;
      annulus::RingAttention(ring, backend, {.logit_softcap = ring.rank() == 0 ? 1.0 : 0.0}).forward(x, x, x);
    });
    if (world_size() > 1) check_thrown(thrown, "CommunicationError", "different logit_softcap: rank 0 has 1");
  }
}

TEST_CASE("a device that fails on one rank over MPI ends the ring on every rank", "[mpi][foreign]") {
  RingProblem const problem = plain_problem();
  for (int call : {0, 3, 7}) {
    MpiRing ring(MPI_COMM_WORLD, options_of_tests());
    annulus::DeviceRing<ForeignMemory, MpiRing> foreign(ring);
    bool const fails = ring.rank() == ring.size() - 1;
    ForeignBackend<> backend({.deferral = {.when = DeferralOptions::lazy}, .failing_call = fails ? call : -1});
    INFO("call " << call);
    if (fails)
      CHECK_THROWS_AS((run_rank<float, ForeignPlacement>(problem, foreign, backend)), DeviceFailure);
    else
      CHECK_THROWS_AS((run_rank<float, ForeignPlacement>(problem, foreign, backend)), annulus::CommunicationError);
    CHECK(backend.misuses() == 0);
  }
}
