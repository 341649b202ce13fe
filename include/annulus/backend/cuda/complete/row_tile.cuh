#pragma once
// Products of tiles by fused multiply-adds: a block of 256 threads owns 32 rows of one side and meets blocks of 64 rows
// of the other side, in chunks of 64 elements that are staged in shared memory.
//
// Warp w owns rows 4 w to 4 w + 3 and lane l columns l and l + 32. A product of tiles is 4 x 2 elements a thread; a sum
// of rows of up to 512 elements is 4 x 16, of which chunks beyond the extent are skipped.

#include "annulus/backend/cuda/elements.cuh"
#include "annulus/backend/cuda/row_operations.hpp"

namespace annulus::cuda::detail {

/// Rows of one batch item and head, of any strides, widened where they are read.
template <class T>
struct HeadRows {
  T const* data;
  Index row_stride, dim_stride, rows;
  int dim;

  __device__ HeadRows(Strided<T const, 4> const& operand, Index batch, Index head, Index row_count, Index extent)
      : data(operand.data + batch * operand.strides[0] + head * operand.strides[2]),
        row_stride(operand.strides[1]),
        dim_stride(operand.strides[3]),
        rows(row_count),
        dim(static_cast<int>(extent)) {}
};

template <class A>
class RowTile {
 public:
  static constexpr int threads = 256, warps = 8;
  static constexpr int rows = 32, columns = 64, chunk = 64, largest_dim = 512;
  static constexpr int rows_of_thread = rows / warps, columns_of_thread = columns / 32;
  static constexpr int chunks = largest_dim / chunk;
  static constexpr std::size_t shared_bytes = sizeof(A) * (rows * chunk + columns * (chunk + 1) + rows * columns);

  /// Elements of a tile that a thread has: row(r), column(c).
  using Products = A[rows_of_thread][columns_of_thread];
  /// Elements of sums of rows that a thread has: row(r), dim column(c).
  using Sums = A[rows_of_thread][chunks * columns_of_thread];

  __device__ explicit RowTile(void* shared)
      : left_(static_cast<A*>(shared)), right_(left_ + rows * chunk), weights_(right_ + columns * (chunk + 1)) {}

  __device__ static int row(int r) { return static_cast<int>(threadIdx.x) / 32 * rows_of_thread + r; }
  __device__ static int column(int c) { return static_cast<int>(threadIdx.x) % 32 + 32 * c; }

  /// products[row, column] = left row first_left + row times right row first_right + column.
  template <class T>
  __device__ void multiply(HeadRows<T> const& left, Index first_left, HeadRows<T> const& right, Index first_right,
                           Products& products) const {
    for (auto& of_row : products)
      for (A& product : of_row) product = A(0);
    for (int begin = 0; begin < left.dim; begin += chunk) {
      __syncthreads();  // the chunk before has been read
      stage(left_, chunk, rows, left, first_left, begin);
      stage(right_, chunk + 1, columns, right, first_right, begin);
      __syncthreads();
      int const count = left.dim - begin < chunk ? left.dim - begin : chunk;
      for (int d = 0; d < count; ++d)
#pragma unroll
        for (int c = 0; c < columns_of_thread; ++c) {
          A const factor = right_[column(c) * (chunk + 1) + d];
#pragma unroll
          for (int r = 0; r < rows_of_thread; ++r) products[r][c] += left_[row(r) * chunk + d] * factor;
        }
    }
  }

  /// Sets the weight of an element of the tile, for accumulate().
  __device__ void set_weight(int r, int c, A weight) const { weights_[row(r) * columns + column(c)] = weight; }

  /// sums[row] += the sum over columns of weight * right row first_right + column. A weight of 0 leaves out the row, so
  /// that a hidden row may hold anything.
  template <class T>
  __device__ void accumulate(HeadRows<T> const& right, Index first_right, Sums& sums) const {
#pragma unroll
    for (int part = 0; part < chunks; ++part) {
      if (part * chunk >= right.dim) break;
      __syncthreads();  // the chunk before has been read, and all weights are set
      stage(right_, chunk + 1, columns, right, first_right, part * chunk);
      __syncthreads();
      for (int j = 0; j < columns; ++j)
#pragma unroll
        for (int r = 0; r < rows_of_thread; ++r)
          if (A const weight = weights_[row(r) * columns + j]; weight != A(0))
#pragma unroll
            for (int c = 0; c < columns_of_thread; ++c)
              sums[r][part * columns_of_thread + c] += weight * right_[j * (chunk + 1) + column(c)];
    }
  }

  /// Loads, or stores, the sums of rows first_row + row of a tensor [batch, rows, heads, dim].
  template <class Access>
  __device__ static void for_each_sum(Index first_row, Index row_count, Index dim, Sums& sums, Access&& access) {
#pragma unroll
    for (int r = 0; r < rows_of_thread; ++r)
#pragma unroll
      for (int c = 0; c < chunks * columns_of_thread; ++c)
        if (first_row + row(r) < row_count && column(c) < dim) access(first_row + row(r), column(c), sums[r][c]);
  }

 private:
  /// Stages elements [begin, begin + chunk) of `count` rows, with 0 beyond the rows and the elements that there are.
  template <class T>
  __device__ static void stage(A* to, int stride, int count, HeadRows<T> const& from, Index first, int begin) {
    for (int i = static_cast<int>(threadIdx.x); i < count * chunk; i += threads) {
      int const row = i / chunk, d = i % chunk;
      bool const exists = first + row < from.rows && begin + d < from.dim;
      to[row * stride + d] =
          exists ? widened<A>(from.data[(first + row) * from.row_stride + (begin + d) * from.dim_stride]) : A(0);
    }
  }

  A *left_, *right_, *weights_;
};

}  // namespace annulus::cuda::detail
