// Traps of the ring: owners of rows, buffers of pending transfers, orders of ranks, and bit-identical runs.

#include <annulus/annulus.hpp>
#include <atomic>
#include <bit>
#include <functional>
#include <thread>

#include "integration/solve.hpp"
#include "support/catch.hpp"
#include "support/unruly_communicator.hpp"

using namespace annulus_test;
using annulus::Rotation;
using annulus::SimulatedRing;

namespace {

bool same_bits(std::vector<double> const& a, std::vector<double> const& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) {
    return std::bit_cast<std::uint64_t>(x) == std::bit_cast<std::uint64_t>(y);
  });
}

/// Problems that cover all exchanges: full rounds, rounds shortened by a window, skipped owners; rotation of keys and
/// of queries; document ids; sums of sink gradients.
std::vector<RingProblem> problems_of_all_exchanges() {
  std::vector<RingProblem> problems;
  auto const add = [&](int ranks, annulus::Sharding sharding, auto&& change) {
    for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
      RingProblem problem = small_ring_problem({.query_length = 35}, ranks, sharding, rotation);
      change(problem);
      settle(problem);
      round_operands<float>(problem);
      problems.push_back(std::move(problem));
    }
  };
  add(5, annulus::Zigzag{}, [](RingProblem& p) { p.dense.causal = true, give_sinks(p, 2); });
  add(4, annulus::Contiguous{}, [](RingProblem& p) { p.dense.causal = true, p.dense.window_left = 10; });
  add(6, annulus::Contiguous{}, [](RingProblem& p) {
    p.dense.window_left = p.dense.window_right = 2;
    p.dense.query_offset = 17;
  });
  add(3, annulus::Striped{2}, [](RingProblem& p) { give_documents(p, documents_of_lengths(1, {9, 14, 12})); });
  add(2, annulus::Contiguous{}, [](RingProblem& p) { p.dense.dropout_probability = 0.3; });
  return problems;
}

RingResult solve_unruly(RingProblem const& problem, UnrulyOptions const& options, int calls = 1) {
  return assemble(problem, annulus::run_ring(problem.ranks, [&](SimulatedRing& ring) {
                    UnrulyCommunicator<SimulatedRing> unruly(ring, options);
                    return with_asked_backend([&](auto& backend) {
                      return run_rank<float, HostPlacement>(problem, unruly, backend, annulus::EveryPair{}, calls);
                    });
                  }));
}

/// Ring of the same ranks in another order: rank p of it is rank (factor * p + shift) mod size of the inner ring.
/// factor and size must be coprime.
class ReorderedRing {
 public:
  using memory_space = annulus::HostMemory;

  ReorderedRing(SimulatedRing& inner, int factor, int shift) : inner_(&inner), factor_(factor), shift_(shift) {
    while (inner_rank(place_) != inner.rank()) ++place_;
  }

  annulus::Rank rank() const { return place_; }
  int size() const { return inner_->size(); }

  SimulatedRing::Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out,
                                      annulus::IncomingBytes in) {
    return inner_->start_shift(channel, factor_ * hop % size(), out, in);
  }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    std::vector<std::byte> by_inner_rank(all.size());
    inner_->all_gather(mine, by_inner_rank);
    for (int place = 0; place < size(); ++place) {
      auto const from = by_inner_rank.begin() + inner_rank(place) * static_cast<std::ptrdiff_t>(mine.size());
      std::copy_n(from, mine.size(), all.begin() + place * static_cast<std::ptrdiff_t>(mine.size()));
    }
  }

  void abandon(std::string const& reason) noexcept { inner_->abandon(reason); }

 private:
  int inner_rank(int place) const { return (factor_ * place + shift_) % size(); }

  SimulatedRing* inner_;
  int factor_, shift_, place_ = 0;
};

/// Compares the rows of each step with those of their owners; counts them and records whether any differ.
class WitnessBackend : public annulus::ReferenceBackend {
 public:
  WitnessBackend(RingProblem const& problem, std::atomic<std::int64_t>& rows_seen, std::atomic<bool>& altered)
      : problem_(problem), rows_seen_(rows_seen), altered_(altered) {}

  template <class T, class Predicate, class A>
  void fold(annulus::Step<T, Predicate, annulus::HostMemory> const& step,
            annulus::StepOperands<T, annulus::HostMemory> const& operands,
            annulus::RunningState<A, annulus::HostMemory> state) {
    witness(step, operands);
    annulus::ReferenceBackend::fold(step, operands, state);
  }

  template <class T, class L, class Predicate, class A>
  void add_gradients(annulus::Step<T, Predicate, annulus::HostMemory> const& step,
                     annulus::StepOperands<T, annulus::HostMemory> const& operands,
                     annulus::BackwardOperands<T, L, A, annulus::HostMemory> const& backward,
                     annulus::StepGradients<A, annulus::HostMemory> gradients) {
    witness(step, operands);
    compare(backward.dout, step.query_positions, problem_.dout);
    annulus::ReferenceBackend::add_gradients(step, operands, backward, gradients);
  }

 private:
  template <class T, class Predicate>
  void witness(annulus::Step<T, Predicate, annulus::HostMemory> const& step,
               annulus::StepOperands<T, annulus::HostMemory> const& operands) {
    compare(operands.q, step.query_positions, problem_.dense.q);
    compare(operands.k, step.key_positions, problem_.dense.k);
    compare(operands.v, step.key_positions, problem_.dense.v);
  }

  template <class T>
  void compare(annulus::TensorView<T const, 4> rows, std::span<Index const> positions,
               std::vector<double> const& global) {
    Index const heads = rows.extent(annulus::axis::heads), dim = rows.extent(annulus::axis::dim);
    for (Index row = 0; row < rows.extent(annulus::axis::sequence); ++row)
      for (Index i = 0; i < heads * dim; ++i) {
        auto const place = static_cast<std::size_t>(positions[static_cast<std::size_t>(row)] * heads * dim + i);
        if (static_cast<double>(rows(0, row, i / dim, i % dim)) != global[place]) altered_ = true;
      }
    rows_seen_ += rows.extent(annulus::axis::sequence);
  }

  RingProblem const& problem_;
  std::atomic<std::int64_t>& rows_seen_;
  std::atomic<bool>& altered_;
};

}  // namespace

TEST_CASE("every step of both passes uses the keys of its owner", "[trap][C10]") {
  for (int ranks : {2, 3, 4, 7})
    for (Rotation rotation : {Rotation::keys, Rotation::queries})
      for (bool local : {false, true}) {
        RingProblem problem = small_ring_problem({.query_length = 28, .head_dim = 7}, ranks, {}, rotation);
        OracleProblem& d = problem.dense;
        // Keys and values of different shards have different directions and sizes.
        for (std::int64_t key = 0; key < 28; ++key) {
          std::int64_t const owner = key * ranks / 28;
          d.k[static_cast<std::size_t>(key * 7 + owner)] += 3;
          for (std::int64_t i = 0; i < 7; ++i)
            d.v[static_cast<std::size_t>(key * 7 + i)] += static_cast<double>(10 * owner);
        }
        if (local) d.window_left = d.window_right = 9;
        CHECK(complaints(problem) == "");
      }
}

TEST_CASE("buffers are not touched until a slow transfer has finished with them", "[trap][C36]") {
  // The communicator throws if bytes of a pending transfer are overwritten; bytes read before they arrive are NaN.
  std::uint64_t seed = 0;
  for (RingProblem const& problem : problems_of_all_exchanges()) {
    RingResult const undisturbed = assemble(problem, solve_by_rank<float>(problem));
    REQUIRE(judge(problem, undisturbed, float_bounds).complaint == "");
    for (int run = 0; run < 3; ++run) CHECK(same_bits(solve_unruly(problem, {.seed = ++seed}, 2), undisturbed));
  }
}

TEST_CASE("a ring may have any order of ranks, and two rings may run concurrently", "[trap][C37]") {
  for (auto const& [ranks, factor, shift] :
       {std::tuple{5, 1, 2}, std::tuple{5, 4, 0}, std::tuple{7, 3, 5}, std::tuple{4, 3, 1}})
    for (Rotation rotation : {Rotation::keys, Rotation::queries})
      for (bool local : {false, true}) {
        RingProblem problem = small_ring_problem({.query_length = 30}, ranks, {}, rotation);
        problem.dense.causal = true;
        if (local) problem.dense.window_left = 8;
        give_sinks(problem, 1);
        settle(problem);
        round_operands<float>(problem);
        std::vector<RingResult> by_place(static_cast<std::size_t>(ranks));
        annulus::run_ring(ranks, [&, factor = factor, shift = shift](SimulatedRing& inner) {
          ReorderedRing ring(inner, factor, shift);
          by_place[static_cast<std::size_t>(ring.rank())] =
              with_asked_backend([&](auto& backend) { return run_rank<float>(problem, ring, backend); });
        });
        CHECK(judge(problem, assemble(problem, by_place), float_bounds).complaint == "");
        CHECK(same_bits(assemble(problem, by_place), assemble(problem, solve_by_rank<float>(problem))));
      }

  // Two concurrent rings, on different threads, with different problems.
  RingProblem first = small_ring_problem({.query_length = 40}, 4, annulus::Zigzag{}, Rotation::keys, 1);
  RingProblem second = small_ring_problem({.query_length = 40}, 4, annulus::Striped{}, Rotation::queries, 2);
  first.dense.causal = second.dense.causal = true;
  RingResult first_result, second_result;
  {
    std::jthread first_ring([&] { first_result = solve<float>(first); });
    second_result = solve<float>(second);
  }
  CHECK(judge(first, first_result, float_bounds).complaint == "");
  CHECK(judge(second, second_result, float_bounds).complaint == "");
}

TEST_CASE("20 runs with random delays give the same bits", "[trap][C38]") {
  for (RingProblem const& problem : problems_of_all_exchanges()) {
    RingResult const first = assemble(problem, solve_by_rank<float>(problem));
    bool same = true;
    for (std::uint64_t run = 0; run < 20; ++run)
      same = same &&
             same_bits(solve_unruly(problem, {.seed = 1000 + run, .longest_delay = std::chrono::microseconds(100)}),
                       first);
    INFO(problem.text);
    CHECK(same);
  }
}

TEST_CASE("values replicated over ranks or rings are bit-identical", "[trap][C39]") {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
      RingProblem problem = small_ring_problem({.query_length = 33}, ranks, annulus::Zigzag{}, rotation);
      problem.dense.causal = true;
      give_sinks(problem, 3);
      settle(problem);
      round_operands<float>(problem);
      auto const replica = solve_by_rank<float>(problem), other_replica = solve_by_rank<float>(problem);
      for (std::size_t rank = 0; rank < replica.size(); ++rank) {
        CHECK(same_bits(replica[rank].dsinks, replica[0].dsinks));
        CHECK(same_bits(replica[rank], other_replica[rank]));
      }
    }

  // With exact arithmetic (equal logits, values that are small integers) the order in which parts are merged does not
  // matter: the bits are the same for any number of ranks.
  RingProblem problem = small_ring_problem({.query_length = 32}, 1);
  problem.dense.causal = true;
  problem.dense.softmax_scale = 0;
  for (std::size_t i = 0; i < problem.dense.v.size(); ++i) problem.dense.v[i] = static_cast<double>(i * i % 17) - 8;
  RingResult const alone = solve<float>(problem);
  for (int ranks : {2, 3, 5, 8, 16})
    for (annulus::Sharding const& sharding : every_sharding(ranks, 32, 32))
      for (Rotation rotation : {Rotation::keys, Rotation::queries}) {
        RingProblem spread = problem;
        spread.ranks = ranks;
        spread.options.sharding = sharding;
        spread.options.rotation = rotation;
        spread.query_lengths.clear();
        RingResult const result = solve<float>(spread);
        CHECK(same_bits(result.output, alone.output));
        CHECK(same_bits(result.lse, alone.lse));
      }
}

TEMPLATE_TEST_CASE("rows arrive unchanged after any number of hops", "[trap][C44]", Eigen::half, Eigen::bfloat16) {
  for (Rotation rotation : {Rotation::keys, Rotation::queries})
    for (bool local : {false, true}) {
      RingProblem problem = small_ring_problem({.query_length = 32}, 8, {}, rotation);
      if (local) problem.dense.window_left = 9;
      settle(problem);
      round_operands<TestType>(problem);
      std::atomic<std::int64_t> rows_seen = 0;
      std::atomic<bool> altered = false;
      annulus::run_ring(problem.ranks, [&](SimulatedRing& ring) {
        WitnessBackend backend(problem, rows_seen, altered);
        run_rank<TestType>(problem, ring, backend);
      });
      CHECK(!altered);
      // In a ring, 8 steps with 4 rows each of q, k and v, and in the backward pass of dout; fewer with a window.
      if (!local && !asked_schedule()) CHECK(rows_seen == 8 * 8 * 4 * (3 + 4));
      CHECK(rows_seen > 0);
    }
}
