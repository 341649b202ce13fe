// Fuzz target: shardings and plans of any lengths, maps and rules, valid or not. Whatever is refused is refused by
// annulus::Error; what is accepted owns every position once.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "annulus/attention/options.hpp"
#include "annulus/attention/validate.hpp"
#include "annulus/schedule/best_plan.hpp"
#include "annulus/schedule/ring_plan.hpp"
#include "fuzz/byte_reader.hpp"
#include "fuzz/property.hpp"

namespace {

using namespace annulus;
using annulus_fuzz::ByteReader;
using annulus_fuzz::require;

/// Longer sequences are not walked position by position.
constexpr Index longest_walk = 4096;

std::vector<Index> any_numbers(ByteReader& in, std::int64_t count) {
  std::vector<Index> numbers;
  for (std::int64_t i = 0; i < count; ++i) numbers.push_back(in.any_number());
  return numbers;
}

std::vector<std::vector<Index>> any_map(ByteReader& in) {
  std::vector<std::vector<Index>> map(static_cast<std::size_t>(in.between(0, 5)));
  for (auto& rows : map) rows = any_numbers(in, in.between(0, 7));
  return map;
}

Sharding any_sharding(ByteReader& in) {
  switch (in.between(0, 3)) {
    case 1:
      return Striped{in.any_number()};
    case 2:
      return Zigzag{};
    case 3: {
      auto queries = any_map(in);
      return ExplicitMap{std::move(queries), any_map(in)};
    }
    default:
      return Contiguous{};
  }
}

/// Sum of lengths; saturated.
Index sum_of(std::vector<Index> const& lengths) {
  Index sum = 0;
  for (Index length : lengths) sum = detail::saturating_sum(sum, length);
  return sum;
}

/// Runs of positions that a rank would own, at most.
Index runs_of(Sharding const& sharding, Index positions) {
  return sharding.block() > 1 ? positions / sharding.block() : 1;
}

/// The segments of these lengths, and each position of a short sequence on one rank.
void check_partition(Sharding const& sharding, Side side, std::vector<Index> const& lengths) {
  Index const positions = sum_of(lengths);
  bool const walked = 0 <= positions && positions <= longest_walk;
  std::vector<char> owned(static_cast<std::size_t>(walked ? positions : 0), 0);
  for (Rank rank = 0; rank < static_cast<Rank>(lengths.size()); ++rank) {
    auto const segments = sharding.segments(side, rank, lengths);
    require(rows_of(segments) == lengths[static_cast<std::size_t>(rank)], sharding.name(), ": rank ", rank, " holds ",
            lengths, " rows, its segments ", rows_of(segments));
    for (Segment const& segment : segments) {
      Index const last = segment.global_begin + (segment.length - 1) * segment.global_stride;
      require(segment.length >= 1 && segment.global_begin >= 0 && segment.global_stride >= 1 && last < positions,
              sharding.name(), ": a segment of ", segment.length, " positions from ", segment.global_begin, ", stride ",
              segment.global_stride, ", of ", positions);
    }
    if (!walked) continue;
    for (Index position : positions_of(segments))
      require(!std::exchange(owned[static_cast<std::size_t>(position)], 1), sharding.name(), ": position ", position,
              " has two owners");
  }
  require(std::find(owned.begin(), owned.end(), 0) == owned.end(), sharding.name(), ": a position has no owner");
}

/// Lengths that the sharding makes, or that are given.
void check_sharding(Sharding const& sharding, Side side, ByteReader& in) {
  std::vector<Index> lengths;
  int const ranks = static_cast<int>(in.between(-1, 9));
  try {
    if (in.one_in(3)) {
      lengths = any_numbers(in, std::max(ranks, 0));
    } else {
      Index const positions = in.any_number();
      lengths = sharding.lengths(side, ranks, positions);
      require(static_cast<int>(lengths.size()) == ranks, "lengths of ", lengths.size(), " ranks, expected ", ranks);
      require(sum_of(lengths) == positions, sharding.name(), ": lengths ", lengths, " of ", positions, " positions");
    }
    if (runs_of(sharding, sum_of(lengths)) <= longest_walk) check_partition(sharding, side, lengths);
  } catch (Error const&) {
  }
}

Options any_options(ByteReader& in, Sharding sharding) {
  auto const any_or_unset = [&] { return in.one_in(2) ? std::optional(in.any_number()) : std::nullopt; };
  Options options{.sharding = std::move(sharding)};
  options.mask = {.causal = in.one_in(2), .window = {any_or_unset(), any_or_unset()}};
  if (in.one_in(2)) options.mask.sink_tokens = in.any_number();
  if (in.one_in(4)) options.mask.chunk = in.any_number();
  options.query_offset = any_or_unset();
  options.rotation = in.of({Rotation::automatic, Rotation::keys, Rotation::queries});
  if (in.one_in(8)) options.reproducible = true, options.reproducible_leaf = in.any_number();
  return options;
}

void check_numbers(RingPlan const& plan) {
  if (plan.lanes().size() > 1)
    for (RingPlan const& lane : plan.lanes()) check_numbers(lane);
  for (Rank rank = 0; rank < plan.ranks(); ++rank) {
    require(plan.bytes_sent(rank) >= 0 && plan.peak_buffer_bytes(rank) >= 0, "rank ", rank, " sends ",
            plan.bytes_sent(rank), " bytes and has buffers of ", plan.peak_buffer_bytes(rank), " bytes");
    for (int step = 0; step < plan.steps(); ++step)
      require(plan.step(rank, step).visible_pairs >= 0, "rank ", rank, ", step ", step, ": ",
              plan.step(rank, step).visible_pairs, " visible pairs");
  }
}

/// Plans as RingAttention does: rules first, then the offset, then the plan.
void plan_call(Options const& options, PlanRequest request) {
  validate_rules(rules_of(options));
  request.sharding = options.sharding;
  request.rotation = options.rotation;
  request.rules = rules_of(options);
  // The lengths of a tensor are never negative; those of a request may be.
  Index const queries = sum_of(request.query_lengths), keys = sum_of(request.key_lengths);
  if (std::min(queries, keys) >= 0) request.rules.query_offset = query_offset_of(request.rules, queries, keys);
  Index const positions = std::max(queries, keys);
  // Where positions are not evenly spaced alike, the work grows with the number of rows.
  bool const by_rows = request.rules.mask.chunk > 0 || options.sharding.kind() == "striped";
  if (runs_of(options.sharding, positions) > 64 || (by_rows && positions > longest_walk)) return;
  check_numbers(best_plan(request));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  ByteReader in(data, size);
  try {
    Sharding const sharding = any_sharding(in);
    for (Side side : {Side::query, Side::key}) check_sharding(sharding, side, in);
    Options const options = any_options(in, sharding);
    std::int64_t const ranks = in.between(0, 6);
    PlanRequest request;
    request.pass = in.of({Pass::forward, Pass::backward});
    auto const lengths = [&](Side side) {
      return in.one_in(2) ? any_numbers(in, ranks)
                          : sharding.lengths(side, static_cast<int>(ranks), in.between(0, 255));
    };
    request.query_lengths = lengths(Side::query);
    request.key_lengths = in.one_in(4) ? any_numbers(in, in.between(0, 6)) : lengths(Side::key);
    auto const extent = [&] { return std::max(in.any_number(), Index{0}); };
    request.shape = {
        .batch = extent(), .query_heads = extent(), .kv_heads = extent(), .head_dim = extent(), .value_dim = extent()};
    request.element_bytes = in.of({4, 2, 8});
    request.accumulator_bytes = request.lse_bytes = request.element_bytes == 8 ? 8 : 4;
    request.sinks = extent();
    request.elementwise = in.one_in(2);
    request.zero_copy = in.one_in(2);
    request.checked = in.one_in(2);
    request.schedule = in.of({Schedule::ring, Schedule::both_directions, Schedule::two_levels, Schedule::tiles,
                              Schedule::all_gather, Schedule::automatic, Schedule::double_ring});
    if (in.one_in(2)) request.ranks_per_group = static_cast<int>(in.between(-1, 6));
    if (in.one_in(4)) request.near = static_cast<int>(in.between(-1, 6));
    request.wire = in.of({Wire::as_stored, Wire::bfloat16, Wire::half});
    if (in.one_in(4)) request.joint_keys = in.any_number();
    plan_call(options, std::move(request));
  } catch (Error const&) {
  }
  return 0;
}
