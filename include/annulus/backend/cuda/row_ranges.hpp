#pragma once
// Ranges of visible keys for each query row, computed on the GPU from positions and document ids.

#include <algorithm>
#include <cstdint>

#include "annulus/backend/cuda/row_operations.hpp"
#include "annulus/backend/cuda/step_arguments.hpp"
#include "annulus/core/cuda/memory.hpp"
#include "annulus/mask/mask.hpp"

namespace annulus::cuda::detail {

/// Consecutive key rows of one document.
struct DocumentRun {
  std::int32_t id;
  int begin, end;
};

/// A search for the ranges of a step, all in device memory. Positions of keys ascend, unless the mask hides nothing.
struct RangeSearch {
  Mask mask{};
  Index batch = 0, queries = 0, keys = 0;
  Index const* query_positions = nullptr;
  Index const* key_positions = nullptr;
  Strided<std::int32_t const, 2> query_documents{}, key_documents{};  ///< [batch, rows]; null: no documents
  int2* ranges = nullptr;       ///< written: [batch, queries], of batch item 0 alone without documents
  DocumentRun* runs = nullptr;  ///< scratch: [batch, keys]
  int* exact = nullptr;         ///< written: 0 if the rows of a document are not consecutive, else 1
};

/// Writes the ranges. Without documents they are SeenRows::all(); with documents, what of them is in the query's.
void find_ranges(cudaStream_t stream, RangeSearch const& search);

/// The ranges of one step at a time, in memory that grows with the largest one.
class RowRanges {
 public:
  /// Puts the search on a stream. Valid until the next call. `search` lacks its results and its scratch.
  VisibleKeys find(RangeSearch search, cudaStream_t stream) {
    bool const documents = static_cast<bool>(search.key_documents);
    Index const items = documents ? search.batch : Index{1};
    Index const bytes = alignment + items * search.queries * Index{sizeof(int2)} +
                        (documents ? items * search.keys * Index{sizeof(DocumentRun)} : Index{0});
    if (memory_.size() < bytes) memory_ = allocate_device(bytes);
    search.exact = reinterpret_cast<int*>(memory_.data());
    search.ranges = reinterpret_cast<int2*>(memory_.data() + alignment);
    search.runs = reinterpret_cast<DocumentRun*>(search.ranges + items * search.queries);
    find_ranges(stream, search);
    return {Coverage::ranges, 0, 0, search.ranges, documents ? search.queries : 0, documents ? search.exact : nullptr};
  }

 private:
  static constexpr Index alignment = 256;

  DeviceBytes memory_;
};

}  // namespace annulus::cuda::detail
