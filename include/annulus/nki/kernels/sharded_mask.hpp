#pragma once
// RingMask of a sharded sequence.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "annulus/nki/kernels/ring_mask.hpp"
#include "annulus/sharding/sharding.hpp"

namespace annulus::nki {

/// RingMask of a ring whose ranks hold local_queries and local_keys rows each, at positions given by the sharding;
/// query positions count from query_offset. query_documents and key_documents, [batch][global position], are document
/// ids, 0 and negative for padding; empty: none. Throws ShapeError for ranks < 1 or document ids of the wrong extents,
/// and UnsupportedError where RingMask does.
inline RingMask sharded_mask(Mask const& mask, Sharding const& sharding, int ranks, Index local_queries,
                             Index local_keys, Index query_offset = 0,
                             std::span<std::vector<std::int32_t> const> query_documents = {},
                             std::span<std::vector<std::int32_t> const> key_documents = {}) {
  check<ShapeError>(query_documents.size() == key_documents.size(), "nki: documents of ", query_documents.size(),
                    " batch items for queries and of ", key_documents.size(), " for keys");
  auto const rows = [&](Side side, Index local, std::span<std::vector<std::int32_t> const> documents) {
    std::vector<Index> const held(static_cast<std::size_t>(ranks), local);
    std::vector<RankRows> all;
    for (int rank = 0; rank < ranks; ++rank) {
      RankRows own{sharding.segments(side, rank, held)};
      for (std::vector<std::int32_t> const& ids : documents) {
        check<ShapeError>(static_cast<Index>(ids.size()) == ranks * local, "nki: ", ids.size(), " document ids for ",
                          ranks * local, " positions");
        auto& local_ids = own.documents.emplace_back();
        for (Index position : positions_of(own.segments)) local_ids.push_back(ids[static_cast<std::size_t>(position)]);
      }
      all.push_back(std::move(own));
    }
    return all;
  };
  check<ShapeError>(ranks >= 1, "nki: a ring of ", ranks, " ranks; at least one is needed");
  return RingMask(mask, rows(Side::query, local_queries, query_documents), rows(Side::key, local_keys, key_documents),
                  query_offset);
}

}  // namespace annulus::nki
