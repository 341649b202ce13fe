// Fuzz target: plans of small problems against the visibility of every pair, which the oracle decides, and the checker
// of their actions.

#include <algorithm>
#include <array>
#include <vector>

#include "annulus/schedule/check_plan.hpp"
#include "annulus/schedule/ring_plan.hpp"
#include "fuzz/fuzzed_sharding.hpp"
#include "fuzz/property.hpp"
#include "support/least_plan.hpp"
#include "support/oracle_problem.hpp"

namespace {

using namespace annulus;
using annulus_fuzz::ByteReader;
using annulus_fuzz::require;

constexpr Index longest = 24;

PlanRequest request_of(ByteReader& in) {
  PlanRequest request;
  request.pass = in.of({Pass::forward, Pass::backward});
  int const ranks = static_cast<int>(in.between(1, 6));
  Index const queries = in.between(0, longest), keys = in.one_in(3) ? in.between(0, longest) : queries;
  if (in.one_in(3)) {
    request.query_lengths = annulus_fuzz::uneven_lengths(in, ranks, queries);
    request.key_lengths = annulus_fuzz::uneven_lengths(in, ranks, keys);
  } else {
    request.sharding = annulus_fuzz::valid_sharding(in, ranks, queries, keys);
    request.query_lengths = request.sharding.lengths(Side::query, ranks, queries);
    request.key_lengths = request.sharding.lengths(Side::key, ranks, keys);
  }
  request.rules.mask = annulus_fuzz::valid_mask(in, longest);
  request.rules.query_offset = in.one_in(3) ? in.between(-longest, longest) : 0;
  request.rotation = in.of({Rotation::automatic, Rotation::keys, Rotation::queries});
  request.elementwise = in.one_in(4);
  request.zero_copy = in.one_in(3);
  // Leaves of one position fit every sharding.
  if (in.one_in(4)) request.rules.reproducible = true, request.rules.reproducible_leaf = 1;
  request.shape = {.batch = 1,
                   .query_heads = in.between(1, 3),
                   .kv_heads = 1,
                   .head_dim = in.between(1, 9),
                   .value_dim = in.between(1, 9)};
  return request;
}

annulus_test::OracleProblem oracle_of(RingPlan const& plan) {
  AttentionRules const& rules = plan.request().rules;
  annulus_test::OracleProblem problem;
  problem.query_length = plan.global_queries();
  problem.key_length = plan.global_keys();
  problem.causal = rules.mask.causal;
  problem.window_left = rules.mask.window.left;
  problem.window_right = rules.mask.window.right;
  problem.sink_tokens = rules.mask.sink_tokens;
  problem.chunk = rules.mask.chunk;
  problem.query_offset = *rules.query_offset;
  return problem;
}

/// The pairs of one rank's queries and one owner's keys, in rows of their shards.
class PairWalk {
 public:
  explicit PairWalk(RingPlan const& plan) : plan_(plan), problem_(oracle_of(plan)) {
    for (Rank rank = 0; rank < plan.ranks(); ++rank) {
      queries_.push_back(positions_of(plan.query_segments(rank)));
      keys_.push_back(positions_of(plan.key_segments(rank)));
    }
  }

  /// Ranks that never meet have no visible pair; others hold, count and tile their pairs.
  void check() const {
    for (Rank rank = 0; rank < plan_.ranks(); ++rank)
      for (Rank owner = 0; owner < plan_.ranks(); ++owner) {
        int step = 0;
        while (step < plan_.steps() && plan_.owner(rank, step) != owner) ++step;
        if (step == plan_.steps())
          for_each_visible(rank, owner, [&](Index, Index) {
            require(false, "rank ", rank, " never meets rank ", owner, ", whose rows it needs");
          });
        else
          check_step(rank, step);
      }
  }

 private:
  bool keys_rotate() const { return plan_.rotation() == Rotation::keys; }

  /// Calls visit(row that travels, row that stays) for each visible pair.
  template <class Visit>
  void for_each_visible(Rank rank, Rank owner, Visit&& visit) const {
    auto const& queries = queries_[static_cast<std::size_t>(keys_rotate() ? rank : owner)];
    auto const& keys = keys_[static_cast<std::size_t>(keys_rotate() ? owner : rank)];
    for (std::size_t i = 0; i < queries.size(); ++i)
      for (std::size_t j = 0; j < keys.size(); ++j)
        if (annulus_test::oracle_visible(problem_, 0, 0, queries[i], keys[j]))
          keys_rotate() ? visit(static_cast<Index>(j), static_cast<Index>(i))
                        : visit(static_cast<Index>(i), static_cast<Index>(j));
  }

  void check_step(Rank rank, int index) const {
    PlannedStep const& step = plan_.step(rank, index);
    Index pairs = 0;
    std::vector<std::vector<int>> expected(static_cast<std::size_t>(plan_.rotating_rows(step.owner).size()),
                                           std::vector<int>(static_cast<std::size_t>(plan_.resident_rows(rank)), 0));
    for_each_visible(rank, step.owner, [&](Index travels, Index stays) {
      ++pairs;
      ++expected[static_cast<std::size_t>(travels)][static_cast<std::size_t>(stays)];
      require(step.held.begin <= travels && travels < step.held.end, "rank ", rank, ", step ", index, ": row ", travels,
              " of rank ", step.owner, " is needed, but not held");
    });
    require(pairs == step.visible_pairs, "rank ", rank, ", step ", index, ": ", step.visible_pairs,
            " visible pairs are planned, the oracle counts ", pairs);
    require(expected == tiled(rank, index, expected), "rank ", rank, ", step ", index,
            ": the tiles do not have each visible pair once");
    if (index > 0) check_arrival(rank, index);
  }

  /// What a rank holds was sent by the rank that held it before.
  void check_arrival(Rank rank, int index) const {
    PlannedStep const& step = plan_.step(rank, index);
    Rank const sender = plan_.transport().rank_offsets.backward(rank, plan_.transport().prefetched_hop(index - 1));
    PlannedStep const& before = plan_.step(sender, index - 1);
    bool const covered =
        step.held.empty() ||
        (before.owner == step.owner && before.sent.begin <= step.held.begin && step.held.end <= before.sent.end &&
         before.held.begin <= before.sent.begin && before.sent.end <= before.held.end);
    require(covered, "rank ", rank, ", step ", index, ": rank ", sender, " does not send the rows that are held");
  }

  /// Number of tiles in which each pair is visible, by row that travels and row that stays.
  std::vector<std::vector<int>> tiled(Rank rank, int index, std::vector<std::vector<int>> const& visible) const {
    auto counts = visible;
    for (auto& row : counts) std::fill(row.begin(), row.end(), 0);
    Index const first_held = plan_.step(rank, index).held.begin;
    for (Tile const& tile : plan_.tiles(rank, index))
      for (Index i = 0; i < tile.query_count; ++i) {
        RowRange const seen = tile.keys_of(plan_.request().rules.mask, i);
        for (Index j = seen.begin; j < seen.end; ++j) {
          Index const query = tile.query_begin + i, key = tile.key_begin + j;
          auto const travels = static_cast<std::size_t>(first_held + (keys_rotate() ? key : query));
          auto const stays = static_cast<std::size_t>(keys_rotate() ? query : key);
          require(travels < counts.size() && stays < counts[travels].size(), "rank ", rank, ", step ", index,
                  ": a tile has a pair outside of the shards");
          // In these tiles the backend tests each pair.
          counts[travels][stays] += tile.coverage == Coverage::elements ? visible[travels][stays] : 1;
        }
      }
    return counts;
  }

  RingPlan const& plan_;
  annulus_test::OracleProblem problem_;
  std::vector<std::vector<Index>> queries_, keys_;
};

/// The same problem with operands and a schedule that the plan above has not. Some are refused.
void check_other_schedule(ByteReader& in, PlanRequest request) {
  request.schedule = in.of({Schedule::ring, Schedule::both_directions, Schedule::two_levels, Schedule::tiles,
                            Schedule::all_gather, Schedule::double_ring});
  request.ranks_per_group = static_cast<int>(in.between(0, 3));
  request.shape.query_heads = request.shape.kv_heads = in.between(1, 6);
  request.checked = in.one_in(2);
  request.sinks = in.between(0, 1);
  if (!request.rules.reproducible) request.joint_keys = in.between(0, 2);
  if (in.one_in(2)) request.wire = Wire::bfloat16;
  if (in.one_in(3)) {
    request.bound_to_queries = true;
    request.bias = {1, in.one_in(2) ? 1 : request.shape.query_heads};
    add_bias_gradient(request, in.one_in(2));
  }
  try {
    check_plan(RingPlan(request));
  } catch (UnsupportedError const&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  ByteReader in(data, size);
  PlanRequest const request = request_of(in);
  RingPlan const plan(request);
  PairWalk(plan).check();
  annulus_test::check_least(plan);
  check_plan(plan);
  check_other_schedule(in, request);
  return 0;
}
