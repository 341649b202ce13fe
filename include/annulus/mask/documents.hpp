#pragma once
// Documents that are packed into a sequence, as ranges of positions.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "annulus/core/error.hpp"
#include "annulus/mask/mask.hpp"

namespace annulus {

/// True if they hold the same positions.
constexpr bool operator==(PositionRange const& a, PositionRange const& b) {
  return a.begin == b.begin && a.end == b.end;
}

/// Positions of the documents of a sequence; positions outside of all are padding.
using Documents = std::vector<PositionRange>;

/// Documents of these lengths, one after another from position 0. Throws ShapeError for a negative length.
inline Documents documents_of_lengths(std::span<Index const> lengths) {
  Documents documents;
  Index begin = 0;
  for (Index length : lengths) {
    detail::check<ShapeError>(length >= 0, "a document has length ", length, "; a length must not be negative");
    documents.push_back({begin, begin + length});
    begin += length;
  }
  return documents;
}

/// Documents of the ids of all positions: each run of an equal positive id is one.
inline Documents documents_of_ids(std::span<std::int32_t const> ids) {
  Documents documents;
  for (std::size_t begin = 0, end = 0; begin < ids.size(); begin = end) {
    end = begin + 1;
    while (end < ids.size() && ids[end] == ids[begin]) ++end;
    if (ids[begin] > 0) documents.push_back({static_cast<Index>(begin), static_cast<Index>(end)});
  }
  return documents;
}

namespace detail {

/// Throws ShapeError unless every document is within [0, tokens). `subject` begins the message.
inline void require_within(std::string_view subject, Documents const& documents, Index tokens) {
  for (PositionRange const& document : documents)
    check<ShapeError>(0 <= document.begin && document.begin <= document.end && document.end <= tokens, subject,
                      ": a document has the positions [", document.begin, ", ", document.end,
                      "); accepted: within [0, ", tokens, ")");
}

/// The same, and unless they are disjoint and ascending.
inline void require_disjoint(std::string_view subject, Documents const& documents, Index tokens) {
  require_within(subject, documents, tokens);
  for (std::size_t d = 1; d < documents.size(); ++d)
    check<ShapeError>(documents[d - 1].end <= documents[d].begin, subject, ": a document has the positions [",
                      documents[d].begin, ", ", documents[d].end,
                      "); accepted: disjoint ranges in ascending order, here from ", documents[d - 1].end);
}

}  // namespace detail

}  // namespace annulus
