#pragma once
// Rows of a decode step of 16-bit elements by tensor cores: up to 16 query rows share each load. Keys and values go from
// memory to registers, 16 bytes at a time, in the layout of the products, as the order of elements in a sum is free: no
// warp waits for another. Weights are rounded to the type of the elements, as in FragmentTile.
//
// In the terms of warp_instructions.cuh a lane reads elements 32 i + 8 t to 32 i + 8 t + 7 of keys g and g + 8 of a unit:
// words 0 and 1 are its elements of one product over 16, words 2 and 3 those of the next. It reads elements 64 i + 8 g to
// 64 i + 8 g + 7 of the values of keys 2t, 2t + 1, 2t + 8 and 2t + 9: column g of the product number 8 i + e, e < 8.

#include "annulus/backend/cuda/decode/block_results.cuh"
#include "annulus/backend/cuda/shared_memory.cuh"
#include "annulus/backend/cuda/warp_instructions.cuh"

namespace annulus::cuda::detail {

/// Dim: head_dim and value_dim, a multiple of 64.
template <class T, int Dim>
class FragmentRows {
 public:
  static constexpr int rows = 16;
  static constexpr int blocks = Dim <= 64 ? 4 : 2;  ///< of a multiprocessor

  static std::size_t shared_bytes(StepExtents const&) {
    return std::max(rows * q_stride * sizeof(T), BlockResults<float>::bytes(rows, Dim));
  }
  /// True if the kernels read the rows of a step.
  static bool serves(DecodeStep<T> const& step) {
    return step.extents.head_dim == Dim && step.extents.value_dim == Dim && in_wide_pieces(step.q) &&
           in_wide_pieces(step.k) && in_wide_pieces(step.v);
  }

  __device__ FragmentRows(DecodeStep<T> const& step, DecodePlace const& place)
      : step_(step),
        rules_(step, place),
        k_(step.k.data + place.batch * step.k.strides[0] + place.kv_head * step.k.strides[2] + 8 * t()),
        v_(step.v.data + place.batch * step.v.strides[0] + place.kv_head * step.v.strides[2] + 8 * g()),
        q_(static_cast<T*>(shared_memory())) {
    for (int i = static_cast<int>(threadIdx.x); i < rows * (Dim / 8); i += decode_threads) {
      int const row = i / (Dim / 8), d = i % (Dim / 8) * 8;
      uint4 piece{0, 0, 0, 0};
      if (row < rules_.rows()) piece = load_once(&step.q(place.batch, rules_.query(row), rules_.head(row), d));
      *reinterpret_cast<uint4*>(q_ + row * q_stride + d) = piece;
    }
    __syncthreads();
  }

  __device__ void fold(KeyUnits unit) {
    load_keys(unit, 0);
    load_values(unit, 0);
    while (unit.valid()) {
      KeyUnits const next = unit.after();
      float products[2][4] = {};
#pragma unroll
      for (int part = 0; part < parts; ++part) {
        multiply(part, products);
        load_keys(part + 1 < parts ? unit : next, (part + 1) % parts);
      }
      bool const tests = rules_.tests(unit);
      weigh(unit, tests, products);
#pragma unroll
      for (int part = 0; part < parts; ++part) {
        bool const finite = !tests || clear_what_is_not_finite();
        accumulate(part, products);
        if (!finite) add_what_is_not_finite(unit, part, products);
        load_values(part + 1 < parts ? unit : next, (part + 1) % parts);
      }
      unit = next;
    }
  }

  __device__ void store(PartialResults<float> const& partial, Index first_partial, int split) {
    __syncthreads();  // the queries have been read
    BlockResults<float> const results(shared_memory(), rows, Dim);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      row_[half].sum = warp_sum<4>(row_[half].sum);
      results.set_row(g() + 8 * half, row_[half]);
#pragma unroll
      for (int n = 0; n < Dim / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) results.output(g() + 8 * half, dim_of(n, 2 * t() + c)) = sums_[n][2 * half + c];
    }
    results.store(partial, first_partial, split, rules_.rows());
  }

 private:
  static constexpr int part_dim = Dim < 128 ? Dim : 128, parts = Dim / part_dim;  ///< of elements that are read at once
  static constexpr int q_stride = Dim + 8;  ///< so that neighbouring rows are in different banks

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }
  __device__ static int g() { return lane() / 4; }
  __device__ static int t() { return lane() % 4; }
  /// Key of a unit whose value row is number `n` of this lane's.
  __device__ static int value_key(int n) { return 2 * t() + n % 2 + n / 2 * 8; }
  /// The element of values in a column of product n.
  __device__ static int dim_of(int n, int column) { return n / 8 * 64 + column * 8 + n % 8; }

  static bool in_wide_pieces(Strided<T const, 4> const& view) {
    auto const& s = view.strides;
    return s[3] == 1 && s[0] % 8 == 0 && s[1] % 8 == 0 && s[2] % 8 == 0 &&
           reinterpret_cast<std::uintptr_t>(view.data) % 16 == 0;
  }

  __device__ static uint4 row_piece(T const* row, bool exists) { return exists ? load_once(row) : uint4{0, 0, 0, 0}; }
  __device__ void load_keys(KeyUnits const& unit, int part) {
    int const first = unit.first_key();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      Index const key = first + g() + 8 * half;
      bool const exists = unit.valid() && key < unit.tile().end;
#pragma unroll
      for (int i = 0; i < part_dim / 32; ++i)
        keys_[half][i] = row_piece(k_ + key * step_.k.strides[1] + part * part_dim + 32 * i, exists);
    }
  }
  __device__ void load_values(KeyUnits const& unit, int part) {
    int const first = unit.first_key();
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      Index const key = first + value_key(n);
      bool const exists = unit.valid() && key < unit.tile().end;
#pragma unroll
      for (int i = 0; i < part_dim / 64; ++i)
        values_[n][i] = row_piece(v_ + key * step_.v.strides[1] + part * part_dim + 64 * i, exists);
    }
  }

  __device__ void multiply(int part, float (&products)[2][4]) const {
#pragma unroll
    for (int i = 0; i < part_dim / 32; ++i) {
      T const* const q = q_ + g() * q_stride + part * part_dim + 32 * i + 8 * t();
      auto const upper = *reinterpret_cast<uint4 const*>(q), lower = *reinterpret_cast<uint4 const*>(q + 8 * q_stride);
      std::uint32_t const first[4] = {upper.x, lower.x, upper.y, lower.y},
                          second[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        multiply_fragments<T>(products[half], first, keys_[half][i].x, keys_[half][i].y);
        multiply_fragments<T>(products[half], second, keys_[half][i].z, keys_[half][i].w);
      }
    }
  }

  /// Turns products into weights.
  __device__ void weigh(KeyUnits const& unit, bool tests, float (&products)[2][4]) {
    if (tests || !scale_plain(products)) find_logits(unit, tests, products);
    float largest[2] = {empty_row<float>, empty_row<float>}, factors[2];
#pragma unroll
    for (int n = 0; n < 8; ++n) largest[n / 2 % 2] = fmax(largest[n / 2 % 2], products[n / 4][n % 4]);
#pragma unroll
    for (int half = 0; half < 2; ++half) factors[half] = row_[half].raise(warp_maximum<4>(largest[half]));
#pragma unroll
    for (auto& of_product : sums_)
#pragma unroll
      for (int c = 0; c < 4; ++c) of_product[c] *= factors[c / 2];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      SoftmaxRow<float>& row = row_[n / 2 % 2];
      float& weight = products[n / 4][n % 4];
      weight = fast_exponential(weight - finite_maximum(row.maximum));
      row.sum += weight;
    }
  }

  /// Turns products into logits where these are products times the scale. False, with nothing done, if a product of the
  /// warp overflows.
  __device__ bool scale_plain(float (&products)[2][4]) const {
    float overflow = 0;
#pragma unroll
    for (int n = 0; n < 8; ++n) overflow += products[n / 4][n % 4] * 0.0f;  // NaN for an infinite product
    if (!__all_sync(0xffffffffu, overflow == 0 && rules_.is_plain())) return false;
#pragma unroll
    for (int n = 0; n < 8; ++n) products[n / 4][n % 4] *= rules_.scale();
    return true;
  }
  /// The same by all rules, in a loop that is not unrolled.
  __device__ void find_logits(KeyUnits const& unit, bool tests, float (&products)[2][4]) const {
    float logits[8];  // in local memory, which has addresses
#pragma unroll
    for (int n = 0; n < 8; ++n) logits[n] = products[n / 4][n % 4];
#pragma unroll 1
    for (int n = 0; n < 8; ++n) {
      int const row = g() + n / 2 % 2 * 8, key = unit.first_key() + n / 4 * 8 + 2 * t() + n % 2;
      bool const visible = !tests || rules_.visible(unit, row, key);
      logits[n] = visible ? rules_.logit(row, key, logits[n]) : empty_row<float>;
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) products[n / 4][n % 4] = logits[n];
  }

  __device__ void accumulate(int part, float const (&weights)[2][4]) {
    std::uint32_t const left[4] = {packed<T>(weights[0][0], weights[0][1]), packed<T>(weights[0][2], weights[0][3]),
                                   packed<T>(weights[1][0], weights[1][1]), packed<T>(weights[1][2], weights[1][3])};
#pragma unroll
    for (int i = 0; i < part_dim / 64; ++i)
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        std::uint32_t pairs[4];
#pragma unroll
        for (int n = 0; n < 4; ++n) pairs[n] = word_of(values_[n][i], word);
        int const product = part * (part_dim / 8) + 8 * i + 2 * word;
        multiply_fragments<T>(sums_[product], left, low_halves(pairs[0], pairs[1]), low_halves(pairs[2], pairs[3]));
        multiply_fragments<T>(sums_[product + 1], left, high_halves(pairs[0], pairs[1]),
                              high_halves(pairs[2], pairs[3]));
      }
  }

  __device__ static std::uint32_t low_halves(std::uint32_t a, std::uint32_t b) { return (a & 0xffffu) | b << 16; }
  __device__ static std::uint32_t high_halves(std::uint32_t a, std::uint32_t b) { return a >> 16 | (b & 0xffff0000u); }
  __device__ static std::uint32_t const& word_of(uint4 const& piece, int word) {
    return word == 0 ? piece.x : word == 1 ? piece.y : word == 2 ? piece.z : piece.w;
  }
  __device__ static std::uint32_t& word_of(uint4& piece, int word) {
    return word == 0 ? piece.x : word == 1 ? piece.y : word == 2 ? piece.z : piece.w;
  }

  /// Sets infinities and NaN among the values to 0, as a weight of 0 leaves them out. True if no lane has one.
  __device__ bool clear_what_is_not_finite() {
    std::uint32_t found = 0;
#pragma unroll
    for (auto& of_key : values_)
#pragma unroll
      for (uint4& piece : of_key)
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          std::uint32_t& pair = word_of(piece, word);
          std::uint32_t const bad = not_finite<T>(pair);
          found |= bad;
          pair &= ~bad;
        }
    return __all_sync(0xffffffffu, found == 0) != 0;
  }
  /// Adds the infinities and NaN of a part of the values, where their weight is not 0.
  __device__ void add_what_is_not_finite(KeyUnits const& unit, int part, float const (&weights)[2][4]) {
#pragma unroll 1
    for (int j = 0; j < key_unit && unit.first_key() + j < unit.tile().end; ++j) {
      T const* const row = v_ + (unit.first_key() + j) * step_.v.strides[1] - 8 * g();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float own = 0;  // the weight, in the lane of the row that has it
#pragma unroll
        for (int n = 0; n < 4; ++n) own += value_key(n) == j ? weights[n / 2][2 * half + n % 2] : 0.0f;
        float const weight = warp_sum<4>(own);
        if (weight == 0) continue;
#pragma unroll
        for (int n = part * (part_dim / 8); n < (part + 1) * (part_dim / 8); ++n)
#pragma unroll
          for (int c = 0; c < 2; ++c)
            if (float const value = widened<float>(row[dim_of(n, 2 * t() + c)]); !isfinite(value))
              sums_[n][2 * half + c] += weight * value;
      }
    }
  }

  DecodeStep<T> const& step_;
  DecodeRules<T> rules_;
  T const *k_, *v_;
  T* q_;
  uint4 keys_[2][part_dim / 32], values_[4][part_dim / 64];
  SoftmaxRow<float> row_[2];
  float sums_[Dim / 8][4] = {};
};

}  // namespace annulus::cuda::detail
