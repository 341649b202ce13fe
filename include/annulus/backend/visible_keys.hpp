#pragma once
// Visible keys of one query row in a tile, for backends in host memory.

#include <algorithm>
#include <vector>

#include "annulus/backend/step.hpp"

namespace annulus {
namespace detail {

/// Key rows of a step that contain every key a query sees. `each`: some of them may be hidden; ask
/// Step::visible for each.
struct KeyBounds {
  RowRange rows;
  bool each = false;
};

/// Key rows of the packed documents of a step, for each batch item.
class StepDocuments {
 public:
  /// Computes the documents of `step`, in the memory of an earlier call.
  template <class T, class Predicate>
  void assign(Step<T, Predicate, HostMemory> const& step) {
    if (!step.has_segments()) return;
    runs_.resize(std::max(runs_.size(), static_cast<std::size_t>(step.key_segments.extent(0))));
    for (Index b = 0; b < step.key_segments.extent(0); ++b)
      runs_[static_cast<std::size_t>(b)].assign(step.key_segments.extent(1),
                                                [&](Index row) { return step.key_segments(b, row); });
  }

  /// Smallest known range that contains the keys visible to `query`, which counts from the tile's first row.
  template <class T, class Predicate>
  KeyBounds bounds(Step<T, Predicate, HostMemory> const& step, Tile const& tile, Index batch, Index query) const {
    RowRange rows = tile.keys_of(step.rules.mask, query);
    rows = {rows.begin + tile.key_begin, rows.end + tile.key_begin};
    bool each = tile.coverage == Coverage::elements;
    if (step.has_segments()) {
      DocumentRuns const& runs = runs_[static_cast<std::size_t>(batch)];
      rows = intersection(rows, runs.rows_of(step.query_segments(batch, tile.query_begin + query)));
      each = each || !runs.consecutive();
    }
    return {rows, each};
  }

 private:
  std::vector<DocumentRuns> runs_;
};

}  // namespace detail

/// Finds the visible keys of the rows of a step. A packed document whose keys are contiguous is one range.
template <class T, class Predicate>
class KeyFinder {
 public:
  explicit KeyFinder(Step<T, Predicate, HostMemory> const& step) : step_(step) { documents_.assign(step); }

  /// Calls function(RowRange) for each maximal run of keys of the step that the query sees. Other keys are never read,
  /// so that their values (NaN in padding, say) cannot reach the result. `query` counts from the tile's first row.
  template <class Function>
  void for_each_run(Tile const& tile, Index batch, Index head, Index query, Function&& function) const {
    auto const [rows, each] = documents_.bounds(step_, tile, batch, query);
    if (!each) {
      if (!rows.empty()) function(rows);
      return;
    }
    for (Index key = rows.begin; key < rows.end; ++key) {
      Index const begin = key;
      while (key < rows.end && step_.visible(batch, head, tile.query_begin + query, key)) ++key;
      if (key > begin) function(RowRange{begin, key});
    }
  }

 private:
  Step<T, Predicate, HostMemory> const& step_;
  detail::StepDocuments documents_;
};

}  // namespace annulus
