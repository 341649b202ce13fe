#pragma once
// Products of tiles of 16-bit elements by tensor cores: a block of 128 threads owns 64 rows of one side (left) and meets
// blocks of 64 rows of the other side (right). Weights are rounded to the type of the elements, as FlashAttention-2 does
// (Dao, arXiv 2307.08691). The interface is that of RowTile.
//
// Warp w owns rows 16 w to 16 w + 15; the layout of a thread's elements is that of sums in warp_instructions.cuh. Rows
// in shared memory are 8 elements longer than they need be, so that the 8 rows of a matrix are in different banks.

#include "annulus/backend/cuda/complete/row_tile.cuh"
#include "annulus/backend/cuda/warp_instructions.cuh"

namespace annulus::cuda::detail {

/// LargestDim: of head_dim and value_dim, a multiple of 16.
template <class T, int LargestDim>
class FragmentTile {
 public:
  using A = float;
  static constexpr int threads = 128;
  static constexpr int rows = 64, columns = 64, largest_dim = LargestDim;
  static constexpr int rows_of_thread = 2, columns_of_thread = columns / 4, sums_of_thread = largest_dim / 4;
  static constexpr bool sums_both = largest_dim <= 128;

  using Products = float[rows_of_thread][columns_of_thread];
  using Sums = float[rows_of_thread][sums_of_thread];

  /// left_operands: 1 or 2.
  static std::size_t shared_bytes(Index head_dim, Index value_dim, int left_operands) {
    std::size_t const first = sizeof(T) * stride_of(static_cast<int>(head_dim)),
                      second = sizeof(T) * stride_of(static_cast<int>(value_dim));
    return flag_bytes + columns * (first + second) + rows * (left_operands == 2 ? first + second : first);
  }

  /// Operands 0 have head_dim elements, operands 1 value_dim.
  __device__ FragmentTile(void* shared, int head_dim, int value_dim)
      : strides_{stride_of(head_dim), stride_of(value_dim)}, flagged_(static_cast<unsigned long long*>(shared)) {
    right_[0] = reinterpret_cast<T*>(static_cast<unsigned char*>(shared) + flag_bytes);
    right_[1] = right_[0] + columns * strides_[0];
    left_[0] = right_[1] + columns * strides_[1];
    left_[1] = left_[0] + rows * strides_[0];
  }

  __device__ static int row(int r) { return warp() * 16 + lane() / 4 + 8 * r; }
  __device__ static int column(int c) { return c / 2 * 8 + lane() % 4 * 2 + c % 2; }
  __device__ static bool leads_row() { return lane() % 4 == 0; }
  __device__ static float maximum_of_row(float value) { return warp_maximum<4>(value); }
  __device__ static float sum_of_row(float value) { return warp_sum<4>(value); }
  __device__ static float exponential(float x) { return fast_exponential(x); }

  template <int i>
  __device__ void place_left(HeadRows<T> const& operand, Index first) {
    __syncthreads();  // the operand before has been read
    copy(left_[i], strides_[i], operand, first);
    dims_[i] = rounded_dim(operand.dim);
  }
  template <int i>
  __device__ void place_right(HeadRows<T> const& operand, Index first) {
    __syncthreads();
    copy(right_[i], strides_[i], operand, first);
    end_copies();
    operands_[i] = operand;
    first_[i] = first;
  }
  __device__ void place_nothing() const { end_copies(); }

  template <int i>
  __device__ void multiply(Products& products) const {
    arrive();
    float sums[columns / 8][4] = {};
    for (int k = 0; k < dims_[i]; k += 16) {
      std::uint32_t left[4];
      load_matrices(left, left_[i] + (warp() * 16 + lane() % 16) * strides_[i] + k + lane() / 16 * 8);
#pragma unroll
      for (int n = 0; n < columns; n += 16) {
        std::uint32_t right[4];
        load_matrices(right, right_[i] + (n + lane() % 8 + lane() / 16 * 8) * strides_[i] + k + lane() / 8 % 2 * 8);
        multiply_fragments<T>(sums[n / 8], left, right[0], right[1]);
        multiply_fragments<T>(sums[n / 8 + 1], left, right[2], right[3]);
      }
    }
#pragma unroll
    for (int c = 0; c < columns_of_thread; ++c)
#pragma unroll
      for (int r = 0; r < rows_of_thread; ++r) products[r][c] = sums[c / 2][2 * r + c % 2];
  }

  /// guards: rows whose weight is 0 may hold infinities and NaN, and are left out.
  template <int i>
  __device__ void accumulate(Products const& weights, bool guards, Sums& sums) const {
    arrive();
    unsigned long long const flagged = guards ? clear_rows_without_numbers<i>() : 0;
#pragma unroll
    for (int k = 0; k < columns; k += 16) {
      int const c = k / 4;
      std::uint32_t const left[4] = {
          packed<T>(weights[0][c], weights[0][c + 1]), packed<T>(weights[1][c], weights[1][c + 1]),
          packed<T>(weights[0][c + 2], weights[0][c + 3]), packed<T>(weights[1][c + 2], weights[1][c + 3])};
#pragma unroll
      for (int d = 0; d < largest_dim; d += 16) {
        if (d >= rounded_dim(operands_[i].dim)) break;
        std::uint32_t right[4];
        load_transposed(right, right_[i] + (k + lane() % 16) * strides_[i] + d + lane() / 16 * 8);
        add_products(sums, d / 4, left, right[0], right[1]);
        add_products(sums, d / 4 + 2, left, right[2], right[3]);
      }
    }
    if (flagged != 0) add_flagged<i>(flagged, weights, sums);
  }

 private:
  __device__ static int warp() { return static_cast<int>(threadIdx.x) / 32; }
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static constexpr ANNULUS_HOST_DEVICE int rounded_dim(int dim) { return (dim + 15) / 16 * 16; }
  static constexpr ANNULUS_HOST_DEVICE int stride_of(int dim) { return rounded_dim(dim) + 8; }

  /// Waits until the right operands but the one placed last, and the left ones, are in shared memory.
  __device__ static void arrive() {
    wait_for_copies<1>();
    __syncthreads();
  }

  /// Begins to copy 64 rows, with 0 beyond the rows and the elements that there are.
  __device__ static void copy(T* to, int stride, HeadRows<T> const& from, Index first) {
    constexpr int wide = 8;  // elements of 16 bytes
    int const pieces = rounded_dim(from.dim) / wide;
    bool const in_wide_pieces = from.dim_stride == 1 && from.dim % wide == 0 && from.row_stride % wide == 0 &&
                                reinterpret_cast<std::uintptr_t>(from.data) % 16 == 0;
    for (int n = static_cast<int>(threadIdx.x); n < rows * pieces; n += threads) {
      int const row = n / pieces, d = n % pieces * wide;
      bool const exists = first + row < from.rows;
      if (in_wide_pieces) {
        bool const copied = exists && d < from.dim;
        begin_copy(to + row * stride + d, copied ? &from(first + row, d) : from.data, copied);
      } else {
        for (int e = d; e < d + wide; ++e)
          to[row * stride + e] = exists && e < from.dim ? from(first + row, e) : narrowed<T>(0.0f);
      }
    }
  }

  /// sums of columns c, c + 1 += left * right.
  __device__ static void add_products(Sums& sums, int c, std::uint32_t const (&left)[4], std::uint32_t right0,
                                      std::uint32_t right1) {
    float of_tile[4] = {sums[0][c], sums[0][c + 1], sums[1][c], sums[1][c + 1]};
    multiply_fragments<T>(of_tile, left, right0, right1);
    sums[0][c] = of_tile[0], sums[0][c + 1] = of_tile[1], sums[1][c] = of_tile[2], sums[1][c + 1] = of_tile[3];
  }

  /// Sets rows of a right operand that hold an infinity or NaN to 0; returns one bit for each of them.
  template <int i>
  __device__ unsigned long long clear_rows_without_numbers() const {
    int const row = static_cast<int>(threadIdx.x) / 2, dim = rounded_dim(operands_[i].dim);
    T* const elements = right_[i] + row * strides_[i];
    bool finite = true;
    for (int d = static_cast<int>(threadIdx.x) % 2; d < dim; d += 2)
      finite = finite && isfinite(widened<float>(elements[d]));
    if (threadIdx.x == 0) *flagged_ = 0;
    bool const other_finite = __shfl_xor_sync(0xffffffffu, finite ? 1 : 0, 1) != 0;
    __syncthreads();
    if (!(finite && other_finite)) {
      for (int d = static_cast<int>(threadIdx.x) % 2; d < dim; d += 2) elements[d] = narrowed<T>(0.0f);
      atomicOr(flagged_, 1ull << row);
    }
    __syncthreads();
    return *flagged_;
  }

  /// Adds the flagged rows, where their weight is not 0.
  template <int i>
  __device__ void add_flagged(unsigned long long flagged, Products const& weights, Sums& sums) const {
    for (int j = 0; j < columns; ++j) {
      if ((flagged >> j & 1) == 0) continue;
#pragma unroll
      for (int r = 0; r < rows_of_thread; ++r) {
        float own = 0;  // the weight, in the thread of the row that has it
#pragma unroll
        for (int c = 0; c < columns_of_thread; ++c) own += column(c) == j ? weights[r][c] : 0.0f;
        float const weight = sum_of_row(own);
        if (weight == 0) continue;
#pragma unroll
        for (int c = 0; c < sums_of_thread; ++c)
          if (column(c) < operands_[i].dim)
            sums[r][c] += weight * widened<float>(operands_[i](first_[i] + j, column(c)));
      }
    }
  }

  static constexpr std::size_t flag_bytes = 16;

  int strides_[2], dims_[2] = {};
  unsigned long long* flagged_;
  T *left_[2], *right_[2];
  HeadRows<T> operands_[2];  ///< of the right operands
  Index first_[2] = {};
};

}  // namespace annulus::cuda::detail
