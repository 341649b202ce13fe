// NcclRing over a simulated ring of the host: the suite of all communicators, passes, and its failures.

#include "annulus/comm/nccl_ring.hpp"

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "annulus/comm/simulated_ring.hpp"
#include "conformance/communicator_suite.hpp"
#include "support/catch.hpp"
#include "support/host_function_backend.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus;
using namespace annulus_test;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;

namespace {

using Ring = NcclRing<SimulatedRing>;
static_assert(CallRecordingCommunicator<Ring> && TopologyAwareCommunicator<Ring>);

/// Rank counts for which there is a GPU each: NCCL accepts one rank a GPU.
std::vector<int> rank_counts() {
  std::vector<int> counts;
  for (int ranks = 1; ranks <= std::min(number_of_gpus(), 4); ++ranks) counts.push_back(ranks);
  return counts;
}

/// Runs function(ring) on the ranks of a ring over NCCL, with a GPU each.
template <class Function>
auto run_nccl_ring(int ranks, Function function, NcclRingOptions const& options = {.timeout = 20s}) {
  return run_ring(ranks, [&](SimulatedRing& host) {
    cuda::detail::CurrentDevice const current(host.rank());
    Ring ring(host, options);
    return or_abandon(ring, [&] { return function(ring); });
  });
}

}  // namespace

TEST_CASE("NcclRing is a communicator", "[nccl]") {
  if (number_of_gpus() == 0) return;
  communicator_suite([](int ranks, auto function) { run_nccl_ring(ranks, function); }, rank_counts());
}

TEST_CASE("passes over NCCL have the bits of passes on a simulated ring", "[nccl]") {
  if (number_of_gpus() == 0) return;
  for (int const ranks : rank_counts())
    for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
      RingProblem problem = small_ring_problem(
          {.batch = 2, .query_heads = 4, .kv_heads = 2, .query_length = 4 * ranks + 1, .head_dim = 3}, ranks,
          Contiguous{}, rotation);
      settle(problem);
      round_operands<float>(problem);
      auto const expected =
          annulus_test::results_of_ranks<float>(problem, ReferenceBackend{}, {.zero_copy = ZeroCopy::never});
      auto const results = run_nccl_ring(ranks, [&](Ring& ring) {
        HostFunctionBackend<> backend(-1);
        return run_rank<float, SpacePlacement<ManagedPlace>>(problem, ring, backend, EveryPair{}, 2);
      });
      for (std::size_t r = 0; r < results.size(); ++r) CHECK(different_results(results[r], expected[r]) == "");
    }
}

TEST_CASE("a ring over NCCL may be made of a communicator of the caller", "[nccl]") {
  if (number_of_gpus() < 2) return;
  ncclUniqueId id;
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  auto const arrived = run_ring(2, [&](SimulatedRing& host) {
    cuda::detail::CurrentDevice const current(host.rank());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t whole = nullptr;
    detail::check_nccl(ncclCommInitRankConfig(&whole, 2, id, host.rank(), &config), "ncclCommInitRankConfig");
    std::byte result{};
    {
      Ring ring(host, whole);
      ManagedBytes const from(1), to(1);
      from.data()[0] = static_cast<std::byte>(host.rank() + 5);
      SpaceQueue<CudaMemory> const space;
      std::array const out{std::span<std::byte const>(from.bytes())};
      std::array const in{to.bytes()};
      ring.start_shift(Channel::carried, 1, out, in, space.queue).wait(space.queue);
      ring.finish(space.queue);
      result = to.data()[0];
    }
    ncclCommDestroy(whole);
    return result;
  });
  CHECK(arrived == std::vector{std::byte{6}, std::byte{5}});
}

TEST_CASE("late work of a GPU closes a ring over NCCL at the deadline", "[nccl]") {
  if (number_of_gpus() < 2) return;
  for (Rank const late : {0, 1}) {
    std::vector<Rank> blamed(2, CommunicationError::unknown);
    auto const function = [&](Ring& ring) {
      ManagedBytes const from(64), to(64);
      SpaceQueue<CudaMemory> const space;
      std::array const out{std::span<std::byte const>(from.bytes())};
      std::array const in{to.bytes()};
      if (ring.rank() == late) put(space.queue, [] { std::this_thread::sleep_for(1500ms); });
      try {
        ring.start_shift(Channel::carried, 1, out, in, space.queue).wait(space.queue);
        ring.finish(space.queue);
      } catch (CommunicationError const& error) {
        blamed[static_cast<std::size_t>(ring.rank())] = error.neighbour();
      }
      space.queue.wait();
    };
    run_nccl_ring(2, function, {.timeout = 500ms});
    CHECK(blamed == std::vector<Rank>{late, late});
  }
}

TEST_CASE("a ring over NCCL refuses a timeout of 0 and names unequal runs", "[nccl]") {
  if (number_of_gpus() < 2) return;
  CHECK_THROWS_WITH(run_nccl_ring(2, [](Ring&) {}, {.timeout = 0ms}), ContainsSubstring("at least 1 ms is accepted"));
  auto const shift = [](Ring& ring) {
    ManagedBytes const bytes(32);
    SpaceQueue<CudaMemory> const space;
    std::array const out{std::span<std::byte const>(bytes.bytes().first(ring.rank() == 0 ? 8 : 16))};
    std::array const in{bytes.bytes().last(16)};
    ring.start_shift(Channel::carried, 1, out, in, space.queue).wait(space.queue);
    ring.finish(space.queue);
  };
  CHECK_THROWS_WITH(run_nccl_ring(2, shift),
                    ContainsSubstring("rank 1: expected 1 runs of 16 bytes in all, got 1 of 8 from rank 0"));
}
