#pragma once
// Rows of a bias, or of its gradient, for the queries of a panel. They are contiguous along keys, scores along queries,
// so that square blocks are transposed in registers.

#include <algorithm>
#include <span>
#include <type_traits>

#include "annulus/backend/cpu/panel/panel_keys.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Rows [keys] of a tensor [batch, query_heads, queries, global_keys], one per lane of a panel.
template <class T>
class BiasRows {
  using A = Accumulator<std::remove_const_t<T>>;
  using B = Blocking<A>;
  using V = Vector<A>;

 public:
  /// No rows: of a tensor that is not given.
  BiasRows() = default;
  BiasRows(TensorView<T, 4> const& tensor, QueryPanel<A> const& panel)
      : count_(tensor.data() ? panel.count : 0), stride_(tensor.stride(3)) {
    for (int lane = 0; lane < count_; ++lane) {
      rows_[lane] = tensor.data() + tensor.offset(panel.rows->batch, panel.head(lane), panel.query(lane), 0);
      one_row_ = one_row_ && rows_[lane] == rows_[0];
    }
  }

  explicit operator bool() const { return count_ > 0; }  ///< true if the tensor is given

  /// Adds the elements of the keys to the prefetch queue: rows that follow each other are pages apart.
  void expect(PrefetchQueue& ahead, std::span<Index const> positions, RowRange keys) const {
    if (keys.empty() || one_row_ || !are_consecutive(positions, keys)) return;
    Index const first = positions[static_cast<std::size_t>(keys.begin)] * stride_;
    for (int lane = 0; lane < count_; ++lane) ahead.add(rows_[lane] + first, stride_, keys.size());
  }

  /// block[j][lane] = scale * block[j][lane] + the lane's element at the position of key row keys.begin + j. Values of
  /// lanes without a query are arbitrary. Raises largest[v], unless null, to the largest result of each lane.
  void add_to_scaled(A* block, A scale, std::span<Index const> positions, RowRange keys, V* largest) const {
    bool const contiguous = stride_ == 1 && are_consecutive(positions, keys);
    Index const* const position = positions.data() + keys.begin;
    V const factor = V::of(scale);
    V most[B::panel_vectors];
    for (int v = 0; v < B::panel_vectors; ++v) most[v] = largest ? largest[v] : V::zero();
    auto const add_element = [&](Index row, int v, V element) __attribute__((always_inline)) {
      A* const place = block + row * B::panel + v * B::lanes;
      V const logit = multiply_add(V::load(place), factor, element);
      logit.store(place);
      return logit;
    };
    Index j = 0;
    if (stride_ == 0) {
      V element[B::panel_vectors];
      load_lanes([&](int lane) { return static_cast<A>(rows_[lane][0]); }, element);
      for (; j < keys.size(); ++j)
        for (int v = 0; v < B::panel_vectors; ++v) most[v] = larger(add_element(j, v, element[v]), most[v]);
    } else if (one_row_ && count_ == B::panel) {
      for (; j < keys.size(); ++j) {
        V const element = V::of(static_cast<A>(rows_[0][position[j] * stride_]));
        for (int v = 0; v < B::panel_vectors; ++v) most[v] = larger(add_element(j, v, element), most[v]);
      }
    } else if (contiguous) {
      LaneRows rows;
      for (int v = 0; v < B::panel_vectors; ++v) {
        for (int i = 0; i < B::lanes; ++i) {
          T const* const from = v * B::lanes + i < count_ ? rows_[v * B::lanes + i] + position[0] : nullptr;
          for (j = 0; j + B::lanes <= keys.size(); j += B::lanes)
            (from ? load_widened<A>(from + j) : V::zero()).store(rows.of[i] + j);
        }
        for (j = 0; j + B::lanes <= keys.size(); j += B::lanes) {
          V square[B::lanes];
          load_square(rows.of[0] + j, B::key_block, square);
#pragma GCC unroll 16
          for (int i = 0; i < B::lanes; ++i) most[v] = larger(add_element(j + i, v, square[i]), most[v]);
        }
      }
    }
    for (; j < keys.size(); ++j) {
      V element[B::panel_vectors];
      load_lanes([&](int lane) { return static_cast<A>(rows_[lane][position[j] * stride_]); }, element);
      for (int v = 0; v < B::panel_vectors; ++v) most[v] = larger(add_element(j, v, element[v]), most[v]);
    }
    for (int v = 0; largest && v < B::panel_vectors; ++v) largest[v] = most[v];
  }

  /// Sets the elements of the keys to 0.
  void clear(std::span<Index const> positions, RowRange keys) const requires(!std::is_const_v<T>) {
    if (count_ == 0 || keys.empty()) return;
    bool const contiguous = stride_ == 1 && are_consecutive(positions, keys);
    Index const* const position = positions.data() + keys.begin;
    for (int lane = 0; lane < count_; ++lane) {
      if (contiguous)
        std::fill_n(rows_[lane] + position[0], keys.size(), T(0));
      else
        for (Index j = 0; j < keys.size(); ++j) rows_[lane][position[j] * stride_] = T(0);
    }
  }

  /// For the gradient of a bias: adds block[j][lane] to each lane's element at the position of key row keys.begin + j;
  /// `overwrites`: writes it instead, where no two pairs share an element.
  void add_gradient(A const* block, std::span<Index const> positions, RowRange keys, bool overwrites = false) const
      requires(!std::is_const_v<T>) {
    bool const contiguous = stride_ == 1 && are_consecutive(positions, keys);
    Index const* const position = positions.data() + keys.begin;
    auto const add_element = [&](T& to, A value) {
      to = static_cast<T>(overwrites ? value : static_cast<A>(to) + value);
    };
    auto const add_vector = [&](T * to, V vector) __attribute__((always_inline)) {
      store_narrowed(overwrites ? vector : load_widened<A>(to) + vector, to);
    };
    Index j = 0;
    if (stride_ == 0) {
      V sums[B::panel_vectors];
      for (V& sum : sums) sum = V::zero();
      for (; j < keys.size(); ++j)
        for (int v = 0; v < B::panel_vectors; ++v) sums[v] = sums[v] + V::load(block + j * B::panel + v * B::lanes);
      A of_lanes[B::panel];
      for (int v = 0; v < B::panel_vectors; ++v) sums[v].store(of_lanes + v * B::lanes);
      for (int lane = 0; lane < count_; ++lane) add_element(rows_[lane][0], of_lanes[lane]);
    } else if (contiguous && one_row_) {
      for (; j + B::lanes <= keys.size(); j += B::lanes) {
        V total = V::zero();
        for (int v = 0; v < B::panel_vectors; ++v) {
          V square[B::lanes];
          load_square(block + j * B::panel + v * B::lanes, B::panel, square);
          for (int i = 0; i < B::lanes && v * B::lanes + i < count_; ++i) total = total + square[i];
        }
        add_vector(rows_[0] + position[j], total);
      }
    } else if (contiguous) {
      LaneRows rows;
      for (int v = 0; v < B::panel_vectors; ++v) {
        for (j = 0; j + B::lanes <= keys.size(); j += B::lanes) {
          V square[B::lanes];
          load_square(block + j * B::panel + v * B::lanes, B::panel, square);
#pragma GCC unroll 16
          for (int i = 0; i < B::lanes; ++i) square[i].store(rows.of[i] + j);
        }
        for (int i = 0; i < B::lanes && v * B::lanes + i < count_; ++i) {
          T* const to = rows_[v * B::lanes + i] + position[0];
          for (j = 0; j + B::lanes <= keys.size(); j += B::lanes) add_vector(to + j, V::load(rows.of[i] + j));
        }
      }
    }
    for (; j < keys.size(); ++j)
      for (int lane = 0; lane < count_; ++lane)
        add_element(rows_[lane][position[j] * stride_], block[j * B::panel + lane]);
  }

 private:
  template <class Element>
  void load_lanes(Element&& element, V* to) const {
    A elements[B::panel] = {};
    for (int lane = 0; lane < count_; ++lane) elements[lane] = element(lane);
    for (int v = 0; v < B::panel_vectors; ++v) to[v] = V::load(elements + v * B::lanes);
  }
  /// Rows of the lanes of one vector for a block of keys. The tensor's rows are often a multiple of 4096 bytes apart,
  /// so that they evict each other from L1 cache: each is read or written once, from its first element to its last.
  struct LaneRows {
    alignas(64) A of[B::lanes][B::key_block];
  };

  /// Loads `lanes` rows and transposes them.
  [[gnu::always_inline]] static void load_square(A const* from, Index stride, V (&square)[B::lanes]) {
#pragma GCC unroll 16
    for (int i = 0; i < B::lanes; ++i) square[i] = V::load(from + i * stride);
    interleave(square);
  }

  T* rows_[B::panel];
  int count_ = 0;
  Index stride_ = 0;
  bool one_row_ = true;
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
