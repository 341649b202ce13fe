// Bytes and memory of the schedules in which ranks form groups, compared with the plan.

#include <annulus/annulus.hpp>
#include <array>
#include <vector>

#include "support/catch.hpp"
#include "support/grouped_problem.hpp"
#include "support/pass_log.hpp"
#include "support/planned_pass.hpp"

using namespace annulus_test;
using annulus::Channel;
using annulus::Index;
using annulus::Pass;

namespace {

template <class T>
void check_bytes(std::uint64_t first_seed, std::uint64_t count) {
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    RingProblem problem = random_grouped_problem(seed);
    round_operands<T>(problem);
    INFO(problem.text);
    auto const logs = record_passes<T>(problem);
    problem.options.checked = false;
    for (Pass pass : {Pass::forward, Pass::backward}) {
      auto const plan = plan_of<T>(problem, pass);
      for (int rank = 0; rank < problem.ranks; ++rank) {
        PassLog const& log = logs[static_cast<std::size_t>(rank)][pass == Pass::forward ? 0 : 1];
        CHECK(log.bytes(Channel::prefetched) + log.bytes(Channel::carried) + log.bytes(Channel::reduction) ==
              plan.bytes_sent(rank));
        for (Channel channel : {Channel::prefetched, Channel::carried, Channel::reduction})
          CHECK(log.of(RecordedEvent::finished, channel).size() == log.shifts(channel).size());
      }
    }
  }
}

template <class T>
void check_memory(std::uint64_t first_seed, std::uint64_t count) {
  for (std::uint64_t seed = first_seed; seed < first_seed + count; ++seed) {
    RingProblem problem = random_grouped_problem(seed);
    round_operands<T>(problem);
    bool const zero_copy = seed % 2 == 0;
    INFO(problem.text << (zero_copy ? ", zero-copy" : ""));
    auto const results =
        results_of_ranks<T>(problem, annulus::ReferenceBackend{},
                            {.zero_copy = zero_copy ? annulus::ZeroCopy::always : annulus::ZeroCopy::never});
    auto const forward = plan_of<T>(problem, Pass::forward, false, zero_copy);
    auto const backward = plan_of<T>(problem, Pass::backward, false, zero_copy);
    for (int rank = 0; rank < problem.ranks; ++rank) {
      CHECK(results[static_cast<std::size_t>(rank)].forward_buffers == forward.peak_buffer_bytes(rank));
      CHECK(results[static_cast<std::size_t>(rank)].backward_buffers == backward.peak_buffer_bytes(rank));
    }
  }
}

}  // namespace

TEST_CASE("bytes: ranks in groups send what the plan says", "[bytes][schedules]") {
  check_bytes<float>(910'000, 120);
  check_bytes<Eigen::bfloat16>(920'000, 60);
}

TEST_CASE("memory: ranks in groups have the buffers that the plan says", "[bytes][memory][schedules]") {
  check_memory<float>(930'000, 100);
  check_memory<Eigen::bfloat16>(940'000, 60);
}
