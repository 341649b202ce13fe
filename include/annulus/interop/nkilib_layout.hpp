#pragma once
// Layouts of nkilib. Lse tiles are [batch, heads, 128, ceil(s / 128)], where element (p, g) belongs to local position
// g * 128 + p. Packed documents are given as, for each local query, the range of local keys of its document.

#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <span>
#include <vector>

#include "annulus/attention/ring_attention.hpp"

namespace annulus::nkilib {

/// Partitions of a Trainium core.
inline constexpr Index partitions = 128;

/// Columns of an lse tile for `rows` positions.
constexpr Index lse_columns(Index rows) { return annulus::detail::ceil_divide(rows, partitions); }

/// Converts lse [batch, heads, s] to tiles [batch, heads, 128, lse_columns(s)] in the element type of the tiles.
/// Positions past s and masked rows (lse -inf) become 0.
template <class L, class Tile>
void to_lse_tiles(TensorView<L const, 3> lse, TensorView<Tile, 4> tiles) {
  for (Index b = 0; b < tiles.extent(0); ++b)
    for (Index h = 0; h < tiles.extent(1); ++h)
      for (Index p = 0; p < tiles.extent(2); ++p)
        for (Index g = 0; g < tiles.extent(3); ++g) {
          Index const row = g * partitions + p;
          bool const holds_a_value = row < lse.extent(2) && lse(b, h, row) != -std::numeric_limits<L>::infinity();
          tiles(b, h, p, g) = holds_a_value ? static_cast<Tile>(lse(b, h, row)) : Tile(0);
        }
}

/// Converts tiles [batch, heads, 128, lse_columns(s)] to lse [batch, heads, s]. sees_nothing(batch, row) returns true
/// for masked rows, whose lse becomes -inf. A 0 in the tiles does not identify them: it is also the lse of a row whose
/// exponentials add up to 1.
template <class Tile, class L, class SeesNothing>
void from_lse_tiles(TensorView<Tile const, 4> tiles, TensorView<L, 3> lse, SeesNothing&& sees_nothing) {
  for (Index b = 0; b < lse.extent(0); ++b)
    for (Index h = 0; h < lse.extent(1); ++h)
      for (Index row = 0; row < lse.extent(2); ++row)
        lse(b, h, row) = sees_nothing(b, row) ? -std::numeric_limits<L>::infinity()
                                              : static_cast<L>(tiles(b, h, row % partitions, row / partitions));
}

/// Document ids made from nkilib's bounds. Under striped sharding over n ranks, a document [a, e) of the sequence, with
/// a and e multiples of n, is rows [a / n, e / n) of every shard. So the bounds of a query are local rows, equal on all
/// ranks. They become document ids: 1, 2, ... in document order, 0 for a masked query and for a key in no document.
class PackedDocuments {
 public:
  /// bound_min (inclusive) and bound_max (exclusive): [batch, heads, s], equal along heads. A query with
  /// bound_max <= bound_min sees nothing. Throws UnsupportedError unless the values are integers in [0, s], equal for
  /// all heads, and any two ranges of a batch item are equal or disjoint.
  PackedDocuments(TensorView<float const, 3> bound_min, TensorView<float const, 3> bound_max)
      : batch_(bound_min.extent(0)),
        rows_(bound_min.extent(2)),
        query_ids_(size(), 0),
        key_ids_(size(), 0),
        first_keys_(size(), 0) {
    if (bound_min.size() == 0) return;
    for (Index b = 0; b < batch_; ++b) read(b, bound_min, bound_max);
  }

  /// Document ids of local queries and of local keys, [batch, s].
  TensorView<std::int32_t const, 2> query_ids() const { return {query_ids_.data(), {batch_, rows_}}; }
  TensorView<std::int32_t const, 2> key_ids() const { return {key_ids_.data(), {batch_, rows_}}; }  ///< of local keys

  /// True if the query of this row sees no key of any rank. With a causal mask that holds before the first row of its
  /// document; in that first row the key of rank 0 is never later than the query.
  bool sees_nothing(Index b, Index row, bool causal) const {
    std::size_t const place = place_of(b, row);
    return query_ids_[place] == 0 || (causal && first_keys_[place] > row);
  }

  /// Digest of the document ids.
  std::uint64_t fingerprint() const {
    std::array const extents{batch_, rows_};
    std::uint64_t digest = annulus::detail::digest_of(std::as_bytes(std::span(extents)));
    for (auto const* ids : {&query_ids_, &key_ids_})
      digest = annulus::detail::digest_of(std::as_bytes(std::span(*ids)), digest);
    return digest;
  }

 private:
  std::size_t size() const { return static_cast<std::size_t>(batch_ * rows_); }
  std::size_t place_of(Index b, Index row) const { return static_cast<std::size_t>(b * rows_ + row); }

  void read(Index b, TensorView<float const, 3> bound_min, TensorView<float const, 3> bound_max) {
    struct Document {
      Index end;
      std::int32_t id = 0;
    };
    std::map<Index, Document> documents;
    auto const range = [&](Index h, Index row) {
      return RowRange{position(bound_min, "bound_min", b, h, row), position(bound_max, "bound_max", b, h, row)};
    };
    for (Index row = 0; row < rows_; ++row) {
      RowRange const keys = range(0, row);
      for (Index h = 1; h < bound_min.extent(1); ++h)
        annulus::detail::check<UnsupportedError>(range(h, row) == keys, "batch item ", b, ", row ", row,
                                                 ": the bounds of head ", h,
                                                 " differ from those of head 0; documents are the same for all heads");
      if (keys.empty()) continue;
      auto const [document, fresh] = documents.try_emplace(keys.begin, Document{keys.end});
      if (!fresh && document->second.end != keys.end) refuse_overlap(b, keys, {keys.begin, document->second.end});
      first_keys_[place_of(b, row)] = keys.begin;
    }
    std::int32_t id = 0;
    for (auto document = documents.begin(); document != documents.end(); ++document) {
      auto const next = std::next(document);
      if (next != documents.end() && document->second.end > next->first)
        refuse_overlap(b, {document->first, document->second.end}, {next->first, next->second.end});
      document->second.id = ++id;
      for (Index key = document->first; key < document->second.end; ++key) key_ids_[place_of(b, key)] = id;
    }
    for (Index row = 0; row < rows_; ++row)
      if (RowRange const keys = range(0, row); !keys.empty())
        query_ids_[place_of(b, row)] = documents.at(keys.begin).id;
  }

  Index position(TensorView<float const, 3> bound, char const* name, Index b, Index h, Index row) const {
    float const value = bound(b, h, row);
    // Compared in double, because float may round the number of rows up.
    annulus::detail::check<UnsupportedError>(
        value >= 0 && static_cast<double>(value) <= static_cast<double>(rows_) && value == std::floor(value), name,
        " of batch item ", b, ", row ", row, " is ", value, "; accepted: whole numbers from 0 to ", rows_);
    return static_cast<Index>(value);
  }

  [[noreturn]] static void refuse_overlap(Index b, RowRange first, RowRange second) {
    throw UnsupportedError(annulus::detail::message_of(
        "batch item ", b, ": the bounds [", first.begin, ", ", first.end, ") and [", second.begin, ", ", second.end,
        ") overlap; accepted: documents, whose ranges are equal or disjoint (for another "
        "mask use RingAttention with a predicate)"));
  }

  Index batch_, rows_;
  std::vector<std::int32_t> query_ids_, key_ids_;
  std::vector<Index> first_keys_;
};

}  // namespace annulus::nkilib
