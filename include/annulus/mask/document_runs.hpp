#pragma once
// Packed documents as key ranges: if the keys of a document are contiguous, its queries see one range.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "annulus/core/index.hpp"
#include "annulus/mask/band.hpp"

namespace annulus {

/// Document rule: equal positive ids see each other. 0 and negative ids are padding, which sees and is seen by nothing.
constexpr bool same_document(std::int32_t query, std::int32_t key) { return query > 0 && query == key; }

/// Key rows of each document, for one batch item and the keys of one step.
class DocumentRuns {
 public:
  DocumentRuns() = default;

  /// id_of(row) returns the document id of a row in [0, keys).
  template <class IdOf>
  DocumentRuns(Index keys, IdOf&& id_of) {
    assign(keys, id_of);
  }

  /// Like the constructor, but reuses storage.
  template <class IdOf>
  void assign(Index keys, IdOf&& id_of) {
    runs_.clear();
    for (Index row = 0; row < keys; ++row) {
      std::int32_t const id = id_of(row);
      if (id <= 0) continue;
      if (!runs_.empty() && runs_.back().id == id && runs_.back().rows.end == row)
        runs_.back().rows.end = row + 1;
      else
        runs_.push_back({id, {row, row + 1}});
    }
    std::sort(runs_.begin(), runs_.end(),
              [](Run const& a, Run const& b) { return a.id != b.id ? a.id < b.id : a.rows.begin < b.rows.begin; });
    std::size_t kept = 0;
    for (Run const& run : runs_)
      if (kept > 0 && runs_[kept - 1].id == run.id)
        runs_[kept - 1].rows.end = run.rows.end;
      else
        runs_[kept++] = run;
    consecutive_ = kept == runs_.size();
    runs_.resize(kept);
  }

  /// True if the rows of every document are contiguous, so that a query sees exactly rows_of(its id).
  bool consecutive() const { return consecutive_; }

  /// Rows from the first to the last key of the document; empty for padding and for unknown ids.
  RowRange rows_of(std::int32_t id) const {
    if (id <= 0) return {};
    auto const found = std::lower_bound(runs_.begin(), runs_.end(), id,
                                        [](Run const& run, std::int32_t wanted) { return run.id < wanted; });
    return found != runs_.end() && found->id == id ? found->rows : RowRange{};
  }

 private:
  struct Run {
    std::int32_t id = 0;
    RowRange rows;
  };
  std::vector<Run> runs_;
  bool consecutive_ = true;
};

}  // namespace annulus
