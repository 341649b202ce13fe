#pragma once
// Scatter and gather between a global tensor in natural order and the shard of one rank, for any sharding.

#include <span>

#include "annulus/core/error.hpp"
#include "annulus/sharding/sharding.hpp"
#include "annulus/tensor/tensor_like.hpp"

namespace annulus {

namespace detail {

/// The positions of a segment as a strided slice of the global view, without a copy.
template <class T, std::size_t N>
TensorView<T, N> positions_of_segment(TensorView<T, N> global, std::size_t sequence, Segment const& segment) {
  auto const slice = global.slice(sequence, segment.global_begin, segment.length);
  auto strides = global.strides();
  strides[sequence] *= segment.global_stride;
  return {slice.data(), slice.extents(), strides};
}

template <class T, class U, std::size_t N>
void check_shard(TensorView<T, N> global, TensorView<U, N> local, std::span<Segment const> segments,
                 std::size_t sequence) {
  check<ShapeError>(sequence < N, "scatter or gather along axis ", sequence, " of a tensor with ", N, " axes");
  require_addressable("the global tensor", global);
  require_addressable("the shard", local);
  auto expected = global.extents();
  expected[sequence] = rows_of(segments);
  check<ShapeError>(local.extents() == expected, "shard of extents ", local.extents(), "; its segments need ",
                    expected);
  for (Segment const& segment : segments) {
    if (segment.length == 0) continue;
    Index const last = segment.global_begin + (segment.length - 1) * segment.global_stride;
    check<ShapeError>(segment.length > 0 && segment.global_begin >= 0 && last >= 0 && last < global.extent(sequence),
                      "a segment goes from position ", segment.global_begin, " to ", last,
                      ", the global tensor has the positions [0, ", global.extent(sequence), ")");
    check<ShapeError>(segment.local_begin >= 0 && segment.local_begin + segment.length <= local.extent(sequence),
                      "a segment fills rows [", segment.local_begin, ", ", segment.local_begin + segment.length,
                      ") of a shard of ", local.extent(sequence));
  }
}

}  // namespace detail

/// Copies the positions of `segments` from `global` to `local`, converting elements. `sequence` is the index of the
/// sequence axis (1 in attention order); the other extents must be equal. Throws ShapeError if extents do not match, or
/// `local` repeats elements (stride 0).
template <class T, class U, std::size_t N>
void scatter_into(TensorView<T, N> global, std::span<Segment const> segments, TensorView<U, N> local,
                  std::size_t sequence = axis::sequence) {
  detail::check_shard(global, local, segments, sequence);
  detail::require_own_elements("the shard", local);
  for (Segment const& segment : segments)
    detail::copy_elements(TensorView<T const, N>(detail::positions_of_segment(global, sequence, segment)),
                          local.slice(sequence, segment.local_begin, segment.length));
}

/// Copies a shard to its positions in `global`, which must not repeat elements; other arguments and errors as for
/// scatter_into. Ranks write disjoint positions, so they may write concurrently.
template <class T, class U, std::size_t N>
void gather_into(TensorView<T, N> local, std::span<Segment const> segments, TensorView<U, N> global,
                 std::size_t sequence = axis::sequence) {
  detail::check_shard(global, local, segments, sequence);
  detail::require_own_elements("the global tensor", global);
  for (Segment const& segment : segments)
    detail::copy_elements(TensorView<T const, N>(local.slice(sequence, segment.local_begin, segment.length)),
                          detail::positions_of_segment(global, sequence, segment));
}

/// Returns the shard of `rank` of a global tensor [batch, sequence, heads, dim] (another axis order: wrap it), in the
/// axis order of `global`. Throws ShapeError. For uneven contiguous shards pass their segments to scatter_into.
template <TensorLike X>
auto scatter(X const& global, Sharding const& sharding, Rank rank, int ranks, Side side = Side::query) {
  auto const view = view_of(global);
  detail::check<ShapeError>(rank >= 0 && rank < ranks, "scatter to rank ", rank, " of ", ranks);
  auto const lengths = sharding.lengths(side, ranks, view.extent(axis::sequence));
  auto const segments = sharding.segments(side, rank, lengths);
  auto extents = view.extents();
  extents[axis::sequence] = rows_of(segments);
  auto local = detail::make_in_order_of<ScalarOf<X>>(global, extents);
  scatter_into(view, std::span<Segment const>(segments), view_of(with_axes(local, axis_order_of(global))));
  return local;
}

/// Copies the shard of `rank`, such as the output of a pass, to its positions in `global`. Throws ShapeError.
template <TensorLike X, TensorLike Y>
void gather(X const& local, Sharding const& sharding, Rank rank, int ranks, Y&& global, Side side = Side::query) {
  auto const view = view_of(global);
  detail::check<ShapeError>(rank >= 0 && rank < ranks, "gather from rank ", rank, " of ", ranks);
  auto const lengths = sharding.lengths(side, ranks, view.extent(axis::sequence));
  auto const segments = sharding.segments(side, rank, lengths);
  gather_into(view_of(local), std::span<Segment const>(segments), view);
}

}  // namespace annulus
