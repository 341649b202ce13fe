#pragma once
// Visible keys of one query row in a tile, for backends in host memory.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "annulus/backend/step.hpp"

namespace annulus {
namespace detail {

/// Key rows of a step that contain every key a query sees. `each`: some of them may be hidden, which
/// Step::find_visible tells if it makes the tests `tests`.
struct KeyBounds {
  RowRange rows;
  bool each = false;
  PairTests tests{.positions = false, .documents = false};
};

/// The document that was looked up last, and its key rows: neighbouring queries mostly belong to the same one.
struct KnownDocument {
  std::int32_t id = 0;  ///< 0, as of padding, until the first lookup, with no rows
  RowRange rows;
};

/// Key rows of the packed documents of a step, for each batch item.
class StepDocuments {
 public:
  /// Computes the documents of `step`, in the memory of an earlier call.
  template <class T, class Predicate>
  void assign(Step<T, Predicate, HostMemory> const& step) {
    if (!step.has_documents()) return;
    runs_.resize(std::max(runs_.size(), static_cast<std::size_t>(step.key_documents.extent(0))));
    for (Index b = 0; b < step.key_documents.extent(0); ++b)
      runs_[static_cast<std::size_t>(b)].assign(step.key_documents.extent(1),
                                                [&](Index row) { return step.key_documents(b, row); });
  }

  /// Rows from the first to the last key of a document of a batch item; empty if the step has none, or for padding.
  RowRange keys_of(Index batch, std::int32_t id) const { return runs_[static_cast<std::size_t>(batch)].rows_of(id); }

  /// Smallest known range that contains the keys visible to `query`, which counts from the tile's first row. `known`: for
  /// the queries of one batch item.
  template <class T, class Predicate>
  KeyBounds bounds(Step<T, Predicate, HostMemory> const& step, Tile const& tile, Index batch, Index query,
                   KnownDocument& known) const {
    RowRange rows = tile.keys_of(step.rules.mask, query);
    rows = {rows.begin + tile.key_begin, rows.end + tile.key_begin};
    bool const elements = tile.coverage == Coverage::elements;
    // The bounds of a tile at regular positions are exact.
    PairTests tests{.positions = elements && tile.key_stride == 0, .documents = false};
    if (step.has_documents()) {
      DocumentRuns const& runs = runs_[static_cast<std::size_t>(batch)];
      if (std::int32_t const id = step.query_documents(batch, tile.query_begin + query); id != known.id)
        known = {id, runs.rows_of(id)};
      rows = intersection(rows, known.rows);
      tests.documents = !runs.consecutive();
    }
    return {rows, elements || tests.documents, tests};
  }
  /// The same for a single query.
  template <class T, class Predicate>
  KeyBounds bounds(Step<T, Predicate, HostMemory> const& step, Tile const& tile, Index batch, Index query) const {
    KnownDocument known;
    return bounds(step, tile, batch, query, known);
  }

 private:
  std::vector<DocumentRuns> runs_;
};

}  // namespace detail

/// Finds the visible keys of the rows of a step. A packed document whose keys are contiguous is one range.
template <class T, class Predicate>
class KeyFinder {
 public:
  /// For a step that outlives it.
  explicit KeyFinder(Step<T, Predicate, HostMemory> const& step) : step_(step) { documents_.assign(step); }

  /// Calls function(RowRange) for each maximal run of keys of the step that the query sees. Other keys are never read,
  /// so that their values (NaN in padding, say) cannot reach the result. `query` counts from the tile's first row.
  template <class Function>
  void for_each_run(Tile const& tile, Index batch, Index head, Index query, Function&& function) const {
    auto const [rows, each, tests] = documents_.bounds(step_, tile, batch, query);
    if (!each) {
      if (!rows.empty()) function(rows);
      return;
    }
    RowRange run;
    for (Index begin = rows.begin; begin < rows.end; begin += keys_at_once) {
      RowRange const keys{begin, std::min(begin + keys_at_once, rows.end)};
      bool visible[keys_at_once];
      step_.find_visible(batch, head, tile.query_begin + query, keys, tests, visible);
      for (Index key = keys.begin; key < keys.end; ++key) {
        if (!visible[key - keys.begin]) continue;
        if (run.end < key && !run.empty()) function(std::exchange(run, {}));
        run = {run.empty() ? key : run.begin, key + 1};
      }
    }
    if (!run.empty()) function(run);
  }

 private:
  static constexpr Index keys_at_once = 64;

  Step<T, Predicate, HostMemory> const& step_;
  detail::StepDocuments documents_;
};

}  // namespace annulus
