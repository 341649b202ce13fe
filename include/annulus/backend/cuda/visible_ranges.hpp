#pragma once
// Visible keys of a step as one range of key rows for each query row, for kernels that take no other: whether they can
// be given so, and by which of the forms of VisibleKeys.

#include <algorithm>
#include <concepts>
#include <optional>
#include <span>

#include "annulus/backend/cuda/step_arguments.hpp"
#include "annulus/backend/step.hpp"

namespace annulus::cuda::detail {

/// The first of `count` ascending positions that is not below `position`.
constexpr Index first_not_below(Index const* positions, Index count, Index position) {
  Index begin = 0;
  while (count > 0) {
    Index const half = count / 2;
    if (positions[begin + half] < position) {
      begin += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return begin;
}

/// Key rows that a query sees by position: among the sink tokens, and among the other keys.
struct SeenRows {
  RowRange sinks, others;

  constexpr SeenRows(Mask const& mask, Index query, Index const* key_positions, Index keys) {
    Index const exempt = first_not_below(key_positions, keys, mask.sink_tokens);
    auto const rows = [&](PositionRange seen, RowRange of) {
      RowRange const range{first_not_below(key_positions, keys, seen.begin),
                           first_not_below(key_positions, keys, seen.end)};
      return annulus::detail::intersection(range, of);
    };
    sinks = rows(mask.keys_of(query, true), {0, exempt});
    others = rows(mask.keys_of(query, false), {exempt, keys});
  }

  constexpr bool consecutive() const { return sinks.empty() || others.empty() || sinks.end == others.begin; }
  /// All rows, if they are consecutive; [0, 0) if there are none.
  constexpr RowRange all() const { return annulus::detail::hull(sinks, others.empty() ? RowRange{} : others); }
};

/// The band that the ranges of query rows form, if they do: that of any row whose ends are not clipped to the keys.
class BandOfRows {
 public:
  explicit BandOfRows(Index keys) : keys_(keys) {}

  /// The range of the next query row.
  void add(Index row, RowRange range) {
    if (range.begin > 0) low_ = range.begin - row;
    if (range.end < keys_) high_ = range.end - 1 - row;
  }
  /// A side that no range needs is wide enough for `queries` rows.
  Band band(Index queries) const { return {low_ < unbounded ? low_ : -queries, high_ > -unbounded ? high_ : keys_}; }

 private:
  Index keys_;
  Index low_ = unbounded, high_ = -unbounded;
};

/// How the visible keys of a step can be given: a form of VisibleKeys with the band, or none, for the complete path. The
/// ranges are those of find_ranges().
struct VisibleForm {
  Coverage coverage = Coverage::full;
  Band band{};

  bool operator==(VisibleForm const&) const = default;
};

/// The form of the visible keys by position, without documents; empty if those of some query are not consecutive rows.
inline std::optional<VisibleForm> form_of_positions(Mask const& mask, std::span<Index const> queries,
                                                    std::span<Index const> keys) {
  if (mask == annulus::full()) return VisibleForm{};
  if (!std::ranges::is_sorted(keys)) return {};
  Index const count = std::ssize(keys);
  auto const seen_by = [&](Index query) {
    return SeenRows(mask, queries[static_cast<std::size_t>(query)], keys.data(), count);
  };
  BandOfRows rows(count);
  bool is_full = true;
  for (Index i = 0; i < std::ssize(queries); ++i) {
    SeenRows const seen = seen_by(i);
    if (!seen.consecutive()) return {};
    RowRange const range = seen.all();
    is_full = is_full && range == RowRange{0, count};
    if (!range.empty()) rows.add(i, range);
  }
  if (is_full) return VisibleForm{};
  Band const band = rows.band(std::ssize(queries));
  for (Index i = 0; i < std::ssize(queries); ++i) {
    RowRange const range = seen_by(i).all(), of_band = band.keys_of(i, count);
    if (range != of_band && !(range.empty() && of_band.empty())) return VisibleForm{Coverage::ranges, {}};
  }
  return VisibleForm{Coverage::band, band};
}

/// The form of the visible keys of a step that has tiles, of which `form` is that of its positions; empty: only the
/// complete path can compute it. Document ids, which are in device memory, make it ranges; whether the rows of each
/// document are consecutive, the GPU finds out.
template <class T, class Predicate, class Space>
std::optional<VisibleForm> visible_form(Step<T, Predicate, Space> const& step, std::optional<VisibleForm> form) {
  bool const is_positional = std::same_as<Predicate, EveryPair> && !step.boolean_mask.data() && !step.rules.block_mask;
  if (!is_positional) return {};
  if (form && step.has_documents()) form = VisibleForm{Coverage::ranges, {}};
  return form;
}

}  // namespace annulus::cuda::detail
