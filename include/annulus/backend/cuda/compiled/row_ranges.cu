// Kernels of the ranges of visible keys, compiled once for annulus::cuda.

#include "annulus/backend/cuda/row_ranges.hpp"

#include "annulus/backend/cuda/elements.cuh"
#include "annulus/backend/cuda/visible_ranges.hpp"

namespace annulus::cuda::detail {
namespace {

constexpr int threads_of_block = 512;

/// Finds the runs of equal positive ids among the keys of a batch item, in order; returns their number. Each thread
/// takes a piece of the keys and first counts the runs that begin in it.
__device__ int find_runs(RangeSearch const& search, Index batch, DocumentRun* runs) {
  __shared__ int begun[threads_of_block];
  auto const id = [&](Index key) { return search.key_documents(batch, key); };
  auto const begins = [&](Index key) { return id(key) > 0 && (key == 0 || id(key - 1) != id(key)); };
  Index const piece = (search.keys + threads_of_block - 1) / threads_of_block;
  Index const first = std::min(piece * threadIdx.x, search.keys), last = std::min(first + piece, search.keys);
  int count = 0;
  for (Index key = first; key < last; ++key) count += begins(key);
  begun[threadIdx.x] = count;
  __syncthreads();
  int place = 0, all = 0;
  for (int t = 0; t < threads_of_block; ++t) {
    if (t < static_cast<int>(threadIdx.x)) place += begun[t];
    all += begun[t];
  }
  for (Index key = first; key < last; ++key) {
    if (!begins(key)) continue;
    Index end = key + 1;
    while (end < search.keys && id(end) == id(key)) ++end;
    runs[place++] = {id(key), static_cast<int>(key), static_cast<int>(end)};
  }
  __syncthreads();
  return all;
}

/// Rows of a document among the runs, from the first to the last; sets `exact` to 0 if there are others in between.
__device__ RowRange rows_of_document(std::int32_t id, DocumentRun const* runs, int count, int* exact) {
  RowRange rows;
  for (int run = 0; run < count && id > 0; ++run) {
    if (runs[run].id != id) continue;
    if (!rows.empty()) *exact = 0;
    rows = annulus::detail::hull(rows, {runs[run].begin, runs[run].end});
  }
  return rows;
}

/// One block for each batch item.
__global__ void ranges_kernel(RangeSearch search) {
  Index const batch = blockIdx.x;
  bool const documents = static_cast<bool>(search.key_documents);
  DocumentRun* const runs = search.runs + batch * search.keys;
  int const count = documents ? find_runs(search, batch, runs) : 0;
  bool const unmasked = search.mask == full();
  for (Index query = threadIdx.x; query < search.queries; query += threads_of_block) {
    RowRange rows{0, search.keys};
    if (!unmasked) rows = SeenRows(search.mask, search.query_positions[query], search.key_positions, search.keys).all();
    if (documents)
      rows = annulus::detail::intersection(
          rows, rows_of_document(search.query_documents(batch, query), runs, count, search.exact));
    if (rows.empty()) rows = {};
    search.ranges[batch * search.queries + query] = {static_cast<int>(rows.begin), static_cast<int>(rows.end)};
  }
}

__global__ void set_exact_kernel(int* exact) { *exact = 1; }

}  // namespace

void find_ranges(cudaStream_t stream, RangeSearch const& search) {
  launch(set_exact_kernel, dim3(1), dim3(1), 0, stream, search.exact);
  auto const items = static_cast<unsigned>(search.key_documents ? search.batch : Index{1});
  launch(ranges_kernel, dim3(items), dim3(threads_of_block), 0, stream, search);
}

}  // namespace annulus::cuda::detail
