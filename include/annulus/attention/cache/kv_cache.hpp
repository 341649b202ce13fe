#pragma once
// KvCache: keys and values of sequences, in pages spread over the ranks of a ring.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "annulus/attention/cache/page_table.hpp"
#include "annulus/attention/records.hpp"
#include "annulus/backend/cpu/cpu.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus {

/// Extents of a cache, equal on all ranks.
struct CacheShape {
  Index kv_heads = 1;      ///< heads of k and v
  Index head_dim = 1;      ///< elements of a row of k
  Index value_dim = 1;     ///< elements of a row of v
  Index pages = 1;         ///< of each rank
  Index page_rows = 1024;  ///< rows of a page; runs of fewer than 16 to 256 rows take slower kernels
  /// Every row has a document id, and is seen by queries with that id alone.
  bool document_ids = false;
  /// Positions of a leaf of reproducible calls, a multiple of page_rows or a divisor: the pages of a leaf lie on one
  /// rank. 0: on any ranks, for other calls.
  Index reproducible_leaf = 0;

  bool operator==(CacheShape const&) const = default;
};

namespace detail {

template <class T, class B>
class CachePages;

/// Smallest and largest positive document id of some rows; by default of padding alone.
struct DocumentIdRange {
  std::int32_t first = std::numeric_limits<std::int32_t>::max(), last = 0;

  void add(DocumentIdRange const& other) {
    first = std::min(first, other.first);
    last = std::max(last, other.last);
  }
  bool meets(DocumentIdRange const& other) const { return first <= other.last && other.first <= last; }
};

/// A number that this process has not given to another cache, whatever its types.
inline Index next_cache_number() {
  static std::atomic<Index> made{0};
  return made.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace detail

/// The keys and values of sequences of different lengths, for CachedAttention (cached_attention.hpp), which adds rows
/// to them. The rows of a sequence are at positions 0, 1, 2, ...; pages of page_rows positions lie on the ranks with
/// most room, so that each rank holds about the same share of a long sequence; with a reproducible_leaf, all pages of a
/// leaf on the same rank.
///
/// All ranks make one together and call its functions alike. create, fork, truncate and release send nothing: a rank
/// that was called differently is found by the next call of CachedAttention, which then throws on all ranks. They throw
/// ShapeError, and change nothing, for a sequence that does not exist, or a length that it does not have.
/// The backend allocates the pages, and must outlive the cache; their rows are copied by that of the CachedAttention.
template <Scalar T, Backend B = CpuBackend>
class KvCache {
 public:
  using Space = typename B::memory_space;  ///< of keys and values

  /// Allocates the pages of this rank. Collective. Throws, on all ranks, ShapeError for extents that are not positive
  /// or too large, CommunicationError if they differ between ranks, and Error if a rank has not enough memory.
  template <Communicator C>
  requires std::same_as<typename C::memory_space, Space> KvCache(C& ring, B& backend, CacheShape const& shape)
      : shape_(shape), rank_(ring.rank()) {  // nothing is allocated here, where a rank would throw alone
    detail::CallRecord record = detail::record_of_new_cache<T>(shape, detail::next_cache_number());
    record.fill_or_refuse([&](detail::CallRecord&) { allocate(ring.size(), backend); });
    number_ = detail::agree(ring, record).front().cache_number;
  }

  CacheShape const& shape() const { return shape_; }                      ///< as given
  PageTable const& table() const { return table_; }                       ///< the pages of all sequences
  Index length(Index sequence) const { return table_.length(sequence); }  ///< number of rows of a sequence

  Index create() { return table_.create(); }  ///< a new, empty sequence; its number is not used again
  /// A new sequence with the rows of another one. They share pages; a shared page that is partly filled is copied by
  /// the first append that writes into it.
  Index fork(Index sequence) { return table_.fork(sequence); }
  /// Drops the rows from position `length` on.
  void truncate(Index sequence, Index length) { table_.truncate(sequence, length); }
  /// Ends a sequence; pages that no other sequence shares become free.
  void release(Index sequence) { table_.release(sequence); }

  /// Bytes of keys, values and document ids that this rank holds room for.
  Index bytes() const { return keys_->size() + values_->size() + (ids_ ? ids_->size() : 0); }

 private:
  friend class detail::CachePages<T, B>;

  void allocate(int ranks, B& backend) {
    auto const& s = shape_;
    detail::check<ShapeError>(
        s.kv_heads >= 1 && s.head_dim >= 1 && s.value_dim >= 1 && s.pages >= 1 && s.page_rows >= 1, "a cache of ",
        s.pages, " pages of ", s.page_rows, " rows, kv_heads ", s.kv_heads, ", head_dim ", s.head_dim, ", value_dim ",
        s.value_dim, "; positive numbers are accepted");
    std::array const keys{s.pages, s.page_rows, s.kv_heads, s.head_dim};
    std::array const values{s.pages, s.page_rows, s.kv_heads, s.value_dim};
    detail::require_countable("the keys of a cache", keys, sizeof(T) * static_cast<std::size_t>(ranks));
    detail::require_countable("the values of a cache", values, sizeof(T) * static_cast<std::size_t>(ranks));
    auto const bytes = [](auto const& e) { return e[0] * e[1] * e[2] * e[3] * static_cast<Index>(sizeof(T)); };
    Index const leaf = s.reproducible_leaf;
    detail::check<ShapeError>(leaf >= 0 && (leaf == 0 || leaf % s.page_rows == 0 || s.page_rows % leaf == 0),
                              "CacheShape: reproducible_leaf is ", leaf, " with pages of ", s.page_rows,
                              " rows; accepted: 0, a multiple of them or a divisor");
    table_ = PageTable(ranks, s.pages, s.page_rows, std::max(leaf / s.page_rows, Index{1}));
    keys_.emplace(backend.allocate(bytes(keys)));
    values_.emplace(backend.allocate(bytes(values)));
    positions_.resize(static_cast<std::size_t>(s.pages * s.page_rows));
    if (!s.document_ids) return;
    ids_.emplace(backend.allocate(s.pages * s.page_rows * static_cast<Index>(sizeof(std::int32_t))));
    ids_of_pages_.resize(static_cast<std::size_t>(s.pages));
  }

  CacheShape shape_;
  Rank rank_;
  PageTable table_;
  Index number_ = 0;
  std::optional<typename B::Buffer> keys_, values_;  ///< [pages * page_rows, kv_heads, dim]
  std::optional<typename B::Buffer> ids_;            ///< [pages * page_rows], if the shape has them
  std::vector<Index> positions_;                     ///< of each row; the same for all sequences that share a page
  /// Contains the ids of the rows that have been written to each page.
  std::vector<detail::DocumentIdRange> ids_of_pages_;
};

}  // namespace annulus
