#pragma once
// HostOperations: row-wise operations that all backends in host memory share.

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "annulus/backend/step.hpp"
#include "annulus/numerics/softmax.hpp"

namespace annulus {

/// Base of the backends that compute in host memory: everything of the Backend concept but supports, fold and
/// add_gradients. Each operation is done when it returns.
class HostOperations {
 public:
  using memory_space = HostMemory;
  using Buffer = detail::HostBuffer;  ///< 64-byte aligned

  /// A buffer of unspecified contents. Throws std::bad_alloc.
  Buffer allocate(Index bytes) { return detail::HostBuffer(bytes); }
  /// Does nothing: every operation is done when it returns.
  void synchronize() {}

  /// Copies each element. Both views have the same extents.
  template <class T, std::size_t N>
  void copy(TensorView<T const, N> from, TensorView<T, N> to) {
    detail::copy_elements(from, to);
  }

  /// Copies each element, converted from the type of the sums to that of the results. Equal extents.
  template <class A, class T, std::size_t N>
  void convert(TensorView<A const, N> from, TensorView<T, N> to) {
    detail::copy_elements(from, to);
  }

  /// Adds each element of `from` to that of `into`. Equal extents.
  template <class A, std::size_t N>
  void add(TensorView<A, N> into, TensorView<A const, N> from) {
    detail::for_each_element(into, from, [](A& sum, A const& value) { sum += value; });
  }

  /// Sets each element to 0.
  template <class A, std::size_t N>
  void clear(TensorView<A, N> view) {
    detail::for_each_element(view, view, [](A& element, A&) { element = A(0); });
  }

  /// Makes every row empty: it has seen no key.
  template <class A>
  void reset(RunningState<A, HostMemory> state) {
    clear(state.accumulator);
    clear(state.sum);
    detail::for_each_element(state.maximum, state.maximum, [](A& element, A&) { element = empty_row<A>; });
  }

  /// Merges two states of the same rows, by the merge rule of SoftmaxRow, into the first.
  template <class A>
  void merge(RunningState<A, HostMemory> into, RunningState<A, HostMemory> from) {
    for_each_row(into.maximum, [&](Index b, Index h, Index i) {
      SoftmaxRow<A> row{into.maximum(b, h, i), into.sum(b, h, i)};
      auto const factors = row.merge({from.maximum(b, h, i), from.sum(b, h, i)});
      join_rows(&into.accumulator(b, i, h, 0), factors.own, &from.accumulator(b, i, h, 0), factors.other,
                into.accumulator.extent(axis::dim));
      into.maximum(b, h, i) = row.maximum;
      into.sum(b, h, i) = row.sum;
    });
  }

  /// Computes output, lse and the rounding error of lse from a state.
  /// sinks: sink logits [query_heads, n], without data: none. output [batch, queries, query_heads, value_dim], lse and
  /// lse_remainder [batch, query_heads, queries]; lse_remainder without data is not written.
  template <class A, class L, class T>
  void normalise(RunningState<A, HostMemory> state, TensorView<L const, 2> sinks, TensorView<T, 4> output,
                 TensorView<L, 3> lse, TensorView<L, 3> lse_remainder) {
    normalise_rows(state, sinks, output, lse, lse_remainder, scale_row<A, T>);
  }

  /// The same, with a function for the rows of the output: see scale_row().
  template <class A, class L, class T, class ScaleRow>
  void normalise_rows(RunningState<A, HostMemory> state, TensorView<L const, 2> sinks, TensorView<T, 4> output,
                      TensorView<L, 3> lse, TensorView<L, 3> lse_remainder, ScaleRow&& scale_row) {
    for_each_row(state.maximum, [&](Index b, Index h, Index i) {
      SoftmaxRow<A> row{state.maximum(b, h, i), state.sum(b, h, i)};
      A scale = A(1);
      for (Index s = 0; sinks.data() && s < sinks.extent(1); ++s) {
        A const sink = static_cast<A>(sinks(h, s));
        scale *= row.raise(sink);
        row.sum += row.weight(sink);
      }
      scale *= row.normaliser();
      scale_row(&state.accumulator(b, i, h, 0), scale, &output(b, i, h, 0), output.stride(axis::dim),
                output.extent(axis::dim));
      write_lse(row, b, h, i, lse, lse_remainder);
    });
  }

  /// Writes the lse of a row, and its rounding error if lse_remainder has data.
  template <class A, class L>
  static void write_lse(SoftmaxRow<A> const& row, Index b, Index h, Index i, TensorView<L, 3> const& lse,
                        TensorView<L, 3> const& lse_remainder) {
    L const rounded = lse(b, h, i) = static_cast<L>(row.lse());
    // The remainder includes the error of the conversion to L.
    if (lse_remainder.data())
      lse_remainder(b, h, i) =
          std::isfinite(rounded) ? static_cast<L>((row.lse() - static_cast<A>(rounded)) + row.lse_remainder()) : L(0);
  }

  /// to[d * stride] = scale * from[d], converted, for d < count.
  template <class A, class T>
  static void scale_row(A const* from, A scale, T* to, Index stride, Index count) {
    // A constant stride of 1 lets the compiler vectorize.
    if (stride == 1)
      for (Index d = 0; d < count; ++d) to[d] = static_cast<T>(scale * from[d]);
    else
      for (Index d = 0; d < count; ++d) to[d * stride] = static_cast<T>(scale * from[d]);
  }

  /// Computes delta: for each row the sum over dim of dout * output.
  /// dout and output [batch, queries, query_heads, value_dim]; delta [batch, query_heads, queries], overwritten.
  template <class T, class A>
  void row_delta(TensorView<T const, 4> dout, TensorView<T const, 4> output, TensorView<A, 3> delta) {
    for_each_row(delta, [&](Index b, Index h, Index i) {
      constexpr Index block = 64;
      alignas(64) A factors[block], others[block];
      A sum = A(0);
      for (Index begin = 0, dim = dout.extent(axis::dim); begin < dim; begin += block) {
        Index const count = std::min(block, dim - begin);
        for (Index d = 0; d < count; ++d) {
          factors[d] = static_cast<A>(output(b, i, h, begin + d));
          others[d] = static_cast<A>(dout(b, i, h, begin + d));
        }
        sum = add_products(sum, factors, others, count);
      }
      delta(b, h, i) = sum;
    });
  }

  /// A sink logit s has probability exp((s - lse) - lse_remainder) and value 0, so its gradient is the sum over all
  /// rows of -probability * delta. lse, lse_remainder (without data: 0) and delta [batch, query_heads, queries]; sinks
  /// and dsinks [query_heads, n].
  template <class L, class A>
  void sink_gradients(TensorView<L const, 3> lse, TensorView<L const, 3> lse_remainder, TensorView<A const, 3> delta,
                      TensorView<L const, 2> sinks, TensorView<A, 2> dsinks) {
    for (Index h = 0; h < sinks.extent(0); ++h)
      for (Index s = 0; s < sinks.extent(1); ++s) {
        A sum = A(0);
        for (Index b = 0; b < lse.extent(0); ++b)
          for (Index i = 0; i < lse.extent(2); ++i) {
            A const remainder = lse_remainder.data() ? static_cast<A>(lse_remainder(b, h, i)) : A(0);
            sum -= probability(static_cast<A>(sinks(h, s)), static_cast<A>(lse(b, h, i)), remainder) * delta(b, h, i);
          }
        dsinks(h, s) = sum;
      }
  }

  /// Calls function(b, h, i) for each row of statistics [batch, query_heads, queries], in the order of the operands.
  template <class A, class Function>
  static void for_each_row(TensorView<A, 3> const& rows, Function&& function) {
    for (Index b = 0; b < rows.extent(0); ++b)
      for (Index i = 0; i < rows.extent(2); ++i)
        for (Index h = 0; h < rows.extent(1); ++h) function(b, h, i);
  }

 private:
  /// Not inlined, so that operands of all strides run the same code: a compiler that specializes the loop may fuse
  /// products and sums in some of the copies, which changes the bits.
  template <class A>
  [[gnu::noinline]] static A add_products(A sum, A const* factors, A const* others, Index count) {
    // A row that sees no key has the constant output 0: its dout, even if NaN, must not reach dsinks.
    for (Index d = 0; d < count; ++d) sum += factors[d] != A(0) ? factors[d] * others[d] : A(0);
    return sum;
  }

  /// Not inlined for the same reason: all callers in a program must join partial results to the same bits.
  template <class A>
  [[gnu::noinline]] static void join_rows(A* into, A own, A const* from, A other, Index count) {
    for (Index d = 0; d < count; ++d) into[d] = own * into[d] + other * from[d];
  }
};

}  // namespace annulus
