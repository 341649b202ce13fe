// Results for any number of threads, the thread pool, and repeated calls without allocation.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <atomic>
#include <cstddef>
#include <functional>
#include <latch>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/counted_allocations.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;

namespace {

/// Several heads and several blocks, so that there is work for several threads.
std::vector<RingProblem> shared_problems() {
  std::vector<std::function<void(RingProblem&)>> const changes{
      [](RingProblem&) {},
      [](RingProblem& p) { p.dense.causal = true; },
      [](RingProblem& p) { p.dense.window_left = 90; },
      [](RingProblem& p) {
        give_documents(p, documents_of_lengths(2, {300, 70, 330}));
      },
      [](RingProblem& p) { p.dense.causal = true, give_bias(p, 1, 1); },
      [](RingProblem& p) { give_bias(p, 2, 4), p.dense.dropout_probability = 0.2, p.dense.dropout_seed = 3; },
  };
  std::vector<RingProblem> problems;
  for (auto const& change : changes)
    for (auto const& sharding : {annulus::Sharding(annulus::Contiguous{}), annulus::Sharding(annulus::Striped{100})}) {
      problems.push_back(small_ring_problem(
          {.batch = 2, .query_heads = 4, .kv_heads = 2, .query_length = 700, .head_dim = 8}, 1, sharding));
      change(problems.back());
      settle(problems.back());
      round_operands<float>(problems.back());
    }
  return problems;
}

}  // namespace

TEMPLATE_TEST_CASE("results have the same bits for any number of threads", "[cpu]", float, Eigen::bfloat16) {
  for (RingProblem const& problem : shared_problems()) {
    auto const run = [&](int threads) {
      annulus::SelfRing ring;
      annulus::CpuBackend backend{.threads = threads};
      return run_rank<TestType>(problem, ring, backend);
    };
    RingResult const alone = run(1);
    for (int threads : {2, 3, 8, 0}) {
      INFO(threads << " threads");
      CHECK(same_bits(run(threads), alone));
    }
  }
}

TEST_CASE("all ranks of a process share the threads, with the bits of one thread", "[cpu]") {
  RingProblem problem =
      small_ring_problem({.query_heads = 4, .kv_heads = 2, .query_length = 640, .head_dim = 8}, 5, annulus::Zigzag{});
  problem.dense.causal = true;
  settle(problem);
  auto const run = [&](int threads) {
    return results_of_ranks<float>(problem, annulus::CpuBackend{.threads = threads});
  };
  auto const alone = run(1);
  for (int threads : {0, 3}) {
    auto const together = run(threads);
    for (std::size_t rank = 0; rank < alone.size(); ++rank) CHECK(same_bits(together[rank], alone[rank]));
  }
}

TEST_CASE("a repeated call of the CPU backend allocates nothing", "[cpu]") {
  constexpr annulus::Index length = 600, heads = 4, kv_heads = 2, dim = 24;
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  Tensor q(1, length, heads, dim), k(1, length, kv_heads, dim), v(1, length, kv_heads, dim), out(1, length, heads, dim);
  for (Tensor* x : {&q, &k, &v, &out}) x->setRandom();
  Eigen::Tensor<float, 3, Eigen::RowMajor> maximum(1, heads, length), sum(1, heads, length), lse(1, heads, length);
  Eigen::Tensor<std::int32_t, 2, Eigen::RowMajor> ids(1, length);
  std::vector<annulus::Index> positions;
  for (annulus::Index i = 0; i < length; ++i)
    positions.push_back(i), ids(0, i) = static_cast<std::int32_t>(1 + i / 170);
  std::vector<annulus::Tile> tiles;
  annulus::Segment const whole{0, length, 0, 1};
  annulus::detail::visible_tiles({&whole, 1}, {&whole, 1}, annulus::causal(), 0, false, &tiles);
  annulus::EveryPair const every_pair;

  for (int threads : {1, 2}) {
    annulus::CpuBackend backend{.threads = threads};
    annulus::Step<float, annulus::EveryPair, annulus::HostMemory> const step{
        .tiles = tiles,
        .rules = {.mask = annulus::causal(), .softmax_scale = 0.2},
        .query_positions = positions,
        .key_positions = positions,
        .predicate = &every_pair,
        .query_documents = annulus::view_of(std::as_const(ids)),
        .key_documents = annulus::view_of(std::as_const(ids))};
    annulus::StepOperands<float, annulus::HostMemory> const operands{
        annulus::view_of(std::as_const(q)), annulus::view_of(std::as_const(k)), annulus::view_of(std::as_const(v))};
    Tensor dq = q, dk = k, dv = v, output = out;
    annulus::RunningState<float, annulus::HostMemory> const state{annulus::view_of(out), annulus::view_of(maximum),
                                                                  annulus::view_of(sum)};
    auto const call = [&] {
      backend.reset(state);
      backend.fold(step, operands, state);
      backend.normalise(state, annulus::TensorView<float const, 2>(), annulus::view_of(output), annulus::view_of(lse),
                        annulus::TensorView<float, 3>());
      backend.clear(annulus::view_of(dq));
      backend.add_gradients(step, operands,
                            annulus::BackwardOperands<float, float, float, annulus::HostMemory>{
                                annulus::view_of(std::as_const(q)), annulus::view_of(std::as_const(lse)),
                                annulus::view_of(std::as_const(sum))},
                            annulus::StepGradients<float, annulus::HostMemory>{
                                annulus::view_of(dq), annulus::view_of(dk), annulus::view_of(dv), {}});
    };
    call();
    long const before = allocations;
    for (int i = 0; i < 3; ++i) call();
    CHECK(allocations == before);
  }
}

TEST_CASE("an exception of a pool thread reaches the caller, and no thread waits forever", "[cpu]") {
  using Call = annulus::cpu::detail::ThreadPool::Call;
  auto& pool = annulus::cpu::detail::ThreadPool::shared();
  for (int threads : {1, 2, 4}) {
    std::atomic<int> taken{0};
    CHECK_THROWS_AS(Call(pool, threads)
                        .run(threads,
                             [&](annulus::cpu::detail::Team const& team, int) {
                               if (taken++ == 0) throw std::logic_error("this one");
                               team.wait_until([] { return false; });
                             }),
                    std::logic_error);
    std::atomic<int> sum{0};
    Call(pool, threads).run(threads, [&](annulus::cpu::detail::Team const&, int slot) { sum += slot == 0 ? 1 : 0; });
    CHECK(sum == 1);
  }
}

TEST_CASE("a negative number of threads is refused; more threads than work items are harmless", "[cpu]") {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  Tensor q(1, 40, 2, 8);
  q.setRandom();
  annulus::SelfRing ring;
  annulus::CpuBackend none{.threads = -1}, many{.threads = 100000}, one{.threads = 1};
  annulus::RingAttention refused(ring, none);
  CHECK_THROWS_AS(refused.forward(q, q, q), annulus::UnsupportedError);
  annulus::RingAttention wide(ring, many), narrow(ring, one);
  auto const a = wide.forward(q, q, q), b = narrow.forward(q, q, q);
  CHECK(std::equal(a.output.data(), a.output.data() + a.output.size(), b.output.data()));
  wide.backward(q, a, q, q, q);
}

TEST_CASE("a predicate that throws ends the call with its exception", "[cpu]") {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  Tensor q(1, 300, 2, 8);
  q.setRandom();
  annulus::SelfRing ring;
  annulus::CpuBackend backend{.threads = 3};
  auto const refuse = [](annulus::Index, annulus::Index, annulus::Index query, annulus::Index) -> bool {
    if (query == 170) throw std::domain_error("not this row");
    return true;
  };
  annulus::RingAttention attention(ring, backend, {}, refuse);
  CHECK_THROWS_AS(attention.forward(q, q, q), std::domain_error);
}

TEST_CASE("nested calls do not deadlock while as many calls as possible are in progress", "[cpu]") {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  Tensor q(1, 5, 1, 4);
  q.setRandom();
  auto const attend = [&q](auto const& mask) {
    annulus::SelfRing ring;
    annulus::CpuBackend backend;
    annulus::RingAttention attention(ring, backend, {}, mask);
    return attention.forward(q, q, q).lse(0, 0, 0);
  };
  int const calls = 2 * annulus::cpu::detail::ThreadPool::shared().cores();
  std::latch all_have_entered(calls);
  std::atomic<int> done{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < calls; ++i)
      threads.emplace_back([&] {
        std::once_flag once;
        attend([&](annulus::Index, annulus::Index, annulus::Index, annulus::Index) {
          std::call_once(once, [&] {
            all_have_entered.arrive_and_wait();
            attend(annulus::EveryPair());
          });
          return true;
        });
        ++done;
      });
  }
  CHECK(done == calls);
}
