#pragma once
// Ranges of key rows of each owner that the query rows of each rank see: the form in which kernels receive sharding,
// mask and document ids.

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "annulus/mask/tile.hpp"
#include "annulus/nki/kernels/kernel_spec.hpp"
#include "annulus/sharding/sharding.hpp"

namespace annulus::nki {

/// Rows of one rank: their global positions and, for packed documents, their document ids [batch][row].
struct RankRows {
  std::vector<Segment> segments;                       ///< global positions
  std::vector<std::vector<std::int32_t>> documents{};  ///< [batch][row]; empty: not packed
};

/// Key rows that several query rows see.
struct Cover {
  RowRange by_any{};                                      ///< contains all that some row sees
  RowRange by_all{0, std::numeric_limits<Index>::max()};  ///< seen by every row

  /// Includes further query rows.
  void add(Cover const& other) {
    by_any = detail::hull(by_any, other.by_any);
    by_all = detail::intersection(by_all, other.by_all);
  }
  /// True if every row sees all of these keys.
  bool full(RowRange keys) const { return by_all.begin <= keys.begin && by_all.end >= keys.end; }
};

/// Form in which a kernel receives the ranges.
enum class BoundsForm {
  none,   ///< everything is visible
  band,   ///< two offsets per pair of pieces and owner: row i sees i + lo <= j < i + hi (annulus::Band includes hi)
  ranges  ///< two bounds per row, piece and owner
};

/// Mask of a ring: cuts key rows into pieces, so that each query sees one range of each piece.
class RingMask {
 public:
  /// Most pieces of keys and of queries; the constructor refuses more.
  static constexpr std::size_t most_pieces = 32;

  /// queries[rank], keys[rank]; query positions count from query_offset. Throws ShapeError without ranks,
  /// UnsupportedError for more than most_pieces pieces or a document whose keys on a rank are interrupted by another.
  RingMask(Mask mask, std::vector<RankRows> queries, std::vector<RankRows> keys, Index query_offset = 0)
      : mask_(mask), queries_(std::move(queries)), keys_(std::move(keys)), query_offset_(query_offset) {
    detail::check<ShapeError>(!queries_.empty() && !keys_.empty(), "nki: a mask needs the rows of at least one rank");
    join_batch_items();
    if (mask_ == full() && !packed()) {
      pieces_ = {{0, rows_of(keys_.front().segments)}};
      query_pieces_ = {{0, rows_of(queries_.front().segments)}};
      return;
    }
    pieces_ = cut(keys_, true);
    query_pieces_ = cut(queries_, false);
    // Row tiles must not cross the end of a piece.
    std::set<Index> strides;
    for (auto const& [ranks, pieces] : {std::tie(queries_, query_pieces_), std::tie(keys_, pieces_)})
      for (RankRows const& rank : ranks)
        for (RowRange piece : pieces) strides.insert(segment_at(rank, piece.begin).global_stride);
    bool const banded = !packed() && mask_.chunk == 0 && tile_pieces().size() == query_pieces_.size();
    form_ = banded && strides.size() == 1 ? BoundsForm::band : BoundsForm::ranges;
    find_runs();
  }

  /// One rank with explicit ranges, for rows in any order: ranges[piece][query row] are the key rows seen, inside the
  /// piece. Throws ShapeError unless there is at least one piece and one list of ranges for each.
  RingMask(std::vector<RowRange> pieces, std::vector<std::vector<RowRange>> ranges)
      : form_(BoundsForm::ranges), pieces_(std::move(pieces)), given_(std::move(ranges)) {
    detail::check<ShapeError>(!pieces_.empty() && given_.size() == pieces_.size(), "nki: ranges of ", given_.size(),
                              " pieces for ", pieces_.size(), "; at least one each");
    auto const queries = static_cast<Index>(given_.front().size());
    query_pieces_ = {{0, queries}};
    queries_ = {{{{0, queries, 0, 1}}}};
    keys_ = {{{{0, pieces_.back().end, 0, 1}}}};
  }

  /// Throws ShapeError unless this mask is for `expected_ranks` ranks with the rows and batch of the spec,
  /// UnsupportedError for documents that differ between batch items with several kv heads.
  void check_for(KernelSpec const& spec, int expected_ranks) const {
    detail::check<ShapeError>(ranks() == expected_ranks && keys_.size() == queries_.size(), "nki: a kernel for ",
                              expected_ranks, " ranks, but a mask for ", queries_.size(), " ranks of queries and ",
                              keys_.size(), " of keys");
    for (std::size_t rank = 0; rank < queries_.size(); ++rank)
      detail::check<ShapeError>(
          rows_of(queries_[rank].segments) == spec.local_queries && rows_of(keys_[rank].segments) == spec.local_keys,
          "nki: rank ", rank, " has ", rows_of(queries_[rank].segments), " queries and ", rows_of(keys_[rank].segments),
          " keys in the mask, expected ", spec.local_queries, " and ", spec.local_keys,
          "; all ranks of a kernel hold equally many");
    detail::check<ShapeError>(batch() == 1 || batch() == spec.shape.batch, "nki: documents of ", batch(),
                              " batch items, expected 1 or ", spec.shape.batch);
    detail::check<UnsupportedError>(form_ != BoundsForm::ranges || batch() == 1 || spec.shape.kv_heads == 1,
                                    "nki: different documents of ", batch(), " batch items, and ", spec.shape.kv_heads,
                                    " kv heads; give each batch item a kernel of its own, or all the same documents");
  }

  /// The same positions with documents that only the table tells: a kernel for it takes the tables of all documents or,
  /// with inside_these, of all that lie inside those of this mask. Throws UnsupportedError unless it has documents.
  RingMask for_any_documents(bool inside_these = false) const {
    annulus::detail::check<UnsupportedError>(packed(), "nki: a kernel for any documents needs a mask with documents");
    RingMask any = *this;
    any.any_documents_ = true;
    any.inside_documents_ = inside_these;
    any.covers_.clear();
    return any;
  }

  /// The same mask for kernels that take two bounds of each row also where two offsets would tell them.
  RingMask by_rows() const {
    RingMask same = *this;
    if (form_ == BoundsForm::band) same.form_ = BoundsForm::ranges;
    same.covers_.clear();
    return same;
  }

  /// In a causal zigzag ring half of the pairs of each step but the first are visible: late queries see early keys and,
  /// depending on the rank, either early queries early keys or late queries late keys. Returns the mask for kernels
  /// that choose between these two at run time and process them in the place of the last, or nothing for other rings,
  /// or if halves have fewer than 256 rows or are no tile_pieces().
  std::optional<RingMask> with_chosen_halves() const {
    if (mask_ != causal() || form_ != BoundsForm::band || pieces_.size() != 2 || pieces_ != query_pieces_ ||
        pieces_[0].size() != pieces_[1].size() || pieces_[0].size() < 2 * tile_rows || ranks() == 1)
      return std::nullopt;
    for (int me = 0; me < ranks(); ++me)
      for (int owner = 0; owner < ranks(); ++owner) {
        if (me == owner) continue;
        // With a causal mask the first row of a piece sees least, and the last one most.
        auto const sees = [&](std::size_t queries, std::size_t keys, bool all) {  // all of the keys, or none
          RowRange const rows = pieces_[queries], range = seen(me, owner, 0, keys, all ? rows.begin : rows.end - 1);
          return all ? range == pieces_[keys] : range.empty();
        };
        bool const early = sees(0, 0, true) && sees(1, 1, false), late = sees(0, 0, false) && sees(1, 1, true);
        if (!(sees(1, 0, true) && sees(0, 1, false) && (early || late))) return std::nullopt;
      }
    RingMask chosen = *this;
    chosen.chooses_halves_ = true;
    chosen.covers_.clear();
    return chosen;
  }
  bool chooses_halves() const { return chooses_halves_; }  ///< with_chosen_halves() returned this

  /// Names what a kernel takes from this mask when it is built and the table that it reads, in 16 hexadecimal digits:
  /// kernels and tables with equal fingerprints fit. table: name of the input; queries_rotate: as for offsets().
  std::string fingerprint(std::string_view table, bool queries_rotate = false) const {
    std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a over 64-bit words
    auto const add = [&](auto... values) {
      ((hash = (hash ^ static_cast<std::uint64_t>(Index{values})) * 0x100000001b3), ...);
    };
    for (char letter : table) add(letter);
    add(queries_rotate, mask_.causal, mask_.window.reach_left(), mask_.window.reach_right(), mask_.sink_tokens,
        mask_.chunk, query_offset_, ranks(), any_documents_ + inside_documents_);
    for (auto const* side : {&queries_, &keys_})
      for (RankRows const& rank : *side) {
        for (Segment const& segment : rank.segments)
          add(segment.local_begin, segment.length, segment.global_begin, segment.global_stride);
        if (!any_documents_ || inside_documents_)
          for (auto const& item : rank.documents)
            for (std::int32_t id : item) add(id);
      }
    for (auto const& piece : given_)
      for (RowRange range : piece) add(range.begin, range.end);
    for (RowRange piece : pieces_) add(piece.begin, piece.end);
    std::string digits;
    for (int shift = 60; shift >= 0; shift -= 4) digits += "0123456789abcdef"[(hash >> shift) & 15];
    return digits;
  }

  BoundsForm form() const { return form_; }                        ///< what the kernels need
  int ranks() const { return static_cast<int>(queries_.size()); }  ///< of the ring
  /// Batch items whose ranges differ, or 1.
  Index batch() const { return packed() ? std::ssize(keys_.front().documents) : 1; }
  std::vector<RowRange> const& pieces() const { return pieces_; }              ///< key rows of each
  std::vector<RowRange> const& query_pieces() const { return query_pieces_; }  ///< query rows of each

  /// Key rows of `owner` in a piece that a query row of rank `me` sees; an empty range inside the piece if none.
  /// any_documents: by position alone.
  RowRange seen(int me, int owner, Index batch, std::size_t piece, Index query, bool any_documents = false) const {
    RowRange const rows = pieces_[piece];
    if (form_ == BoundsForm::none) return rows;
    if (!given_.empty()) return nth(given_[piece], query);
    RowRange range = tile_of(me, owner, piece, query).keys_of(mask_, 0);
    if (packed() && !any_documents) {
      auto const& ids = nth(nth(queries_, me).documents, batch);
      detail::DocumentRuns const& runs = runs_.at({owner, batch, static_cast<Index>(piece)});
      range = detail::intersection(range, runs.rows_of(nth(ids, query)));
    }
    range = {range.begin + rows.begin, range.end + rows.begin};
    return range.empty() ? RowRange{rows.begin, rows.begin} : range;
  }

  /// Query pieces whose ends no row tile crosses. Kernels cut the tiles of both cores at the end of one piece, but not
  /// at many, nor if a short piece would end in a tile of fewer than 128 rows: then there is one piece.
  std::vector<RowRange> tile_pieces() const {
    bool const two = query_pieces_.size() == 2 && query_pieces_[1].begin >= least_half;
    Index const multiple = two ? 1 : query_pieces_.size() == 2 ? tile_rows : 2 * tile_rows;
    bool const cut = std::ranges::all_of(query_pieces_, [=](RowRange piece) { return piece.begin % multiple == 0; });
    return cut ? query_pieces_ : std::vector<RowRange>{{0, query_pieces_.back().end}};
  }
  /// Pieces of the keys that stand apart in SBUF, each from a multiple of 128 on: halves that are chosen, if their
  /// length is no such multiple.
  std::vector<RowRange> key_parts() const {
    return chooses_halves_ && pieces_[1].begin % tile_rows != 0 ? pieces_
                                                                : std::vector<RowRange>{{0, pieces_.back().end}};
  }
  /// Row tiles of a core that does not share its item: at least as many as of one that does.
  Index row_tile_count() const {
    Index count = 0;
    for (RowRange piece : tile_pieces()) count += detail::ceil_divide(piece.size(), tile_rows);
    return count;
  }

  /// Cover of a piece over the rows `queries`, all batch items and all (rank, owner) pairs of a step: each rank with
  /// its own keys if own_step, else all pairs of different ranks.
  Cover cover(bool own_step, RowRange queries, std::size_t piece) const {
    if (form_ == BoundsForm::none) return {pieces_[piece], pieces_[piece]};
    if (chooses_halves_ && !own_step)
      return queries.begin < query_pieces_[1].begin ? Cover{} : Cover{pieces_[piece], pieces_[piece]};
    std::vector<Cover>& rows = covers_[{own_step, piece}];
    if (rows.empty()) {
      rows.resize(static_cast<std::size_t>(query_pieces_.back().end));
      std::set<std::vector<Index>> bands;
      auto const sees_more = [&](int me, int owner) {  // than pairs of ranks with the same bands
        std::vector<Index> bounds;
        for (RowRange query_piece : query_pieces_) {
          Band const band = detail::band_of(tile_of(me, owner, piece, query_piece.begin), mask_);
          bounds.insert(bounds.end(), {band.lo, band.hi});
        }
        return bands.insert(std::move(bounds)).second;
      };
      for (int me = 0; me < ranks(); ++me)
        for (int owner = 0; owner < ranks(); ++owner)
          if ((me == owner) == own_step && (form_ != BoundsForm::band || sees_more(me, owner)))
            for (Index b = 0; b < batch(); ++b)
              for (std::size_t i = 0; i < rows.size(); ++i) {
                RowRange const range =
                    seen(me, owner, b, piece, static_cast<Index>(i), any_documents_ && !inside_documents_);
                rows[i].add({range, any_documents_ ? RowRange{} : range});
              }
    }
    Cover joined;
    for (Index i = queries.begin; i < queries.end; ++i) joined.add(nth(rows, i));
    return joined;
  }

  /// mask_offsets of rank `me`: [other rank of all groups][query piece][key piece][lo, hi]. Row i of a query piece sees
  /// key rows max(piece.begin, i + lo) <= j < min(piece.end, i + hi), i counted from the shard's first row. The other
  /// rank owns the keys or, if queries rotate, the queries.
  std::vector<float> offsets(int me, int groups, bool queries_rotate = false) const {
    std::vector<float> table;
    for (RankPair pair : pairs_of(me, groups, queries_rotate))
      for (RowRange query_piece : query_pieces_)
        for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
          Band const band = detail::band_of(tile_of(pair.querying, pair.owner, piece, query_piece.begin), mask_);
          Index const shift = pieces_[piece].begin - query_piece.begin;
          for (Index bound : {band.lo, band.hi + 1})
            table.push_back(static_cast<float>(std::clamp(bound + shift, -beyond_rows, beyond_rows)));
        }
    return table;
  }

  /// mask_key_ranges of rank `me`, the queries that see each key: [owner of all groups][batch or 1][tile piece][begin,
  /// end][key rows]. Throws UnsupportedError if the queries of a tile piece that see a key are not consecutive.
  std::vector<float> key_ranges(int me, int groups) const {
    std::vector<float> table;
    Index const keys = pieces_.back().end;
    for (RankPair pair : pairs_of(me, groups, false))
      for (Index b = 0; b < batch(); ++b)
        for (RowRange queries : tile_pieces()) {
          // Number, sum and sum of squares of the queries that see a key, first as changes from key to key.
          std::vector<std::array<Index, 3>> sums(static_cast<std::size_t>(keys) + 1);
          for (std::size_t piece = 0; piece < pieces_.size(); ++piece)
            for (Index i = queries.begin; i < queries.end; ++i) {
              RowRange const range = seen(pair.querying, pair.owner, b, piece, i);
              std::array<Index, 3> const powers{1, i, i * i};
              for (std::size_t p = 0; p < powers.size(); ++p) {
                nth(sums, range.begin)[p] += powers[p];
                nth(sums, range.end)[p] -= powers[p];
              }
            }
          std::array<Index, 3> now{};
          append_ranges(table, keys, [&](Index key) {
            for (std::size_t p = 0; p < now.size(); ++p) now[p] += nth(sums, key)[p];
            auto const [count, sum, squares] = now;
            Index const first = count == 0 ? queries.begin : (sum - count * (count - 1) / 2) / count;
            // Of all sets of as many numbers with that sum, consecutive ones have the smallest sum of squares.
            Index const least =
                count * first * first + first * count * (count - 1) + (count - 1) * count * (2 * count - 1) / 6;
            detail::check<UnsupportedError>(squares == least, "nki: the queries of rank ", pair.querying,
                                            " that see key row ", key, " of rank ", pair.owner, ", batch item ", b,
                                            ", are not consecutive; a kernel with stationary keys takes one range");
            return RowRange{first, first + count};
          });
        }
    return table;
  }

  /// mask_ranges of rank `me`: [other rank of all groups][batch or 1][key piece][begin, end][rows].
  std::vector<float> ranges(int me, int groups, bool queries_rotate = false) const {
    std::vector<float> table;
    for (RankPair pair : pairs_of(me, groups, queries_rotate))
      for (Index b = 0; b < batch(); ++b)
        for (std::size_t piece = 0; piece < pieces_.size(); ++piece)
          append_ranges(table, query_pieces_.back().end,
                        [&](Index i) { return seen(pair.querying, pair.owner, b, piece, i); });
    return table;
  }

 private:
  /// Offset of an unbounded side: beyond every row, and exact in fp32.
  static constexpr Index beyond_rows = Index{1} << 22;

  /// Appends the begins of `count` ranges to a table, then their ends.
  template <class RangeOf>
  static void append_ranges(std::vector<float>& table, Index count, RangeOf&& range_of) {
    std::size_t const begins = table.size(), ends = begins + static_cast<std::size_t>(count);
    table.resize(2 * ends - begins);
    for (Index i = 0; i < count; ++i) {
      RowRange const range = range_of(i);
      table[begins + static_cast<std::size_t>(i)] = static_cast<float>(range.begin);
      table[ends + static_cast<std::size_t>(i)] = static_cast<float>(range.end);
    }
  }

  bool packed() const { return !keys_.front().documents.empty(); }

  /// Reduces the batch to one item if all items have the same document ids on all ranks.
  void join_batch_items() {
    for (auto const* side : {&queries_, &keys_})
      for (RankRows const& rank : *side)
        for (auto const& item : rank.documents)
          if (item != rank.documents.front()) return;
    for (auto* side : {&queries_, &keys_})
      for (RankRows& rank : *side) rank.documents.resize(std::min(rank.documents.size(), std::size_t{1}));
  }

  /// The rank of the queries, and the owner of the keys.
  struct RankPair {
    int querying, owner;
  };
  /// One for each rank of the side that rotates, group by group.
  std::vector<RankPair> pairs_of(int me, int groups, bool queries_rotate) const {
    std::vector<RankPair> pairs;
    for (int i = 0; i < ranks() * groups; ++i)
      pairs.push_back(queries_rotate ? RankPair{i % ranks(), me} : RankPair{me, i % ranks()});
    return pairs;
  }

  static Segment const& segment_at(RankRows const& rows, Index row) {
    for (Segment const& segment : rows.segments)
      if (row < segment.local_begin + segment.length) return segment;
    return rows.segments.back();
  }
  static Index position_at(Segment const& segment, Index row) {
    return segment.global_begin + (row - segment.local_begin) * segment.global_stride;
  }

  /// The keys of a piece, which are all sink tokens or none, and the queries from `query` on.
  Tile tile_of(int me, int owner, std::size_t piece, Index query) const {
    RowRange const rows = pieces_[piece];
    Segment const& keys = segment_at(nth(keys_, owner), rows.begin);
    Tile tile{
        .key_count = rows.size(), .key_position = position_at(keys, rows.begin), .key_stride = keys.global_stride};
    tile.query_position = position_at(segment_at(nth(queries_, me), query), query) + query_offset_;
    tile.sink = mask_.is_sink(tile.key_position);
    return tile;
  }

  /// Cuts the rows at the segment ends of every rank and, for keys, at the end of the sink tokens.
  std::vector<RowRange> cut(std::vector<RankRows> const& ranks, bool keys) const {
    std::set<Index> cuts{0, rows_of(ranks.front().segments)};
    for (RankRows const& rank : ranks)
      for (Segment const& segment : rank.segments) {
        cuts.insert(segment.local_begin);
        if (keys)
          cuts.insert(segment.local_begin +
                      mask_.sinks_among(segment.global_begin, segment.global_stride, segment.length));
      }
    detail::check<UnsupportedError>(cuts.size() <= most_pieces + 1, "nki: the ", keys ? "keys" : "queries",
                                    " of a rank stand in ", cuts.size() - 1,
                                    " runs of equally spaced positions; a masked kernel takes up to ", most_pieces);
    std::vector<RowRange> pieces;
    for (auto begin = cuts.begin(), end = std::next(begin); end != cuts.end(); ++begin, ++end)
      pieces.push_back({*begin, *end});
    return pieces;
  }

  void find_runs() {
    for (int owner = 0; packed() && owner < ranks(); ++owner)
      for (Index b = 0; b < batch(); ++b)
        for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
          auto const& ids = nth(nth(keys_, owner).documents, b);
          detail::DocumentRuns runs(pieces_[piece].size(),
                                    [&](Index row) { return nth(ids, pieces_[piece].begin + row); });
          detail::check<UnsupportedError>(runs.consecutive(),
                                          "nki: the keys of a document are interrupted by others on rank ", owner,
                                          ", batch item ", b, "; a query must see one range of keys");
          runs_.emplace(std::array<Index, 3>{Index{owner}, b, static_cast<Index>(piece)}, std::move(runs));
        }
  }

  Mask mask_;
  std::vector<RankRows> queries_, keys_;
  Index query_offset_ = 0;
  BoundsForm form_ = BoundsForm::none;
  bool any_documents_ = false, inside_documents_ = false, chooses_halves_ = false;
  std::vector<RowRange> pieces_, query_pieces_;
  std::vector<std::vector<RowRange>> given_;
  std::map<std::array<Index, 3>, detail::DocumentRuns> runs_;
  mutable std::map<std::pair<bool, std::size_t>, std::vector<Cover>> covers_;
};

/// RingMask of a ring whose ranks hold local_queries and local_keys rows each, at positions given by the sharding;
/// query positions count from query_offset. query_documents and key_documents, [batch][global position], are document
/// ids, 0 and negative for padding; empty: none. Throws ShapeError for ranks < 1 or document ids of the wrong extents,
/// and UnsupportedError where RingMask does.
inline RingMask sharded_mask(Mask const& mask, Sharding const& sharding, int ranks, Index local_queries,
                             Index local_keys, Index query_offset = 0,
                             std::span<std::vector<std::int32_t> const> query_documents = {},
                             std::span<std::vector<std::int32_t> const> key_documents = {}) {
  detail::check<ShapeError>(query_documents.size() == key_documents.size(), "nki: documents of ",
                            query_documents.size(), " batch items for queries and of ", key_documents.size(),
                            " for keys");
  auto const rows = [&](Side side, Index local, std::span<std::vector<std::int32_t> const> documents) {
    std::vector<Index> const held(static_cast<std::size_t>(ranks), local);
    std::vector<RankRows> all;
    for (int rank = 0; rank < ranks; ++rank) {
      RankRows own{sharding.segments(side, rank, held)};
      for (std::vector<std::int32_t> const& ids : documents) {
        detail::check<ShapeError>(std::ssize(ids) == ranks * local, "nki: ", ids.size(), " document ids for ",
                                  ranks * local, " positions");
        auto& local_ids = own.documents.emplace_back();
        for (Index position : positions_of(own.segments)) local_ids.push_back(nth(ids, position));
      }
      all.push_back(std::move(own));
    }
    return all;
  };
  detail::check<ShapeError>(ranks >= 1, "nki: a ring of ", ranks, " ranks; at least one is needed");
  return RingMask(mask, rows(Side::query, local_queries, query_documents), rows(Side::key, local_keys, key_documents),
                  query_offset);
}

}  // namespace annulus::nki
