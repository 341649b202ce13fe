#pragma once
// Products of tiles by fused multiply-adds, in the precision of the sums: a block of 256 threads owns 32 rows of one side
// (left) and meets blocks of 64 rows of the other side (right), in chunks of 64 elements that are staged in shared memory.
//
// Warp w owns rows 4 w to 4 w + 3 and lane l columns l and l + 32. A product of tiles is 4 x 2 elements a thread; a sum
// of rows of up to 512 elements is 4 x 16, of which chunks beyond the extent are skipped.
//
// The interface of a tile, which the kernels are templates on:
//   place_left<i>(rows, first), place_right<i>(rows, first)   operands i = 0, 1; the right ones may be copied meanwhile
//   place_nothing()                                           in place of a right operand that there is not
//   multiply<i>(products)                                     left i times right i
//   accumulate<i>(weights, guards, sums)                      sums += weights times right i
// All threads of the block call them. A right operand is placed again after the last use of the one before; between a
// multiply or accumulate and the placing of its operand, exactly one other right operand, or nothing, is placed.

#include "annulus/backend/cuda/elements.cuh"
#include "annulus/backend/cuda/row_operations.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus::cuda::detail {

/// Rows of one batch item and head, of any strides.
template <class T>
struct HeadRows {
  T const* data = nullptr;
  Index row_stride = 0, dim_stride = 0, rows = 0;
  int dim = 0;

  HeadRows() = default;
  __device__ HeadRows(Strided<T const, 4> const& operand, Index batch, Index head, Index row_count, Index extent)
      : data(operand.data + batch * operand.strides[0] + head * operand.strides[2]),
        row_stride(operand.strides[1]),
        dim_stride(operand.strides[3]),
        rows(row_count),
        dim(static_cast<int>(extent)) {}

  __device__ T const& operator()(Index row, Index d) const { return data[row * row_stride + d * dim_stride]; }
};

/// Sums of rows of one batch item and head, with unit stride along dim.
template <class A>
struct SumRows {
  A* data;
  Index row_stride, rows;
  int dim;

  __device__ SumRows(Strided<A, 4> const& sums, Index batch, Index head, Index row_count, Index extent)
      : data(sums.data + batch * sums.strides[0] + head * sums.strides[2]),
        row_stride(sums.strides[1]),
        rows(row_count),
        dim(static_cast<int>(extent)) {}

  /// Calls access(element in memory, element of the thread) for each one that a thread has of rows first + row.
  template <class Tile, class Access>
  __device__ void for_each(Index first, typename Tile::Sums& sums, Access&& access) const {
#pragma unroll
    for (int r = 0; r < Tile::rows_of_thread; ++r) {
      if (first + Tile::row(r) >= rows) continue;
      A* const row = data + (first + Tile::row(r)) * row_stride;
#pragma unroll
      for (int c = 0; c < Tile::sums_of_thread; ++c)
        if (Tile::column(c) < dim) access(row[Tile::column(c)], sums[r][c]);
    }
  }
  template <class Tile>
  __device__ void load(Index first, typename Tile::Sums& sums) const {
    for_each<Tile>(first, sums, [](A const& element, A& sum) { sum = element; });
  }
  template <class Tile>
  __device__ void store(Index first, typename Tile::Sums& sums) const {
    for_each<Tile>(first, sums, [](A& element, A const& sum) { element = sum; });
  }
};

/// Calls function(r, c, element of first, element of second) for each element of two products, in a loop that is not
/// unrolled, for work that is long and rare.
template <class Tile, class Function>
__device__ void for_each_rolled(typename Tile::Products& first, typename Tile::Products& second, Function&& function) {
  constexpr int columns = Tile::columns_of_thread, count = Tile::rows_of_thread * columns;
  typename Tile::A copies[2][count];  // in local memory, which has addresses
#pragma unroll
  for (int n = 0; n < count; ++n)
    copies[0][n] = first[n / columns][n % columns], copies[1][n] = second[n / columns][n % columns];
#pragma unroll 1
  for (int n = 0; n < count; ++n) function(n / columns, n % columns, copies[0][n], copies[1][n]);
#pragma unroll
  for (int n = 0; n < count; ++n)
    first[n / columns][n % columns] = copies[0][n], second[n / columns][n % columns] = copies[1][n];
}

template <class T>
class RowTile {
 public:
  using A = SumOfElement<T>;
  static constexpr int threads = 256, warps = 8;
  static constexpr int rows = 32, columns = 64, chunk = 64, largest_dim = 512;
  static constexpr int rows_of_thread = rows / warps, columns_of_thread = columns / 32;
  static constexpr int chunks = largest_dim / chunk, sums_of_thread = chunks * columns_of_thread;
  /// A thread has registers for one sum of rows.
  static constexpr bool sums_both = false;

  /// Elements of a tile that a thread has: row(r), column(c).
  using Products = A[rows_of_thread][columns_of_thread];
  /// Elements of sums of rows that a thread has: row(r), dim column(c).
  using Sums = A[rows_of_thread][sums_of_thread];

  /// Dynamic shared memory of a block.
  static std::size_t shared_bytes(Index /*head_dim*/, Index /*value_dim*/, int /*left_operands*/) {
    return sizeof(A) * (rows * chunk + columns * (chunk + 1) + rows * columns);
  }

  __device__ RowTile(void* shared, int /*head_dim*/, int /*value_dim*/)
      : left_chunk_(static_cast<A*>(shared)),
        right_chunk_(left_chunk_ + rows * chunk),
        weights_(right_chunk_ + columns * (chunk + 1)) {}

  __device__ static int row(int r) { return static_cast<int>(threadIdx.x) / 32 * rows_of_thread + r; }
  __device__ static int column(int c) { return static_cast<int>(threadIdx.x) % 32 + 32 * c; }
  /// True for one of the threads that hold parts of a row.
  __device__ static bool leads_row() { return threadIdx.x % 32 == 0; }
  __device__ static A maximum_of_row(A value) { return warp_maximum<32>(value); }
  __device__ static A sum_of_row(A value) { return warp_sum<32>(value); }
  __device__ static A exponential(A x) { return annulus::detail::exponential(x); }

  template <int i>
  __device__ void place_left(HeadRows<T> const& operand, Index first) {
    left_[i] = {operand, first};
  }
  template <int i>
  __device__ void place_right(HeadRows<T> const& operand, Index first) {
    right_[i] = {operand, first};
  }
  __device__ void place_nothing() const {}

  template <int i>
  __device__ void multiply(Products& products) const {
    for (auto& of_row : products)
      for (A& product : of_row) product = A(0);
    for (int begin = 0; begin < left_[i].operand.dim; begin += chunk) {
      __syncthreads();  // the chunk before has been read
      stage(left_chunk_, chunk, rows, left_[i], begin);
      stage(right_chunk_, chunk + 1, columns, right_[i], begin);
      __syncthreads();
      int const rest = left_[i].operand.dim - begin, count = rest < chunk ? rest : chunk;
      for (int d = 0; d < count; ++d)
#pragma unroll
        for (int c = 0; c < columns_of_thread; ++c) {
          A const factor = right_chunk_[column(c) * (chunk + 1) + d];
#pragma unroll
          for (int r = 0; r < rows_of_thread; ++r) products[r][c] += left_chunk_[row(r) * chunk + d] * factor;
        }
    }
  }

  /// A weight of 0 leaves out the row, so that a hidden row may hold anything.
  template <int i>
  __device__ void accumulate(Products const& weights, bool /*guards*/, Sums& sums) const {
#pragma unroll
    for (int r = 0; r < rows_of_thread; ++r)
#pragma unroll
      for (int c = 0; c < columns_of_thread; ++c) weights_[row(r) * columns + column(c)] = weights[r][c];
#pragma unroll
    for (int part = 0; part < chunks; ++part) {
      if (part * chunk >= right_[i].operand.dim) break;
      __syncthreads();  // the chunk before has been read, and all weights are set
      stage(right_chunk_, chunk + 1, columns, right_[i], part * chunk);
      __syncthreads();
      for (int j = 0; j < columns; ++j)
#pragma unroll
        for (int r = 0; r < rows_of_thread; ++r)
          if (A const weight = weights_[row(r) * columns + j]; weight != A(0))
#pragma unroll
            for (int c = 0; c < columns_of_thread; ++c)
              sums[r][part * columns_of_thread + c] += weight * right_chunk_[j * (chunk + 1) + column(c)];
    }
    __syncthreads();  // the weights have been read
  }

 private:
  struct Placed {
    HeadRows<T> operand;
    Index first = 0;
  };

  /// Stages elements [begin, begin + chunk) of `count` rows, with 0 beyond the rows and the elements that there are.
  __device__ static void stage(A* to, int stride, int count, Placed const& from, int begin) {
    for (int i = static_cast<int>(threadIdx.x); i < count * chunk; i += threads) {
      int const row = i / chunk, d = i % chunk;
      bool const exists = from.first + row < from.operand.rows && begin + d < from.operand.dim;
      to[row * stride + d] = exists ? widened<A>(from.operand(from.first + row, begin + d)) : A(0);
    }
  }

  A *left_chunk_, *right_chunk_, *weights_;
  Placed left_[2], right_[2];
};

}  // namespace annulus::cuda::detail
