#pragma once
// Products of packed blocks on AMX tiles, two by two: four tiles of sums, two of rows and two of columns; and the
// largest results of each lane.

#include <type_traits>

#include "annulus/backend/cpu/panel/blocking.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Raises maximum[v] to the largest value of each lane in `rows` rows. Several chains of comparisons run side by side,
/// as each comparison waits for the one before.
template <class A>
[[gnu::always_inline]] inline void raise_to_largest(A const* block, Index rows, Vector<A>* maximum) {
  using B = Blocking<A>;
  constexpr Index chains = 4;
  Vector<A> largest[chains][B::panel_vectors];
  for (Index c = 0; c < chains; ++c)
    for (int v = 0; v < B::panel_vectors; ++v) largest[c][v] = maximum[v];
  auto const raise = [&](Index row, Index c) __attribute__((always_inline)) {
    for (int v = 0; v < B::panel_vectors; ++v)
      largest[c][v] = larger(Vector<A>::load(block + row * B::panel + v * B::lanes), largest[c][v]);
  };
  Index const whole = rows / chains * chains;
  for (Index row = 0; row < whole; row += chains)
#pragma GCC unroll 4
    for (Index c = 0; c < chains; ++c) raise(row + c, c);
  for (Index row = whole; row < rows; ++row) raise(row, 0);
  for (int v = 0; v < B::panel_vectors; ++v)
    maximum[v] = larger(larger(largest[0][v], largest[1][v]), larger(largest[2][v], largest[3][v]));
}

#if defined(ANNULUS_CPU_HAS_AMX)
/// Sums of 32 rows and Width * 16 columns, Width 1 or 2, in tiles 0 to 3: a thread has one such set.
template <int Width>
struct AmxSums {
  static constexpr Index side = amx_tile_side, rows = 2 * side, stride = Width * side, row_bytes = stride * 4;

  [[gnu::always_inline]] static void clear() {
    _tile_zero(0);
    _tile_zero(2);
    if constexpr (Width > 1) _tile_zero(1);
    if constexpr (Width > 1) _tile_zero(3);
  }
  /// `from`: [rows][stride].
  [[gnu::always_inline]] static void load(float const* from) {
    _tile_loadd(0, from, row_bytes);
    _tile_loadd(2, from + side * stride, row_bytes);
    if constexpr (Width > 1) _tile_loadd(1, from + side, row_bytes);
    if constexpr (Width > 1) _tile_loadd(3, from + side * stride + side, row_bytes);
  }
  [[gnu::always_inline]] static void store(float* to) {
    _tile_stored(0, to, row_bytes);
    _tile_stored(2, to + side * stride, row_bytes);
    if constexpr (Width > 1) _tile_stored(1, to + side, row_bytes);
    if constexpr (Width > 1) _tile_stored(3, to + side * stride + side, row_bytes);
  }
  /// Adds the sum over 16 pairs k of a[row][k] * b[k][column]. a: [rows][16], b: [16][stride].
  [[gnu::always_inline]] static void add(BfloatPair const* a, BfloatPair const* b) {
    add_part<0>(a, b);
    add_part<1>(a, b);
    add_part<2>(a, b);
    add_part<3>(a, b);
  }
  /// The same in four parts, in this order: one tile product each, half of them for a width of 1.
  template <int Part>
  [[gnu::always_inline]] static void add_part(BfloatPair const* a, BfloatPair const* b) {
    if constexpr (Part == 0) {
      _tile_loadd(4, a, 64);
      _tile_loadd(6, b, row_bytes);
      _tile_loadd(5, a + side * side, 64);
      if constexpr (Width > 1) _tile_loadd(7, b + side, row_bytes);
      _tile_dpbf16ps(0, 4, 6);
    }
    if constexpr (Part == 1 && Width > 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (Part == 2) _tile_dpbf16ps(2, 5, 6);
    if constexpr (Part == 3 && Width > 1) _tile_dpbf16ps(3, 5, 7);
  }
};

/// Products result[row][lane] = sum over k < depth of rows[row][k] * queries[k][lane] of packed groups of rows with a
/// panel, one tile product at a time: tiles multiply while vectors compute, so that callers do other work in between.
/// No other code may use this thread's tiles until finish() has returned.
class AmxProducts {
  using V = Vector<float>;
  using G = PackedGroup<BfloatPair>;
  using Sums = AmxSums<2>;
  static constexpr int vectors = Blocking<float>::panel_vectors;
  static_assert(G::rows == Sums::rows && Blocking<float>::panel == Sums::stride);

 public:
  /// Call next<0>() to next<parts - 1>() in this order, again and again, then finish().
  static constexpr int parts = 4;

  /// No products.
  AmxProducts() = default;
  AmxProducts(BfloatPair const* rows, Index row_count, BfloatPair const* queries, Index depth, float* result,
              PrefetchQueue& ahead)
      : rows_(rows),
        queries_(queries),
        depth_(depth),
        result_(result),
        groups_(G::rows_padded(row_count) / G::rows),
        ahead_(&ahead) {
    finish_stores();
  }
  bool empty() const { return groups_ == 0; }

  template <int Part>
  [[gnu::always_inline]] void next() {
    if (groups_ == 0) return;
    if (Part == 0 && k_ == 0) begin_group();
    Sums::add_part<Part>(rows_, queries_ + k_ * Sums::stride);
    if constexpr (Part + 1 < parts) return;
    rows_ += G::rows * G::depth;
    k_ += G::depth;
    if (k_ == depth_) end_group();
  }

  /// All that are left.
  void finish() {
    while (groups_ > 0) {
      next<0>();
      next<1>();
      next<2>();
      next<3>();
    }
    if (stored_) raise_to_largest(stored_, G::rows, largest_);
    stored_ = nullptr;
  }

  /// The largest results of the lanes of a vector, when all is finished.
  V largest(int v) const { return largest_[v]; }

 private:
  void begin_group() {
    ahead_->next();
    Sums::clear();
  }
  void end_group() {
    Sums::store(result_);
    // Of the group before: vectors must wait until the results of tiles are stored.
    if (stored_) raise_to_largest(stored_, G::rows, largest_);
    stored_ = result_;
    result_ += G::rows * Sums::stride;
    k_ = 0;
    --groups_;
  }

  BfloatPair const *rows_ = nullptr, *queries_ = nullptr;
  Index depth_ = 0, k_ = 0;
  float *result_ = nullptr, *stored_ = nullptr;
  Index groups_ = 0;
  PrefetchQueue* ahead_ = nullptr;
  V largest_[vectors] = {V::of(empty_row<float>), V::of(empty_row<float>)};
};
#endif

/// No products, where other code would do AmxProducts in between.
struct NoProducts {
  static constexpr int parts = 0;
  bool empty() const { return true; }
  void finish() {}
};

/// Products of elements E that are computed while vectors compute.
#if defined(ANNULUS_CPU_HAS_AMX)
template <class E>
using OverlappedProducts = std::conditional_t<PackedGroup<E>::tiled, AmxProducts, NoProducts>;
#else
template <class E>
using OverlappedProducts = NoProducts;
#endif

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
