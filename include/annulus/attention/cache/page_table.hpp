#pragma once
// Page table: the sequences of a cache as lists of pages that the ranks hold. Every rank keeps the same table, as it
// depends on the calls alone, so no message is needed.

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "annulus/core/digest.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/index.hpp"

namespace annulus {

/// Place of a page: one of the slots of a rank.
struct PagePlace {
  Rank rank = 0;   ///< that holds it
  Index slot = 0;  ///< among the rank's pages

  bool operator==(PagePlace const&) const = default;
};

/// Sequences of rows in pages of a fixed number of rows. Page i of a sequence holds its positions from i * page_rows
/// on. Sequences that were forked share pages until one of them writes into a shared page. Throws ShapeError for a
/// sequence that does not exist, a length out of range, or too few free pages; the table is then unchanged.
class PageTable {
 public:
  /// A table of no ranks. Allocates nothing.
  PageTable() = default;
  /// `pages`: of each rank. Pages [i * together, (i + 1) * together) of a sequence are put on one rank.
  PageTable(int ranks, Index pages, Index page_rows, Index together = 1)
      : pages_(pages), page_rows_(page_rows), together_(together) {
    detail::check<ShapeError>(pages >= 1 && page_rows >= 1, "a cache of ", pages, " pages of ", page_rows,
                              " rows on each rank; at least one page of one row is required");
    references_.assign(static_cast<std::size_t>(ranks), std::vector<std::int32_t>(static_cast<std::size_t>(pages)));
    free_.assign(static_cast<std::size_t>(ranks), pages);
  }

  int ranks() const { return static_cast<int>(free_.size()); }               ///< of the ring
  Index page_rows() const { return page_rows_; }                             ///< rows of a page
  Index pages_per_rank() const { return pages_; }                            ///< free or not
  std::vector<Index> const& free_pages() const { return free_; }             ///< of each rank
  Index sequences() const { return static_cast<Index>(sequences_.size()); }  ///< that exist

  /// Number of rows of a sequence.
  Index length(Index sequence) const { return find(sequence).length; }
  /// The pages of a sequence, in the order of its positions.
  std::span<PagePlace const> pages(Index sequence) const { return find(sequence).pages; }

  /// A new, empty sequence; numbers are never used again.
  Index create() {
    Index const number = next_++;
    sequences_.emplace(number, Sequence{});
    note(1, number, 0);
    return number;
  }

  /// A new sequence with the rows of another one, whose pages it shares.
  Index fork(Index sequence) {
    Sequence copy = find(sequence);
    Index const number = next_++;
    for (PagePlace const& page : copy.pages) ++references(page);
    sequences_.emplace(number, std::move(copy));
    note(2, sequence, number);
    return number;
  }

  /// Drops the rows from position `length` on.
  void truncate(Index sequence, Index length) {
    Sequence& entry = find(sequence);
    detail::check<ShapeError>(0 <= length && length <= entry.length, "truncate of sequence ", sequence, " to ", length,
                              " rows; it has ", entry.length, ", and 0 to ", entry.length, " are accepted");
    auto const kept = static_cast<std::size_t>(detail::ceil_divide(length, page_rows_));
    for (std::size_t p = kept; p < entry.pages.size(); ++p) give_back(entry.pages[p]);
    entry.pages.resize(kept);
    entry.length = length;
    note(3, sequence, length);
  }

  /// Ends a sequence. Pages that no other sequence shares become free.
  void release(Index sequence) {
    for (PagePlace const& page : find(sequence).pages) give_back(page);
    sequences_.erase(sequence);
    note(4, sequence, 0);
  }

  /// A page whose rows append() needs copied, on one rank.
  struct Copy {
    Rank rank;       ///< holds both pages
    Index from, to;  ///< slots
    Index rows;      ///< of the page, from the first on
  };

  /// Throws ShapeError unless append(sequence, count) has room for all these sequences, which must differ, one after
  /// the other.
  void require_room(std::span<Index const> sequences, Index count) const {
    detail::check<ShapeError>(count >= 0, "append of ", count, " rows; 0 or more are accepted");
    Index needed = 0, copies_needed = 0;
    for (std::size_t s = 0; s < sequences.size(); ++s) {
      Sequence const& entry = find(sequences[s]);
      auto const before = sequences.first(s);
      detail::check<ShapeError>(std::find(before.begin(), before.end(), sequences[s]) == before.end(), "sequence ",
                                sequences[s], " is given twice to one append; once is accepted");
      detail::check<ShapeError>(entry.length <= detail::largest_index / 4 - count, "append of ", count,
                                " rows to sequence ", sequences[s], " of ", entry.length, " rows");
      needed += pages_of(entry.length + count) - static_cast<Index>(entry.pages.size());
      if (count == 0 || !copies_before(entry, sequences, s)) continue;
      PagePlace const& page = entry.pages.back();
      Index copies = 1;
      for (std::size_t other = 0; other < s; ++other)
        if (Sequence const& earlier = find(sequences[other]);
            copies_before(earlier, sequences, other) && earlier.pages.back().rank == page.rank)
          ++copies;
      detail::check<ShapeError>(copies <= free_on(page.rank), "append of ", count, " rows to sequence ", sequences[s],
                                " of ", entry.length, " rows: its last page is shared and is copied on rank ",
                                page.rank, ", where ", copies, " pages are needed; free pages of the ranks: ", free_);
      ++copies_needed;
    }
    Index const free = std::accumulate(free_.begin(), free_.end(), Index{0});
    bool const enough = needed + copies_needed <= free;
    if (enough && (needed == 0 || together_ == 1 || has_room_on_ranks(sequences, count))) return;
    throw ShapeError(detail::message_of(
        "append of ", count, " rows to sequences ", std::vector<Index>(sequences.begin(), sequences.end()), " of ",
        lengths_of(sequences), " rows: ", needed + copies_needed, " pages of ", page_rows_, " rows are needed, ", free,
        " are free; free pages of the ranks: ", free_, together_ > 1 ? "; the pages of a leaf lie on one rank" : ""));
  }

  /// Copies the last page of a sequence, if append() would write into it and another sequence shares it: the caller
  /// then copies its rows. For all sequences of an append before the first append().
  std::optional<Copy> own_last_page(Index sequence) {
    Sequence& entry = find(sequence);
    if (entry.length % page_rows_ == 0 || references(entry.pages.back()) == 1) return {};
    PagePlace& page = entry.pages.back();
    PagePlace const shared = page;
    page.slot = take(shared.rank, shared.slot);
    give_back(shared);
    note(5, sequence, page.slot);
    return Copy{shared.rank, shared.slot, page.slot, entry.length % page_rows_};
  }

  /// Adds `count` rows. New pages are put where most pages are free.
  void append(Index sequence, Index count) {
    Sequence& entry = find(sequence);
    Index const pages = pages_of(entry.length + count);
    while (static_cast<Index>(entry.pages.size()) < pages) {
      Rank const rank = rank_of_page(std::ssize(entry.pages), last_rank(entry), free_);
      Index after = -1;
      for (std::size_t p = entry.pages.size(); p-- > 0 && after < 0;)
        if (entry.pages[p].rank == rank) after = entry.pages[p].slot;
      entry.pages.push_back({rank, take(rank, after)});
    }
    entry.length += count;
    note(6, sequence, count);
  }

  /// Digest of all calls that changed the table; equal on two ranks only if they made the same calls.
  std::uint64_t history() const { return history_; }
  /// Number of these calls.
  Index changes() const { return changes_; }

 private:
  struct Sequence {
    Index length = 0;
    std::vector<PagePlace> pages;
  };

  Sequence const& find(Index sequence) const {
    auto const found = sequences_.find(sequence);
    detail::check<ShapeError>(found != sequences_.end(), "sequence ", sequence, " does not exist; ", sequences_.size(),
                              " sequences exist, and numbers of released ones are not used again");
    return found->second;
  }
  Sequence& find(Index sequence) { return const_cast<Sequence&>(std::as_const(*this).find(sequence)); }

  Index pages_of(Index length) const { return detail::ceil_divide(length, page_rows_); }
  Index free_on(Rank rank) const { return free_[static_cast<std::size_t>(rank)]; }
  std::int32_t references(PagePlace const& page) const {
    return references_[static_cast<std::size_t>(page.rank)][static_cast<std::size_t>(page.slot)];
  }
  std::int32_t& references(PagePlace const& page) {
    return references_[static_cast<std::size_t>(page.rank)][static_cast<std::size_t>(page.slot)];
  }

  /// True if own_last_page() copies the last page of sequence `s` of a list, after those before it have been asked.
  bool copies_before(Sequence const& entry, std::span<Index const> sequences, std::size_t s) const {
    if (entry.length % page_rows_ == 0) return false;
    std::int32_t sharing = references(entry.pages.back());
    for (std::size_t other = 0; sharing > 1 && other < s; ++other) {
      Sequence const& earlier = find(sequences[other]);
      if (earlier.length % page_rows_ != 0 && earlier.pages.back() == entry.pages.back()) --sharing;
    }
    return sharing > 1;
  }

  std::vector<Index> lengths_of(std::span<Index const> sequences) const {
    std::vector<Index> lengths;
    for (Index sequence : sequences) lengths.push_back(length(sequence));
    return lengths;
  }

  /// Rank of the last page; -1 if there is none.
  static Rank last_rank(Sequence const& entry) { return entry.pages.empty() ? -1 : entry.pages.back().rank; }
  /// Where a new page of a sequence goes, by the rank of the page before it: the rank with most free pages, of several
  /// the first one behind that rank, unless pages go together.
  Rank rank_of_page(Index page, Rank before, std::vector<Index> const& free) const {
    if (page % together_ != 0) return before;
    Rank best = detail::rank_at(before + 1, ranks());
    for (int i = 2; i <= ranks(); ++i)
      if (Rank const rank = detail::rank_at(before + i, ranks());
          free[static_cast<std::size_t>(rank)] > free[static_cast<std::size_t>(best)])
        best = rank;
    return best;
  }
  /// True if each page that require_room() asks for finds room on its rank.
  bool has_room_on_ranks(std::span<Index const> sequences, Index count) const {
    std::vector<Index>& free = free_then_;
    free = free_;
    for (std::size_t s = 0; s < sequences.size(); ++s)
      if (Sequence const& entry = find(sequences[s]); copies_before(entry, sequences, s))
        --free[static_cast<std::size_t>(last_rank(entry))];
    for (Index const sequence : sequences) {
      Sequence const& entry = find(sequence);
      Rank rank = last_rank(entry);
      for (Index page = std::ssize(entry.pages); page < pages_of(entry.length + count); ++page) {
        rank = rank_of_page(page, rank, free);
        if (--free[static_cast<std::size_t>(rank)] < 0) return false;
      }
    }
    return true;
  }

  /// Takes a free slot: the one behind `after`, so that pages of a sequence are adjacent in memory; else the middle of
  /// the longest free run, so that the sequence in front of the run can grow, too.
  Index take(Rank rank, Index after) {
    auto& slots = references_[static_cast<std::size_t>(rank)];
    auto const is_free = [&](Index slot) { return slots[static_cast<std::size_t>(slot)] == 0; };
    Index slot = after + 1;
    if (after < 0 || slot >= pages_ || !is_free(slot)) {
      Index longest = 0, begin = 0;
      for (Index i = 0, run = 0; i < pages_; ++i) {
        run = is_free(i) ? run + 1 : 0;
        if (run > longest) longest = run, begin = i + 1 - run;
      }
      slot = begin == 0 ? 0 : begin + longest / 2;
    }
    ++slots[static_cast<std::size_t>(slot)];
    --free_[static_cast<std::size_t>(rank)];
    return slot;
  }

  void give_back(PagePlace const& page) {
    if (--references(page) == 0) ++free_[static_cast<std::size_t>(page.rank)];
  }

  void note(Index change, Index sequence, Index value) {
    std::array const words{change, sequence, value};
    history_ = detail::digest_of(std::as_bytes(std::span(words)), history_);
    ++changes_;
  }

  Index pages_ = 0, page_rows_ = 1, together_ = 1;
  std::vector<std::vector<std::int32_t>> references_;  ///< [rank][slot]; 0: free
  std::vector<Index> free_;
  mutable std::vector<Index> free_then_;  ///< storage of has_room_on_ranks()
  std::map<Index, Sequence> sequences_;
  Index next_ = 0;
  std::uint64_t history_ = 0;
  Index changes_ = 0;
};

}  // namespace annulus
