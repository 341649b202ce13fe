#pragma once
// Packed documents as key ranges: where the keys of a document lie next to each other, its queries see one range.

#include <cstdint>
#include <unordered_map>

#include "annulus/core/index.hpp"
#include "annulus/mask/band.hpp"

namespace annulus {

/// Same positive id: the rule for segment ids. 0 and negative ids are padding, which sees and is seen by nothing.
constexpr bool same_document(std::int32_t query, std::int32_t key) { return query > 0 && query == key; }

/// For one batch item and the keys of one step: the rows that hold each document.
class DocumentRuns {
 public:
  DocumentRuns() = default;

  /// id_of(row) for rows [0, keys).
  template <class IdOf>
  DocumentRuns(Index keys, IdOf&& id_of) {
    for (Index row = 0; row < keys; ++row) {
      std::int32_t const id = id_of(row);
      if (id <= 0) continue;
      auto const [found, fresh] = runs_.try_emplace(id, RowRange{row, row + 1});
      if (fresh) continue;
      consecutive_ = consecutive_ && found->second.end == row;
      found->second.end = row + 1;
    }
  }

  /// True if no document is interrupted: then a query sees exactly rows_of(its id).
  bool consecutive() const { return consecutive_; }

  /// The rows from the first to the last key of the document; empty for padding and for unknown ids.
  RowRange rows_of(std::int32_t id) const {
    auto const found = runs_.find(id);
    return id > 0 && found != runs_.end() ? found->second : RowRange{};
  }

 private:
  std::unordered_map<std::int32_t, RowRange> runs_;
  bool consecutive_ = true;
};

}  // namespace annulus
