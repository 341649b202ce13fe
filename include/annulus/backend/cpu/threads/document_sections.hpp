#pragma once
// Sections of a step: runs of packed documents that do not see each other, so that each is computed like a batch item
// of its own, with its packed keys in cache.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "annulus/backend/visible_keys.hpp"

namespace annulus::cpu::detail {

/// Query rows of a step, and key rows that no other queries see.
struct DocumentSection {
  RowRange queries, keys;
};

/// The sections of each batch item, ascending: each of its query rows and each of its key rows is in one of them.
class DocumentSections {
 public:
  /// Divides the rows of a step by its documents, reusing storage. Without `divides`, each batch item is one section.
  template <class T, class Predicate>
  void assign(Step<T, Predicate, HostMemory> const& step, annulus::detail::StepDocuments const& documents,
              StepOperands<T, HostMemory> const& operands, bool divides) {
    Index const batches = operands.q.extent(axis::batch), keys = operands.k.extent(axis::sequence);
    Index const queries = operands.q.extent(axis::sequence);
    sections_.clear();
    firsts_.assign(1, 0);
    for (Index batch = 0; batch < batches; ++batch) {
      if (divides && step.has_documents() && queries > 0)
        divide(documents, batch, queries, [&](Index query) { return step.query_documents(batch, query); });
      else
        sections_.push_back({{0, queries}, {}});
      std::span<DocumentSection> const added = std::span(sections_).subspan(firsts_.back());
      for (std::size_t i = 0; i < added.size(); ++i)
        added[i].keys = {i == 0 ? 0 : added[i - 1].keys.end, i + 1 < added.size() ? added[i + 1].keys.begin : keys};
      firsts_.push_back(sections_.size());
    }
  }

  std::span<DocumentSection const> all() const { return sections_; }
  /// Index in all() of the first section of a batch item. first(batches) is the number of sections.
  Index first(Index batch) const { return static_cast<Index>(firsts_[static_cast<std::size_t>(batch)]); }
  Index count(Index batch) const { return first(batch + 1) - first(batch); }
  DocumentSection const& operator[](Index place) const { return sections_[static_cast<std::size_t>(place)]; }

 private:
  /// Smaller sections are joined to the next one: panels and key blocks that are not full take the time of full ones.
  static constexpr Index least_rows = 256;

  /// Appends the sections of a batch item. Their keys are the hull of those that are seen; assign() adds the others.
  template <class IdOf>
  void divide(annulus::detail::StepDocuments const& documents, Index batch, Index queries, IdOf&& id_of) {
    std::size_t const first = sections_.size();
    auto const is_small = [](DocumentSection const& section) {
      return section.queries.size() < least_rows || section.keys.size() < least_rows;
    };
    auto const join_last_to = [&](DocumentSection const& later) {
      DocumentSection const last = sections_.back();
      sections_.pop_back();
      return DocumentSection{annulus::detail::hull(last.queries, later.queries),
                             annulus::detail::hull(last.keys, later.keys)};
    };
    for (Index begin = 0, end = 0; begin < queries; begin = end) {
      std::int32_t const id = id_of(begin);
      while (end < queries && id_of(end) == id) ++end;
      DocumentSection next{{begin, end}, documents.keys_of(batch, id)};
      Index const keys_end = sections_.size() > first ? sections_.back().keys.end : 0;
      if (next.keys.empty()) next.keys = {keys_end, keys_end};
      while (sections_.size() > first && (is_small(sections_.back()) || sections_.back().keys.end > next.keys.begin))
        next = join_last_to(next);
      sections_.push_back(next);
    }
    if (sections_.size() > first + 1 && is_small(sections_.back())) {
      DocumentSection const last = sections_.back();
      sections_.pop_back();
      sections_.push_back(join_last_to(last));
    }
  }

  std::vector<DocumentSection> sections_;
  std::vector<std::size_t> firsts_;
};

}  // namespace annulus::cpu::detail
