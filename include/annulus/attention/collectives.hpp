#pragma once
// Collective operations on tensors around a call: positions, scatter, gather and all_reduce over the ranks of a ring.
// Whole tensors are in host memory; on a ring of a device's memory, shards are on the device.
//
// All ranks call them in the same order, between calls of the attention. Arguments that do not fit are refused on all
// ranks, with the same error, before any element moves; a rank that fails later abandons the ring. A rank that skips
// one of several equal operations makes its next one instead, which comparing the calls cannot detect: number them
// (`call`).

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <numeric>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "annulus/attention/records.hpp"
#include "annulus/attention/validate.hpp"
#include "annulus/core/host_memory.hpp"
#include "annulus/core/scalar.hpp"
#include "annulus/sharding/scatter_gather.hpp"
#include "annulus/tensor/eigen.hpp"
#include "annulus/tensor/host_copies.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus {

/// The axis along which a tensor is sharded, and the side whose sharding applies.
struct Along {
  std::size_t axis = axis::sequence;  ///< 1, as in [batch, sequence, heads, dim]; 2 for lse [batch, heads, queries]
  /// Whose sharding applies: that of the queries or that of the keys.
  Side side = Side::query;
  std::optional<Index> call{};  ///< number of this operation, chosen by the caller; compared across ranks
};

namespace detail {

/// Space: where the tensor has to be.
template <Communicator C, class X, class Space = HostMemory>
struct RequireCollective {
  static_assert(RequireTensor<X>::value);
  static_assert(
      CopiedFromHost<typename C::memory_space> &&
          (std::same_as<SpaceOf<X>, HostMemory> || std::same_as<SpaceOf<X>, Space>),
      "annulus: scatter and all_reduce take tensors in host memory, gather also those in the memory of the ring; a "
      "ring that moves other memory than that of the host needs HostCopies (tensor/host_copies.hpp)");
  static_assert(std::is_trivially_copyable_v<ScalarOf<X>>,
                "annulus: elements are sent as bytes, so their type must be trivially copyable");
  static constexpr bool value = true;
};

/// The record of scatter or gather, whose error require(record) may throw on all ranks.
template <class T, std::size_t N, class Require>
CallRecord record_along(CollectiveOperation operation, Along const& along, Sharding const& sharding,
                        std::array<Index, N> const& equal_extents, Require&& require) {
  CallRecord record = record_of_tensors<T>(operation, along.call, equal_extents);
  record.fill_or_refuse([&](CallRecord&) {
    record_positions(record, along.axis, along.side, sharding);
    check<ShapeError>(along.axis < N, "the positions lie along axis ", along.axis, " of a tensor with ", N,
                      " axes; accepted: 0 to ", N - 1);
    require(record);
  });
  return record;
}

/// The type in which all_reduce sums elements of type T: the accumulator type if there is one.
template <class T>
struct SumOf : std::type_identity<T> {};
template <Scalar T>
struct SumOf<T> : std::type_identity<Accumulator<T>> {};

/// A row-major buffer of elements with its extents.
template <class T, std::size_t N>
struct PackedTensor {
  PackedTensor() = default;
  explicit PackedTensor(std::array<Index, N> const& extents) : view(nullptr, extents) {
    elements.resize(static_cast<std::size_t>(view.size()) * sizeof(T));
    view = {reinterpret_cast<T*>(elements.data()), extents};
  }
  std::vector<std::byte> elements;
  TensorView<T, N> view;
};

/// Sends `out` to the rank `hop` places on, and receives `in` from the rank `hop` places back; on the queue.
template <Communicator C, class Queue>
void shift_bytes(C& ring, int hop, std::span<std::byte const> out, std::span<std::byte> in, Queue const& queue) {
  std::array const leaving{out};
  std::array const arriving{in};
  auto transfer = start_shift(ring, Channel::prefetched, hop, leaving, arriving, queue);
  wait_for(transfer, queue);
  finish_queue(ring, queue);
}

/// The same for bytes of the host, on any ring.
template <Communicator C>
void shift(C& ring, int hop, std::span<std::byte const> out, std::span<std::byte> in) {
  using Space = typename C::memory_space;
  if constexpr (std::same_as<Space, HostMemory>) {
    shift_bytes(ring, hop, out, in, HostMemory::Queue{});
  } else {
    using Copies = HostCopies<Space>;
    TensorView<std::byte, 1> const arriving(in.data(), {std::ssize(in)});
    auto const sent = Copies::to_space(TensorView<std::byte const, 1>(out.data(), {std::ssize(out)}));
    auto received = Copies::to_space(arriving);
    typename Copies::OwnedQueue const own;
    // Abandoned while the device's memory is there, which other ranks may be reading.
    or_abandon(ring, [&] {
      shift_bytes(ring, hop, {sent.data(), out.size()}, {received.data(), in.size()}, own.queue);
    });
    Copies::to_host(received, arriving);
  }
}

/// A new tensor of x's tensor library and axis order; extents in attention order.
template <class X, std::size_t N>
auto make_as(X const& x, std::array<Index, N> const& extents) {
  if constexpr (N == 4)
    return make_in_order_of<ScalarOf<X>>(x, extents);
  else
    return make_like<ScalarOf<X>, N>(x, extents);
}

/// The view of a tensor that make_as has made like x.
template <class X, class Made>
auto view_as(X const& x, Made& made) {
  if constexpr (rank_of<X> == 4)
    return view_of(with_axes(made, axis_order_of(x)));
  else
    return view_of(made);
}

/// The exchange of scatter, when all ranks agree.
template <Communicator C, class X>
auto scatter_shards(C& ring, X const& global, Sharding const& sharding, Along const& along) {
  using T = ScalarOf<X>;
  constexpr std::size_t N = rank_of<X>;
  auto const from = view_of(global);
  std::array<Index, N> const mine = from.extents();
  std::vector<std::array<Index, N>> extents(static_cast<std::size_t>(ring.size()));
  ring.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(extents)));
  auto const lengths = sharding.lengths(along.side, ring.size(), extents[0][along.axis]);
  auto const shard_of = [&](Rank rank) {
    auto shard = extents[0];
    shard[along.axis] = lengths[static_cast<std::size_t>(rank)];
    return shard;
  };
  auto const pack = [&](Rank rank) {
    PackedTensor<T, N> packed(shard_of(rank));
    auto const segments = sharding.segments(along.side, rank, lengths);
    scatter_into(from, std::span<Segment const>(segments), packed.view, along.axis);
    return packed;
  };
  PackedTensor<T, N> own = ring.rank() == 0 ? pack(0) : PackedTensor<T, N>(shard_of(ring.rank()));
  for (int hop = 1; hop < ring.size(); ++hop) {
    auto const leaving = ring.rank() == 0 ? pack(hop) : PackedTensor<T, N>();
    shift(ring, hop, leaving.elements, ring.rank() == hop ? std::span(own.elements) : std::span<std::byte>());
  }
  auto result = make_as(global, shard_of(ring.rank()));
  copy_elements(TensorView<T const, N>(own.view), view_as(global, result));
  return HostCopies<typename C::memory_space>::to_space(std::move(result));
}

/// scatter, which calls require_rows(rows of the global tensor) on all ranks when they agree: they all throw what that
/// throws, before any element moves.
template <Communicator C, class X, class Require>
auto scatter_rows(C& ring, X const& global, Sharding const& sharding, Along const& along, Require&& require_rows) {
  static_assert(RequireCollective<C, X>::value);
  using T = ScalarOf<X>;
  constexpr std::size_t N = rank_of<X>;
  auto const from = view_of(global);
  auto const records = agree(ring, record_along<T>(CollectiveOperation::scatter, along, sharding,
                                                   std::array<Index, N>{}, [&](CallRecord& record) {
                                                     if (ring.rank() != 0) return;
                                                     require_addressable("the global tensor", from);
                                                     record.shard_rows = from.extent(along.axis);
                                                     sharding.lengths(along.side, ring.size(), record.shard_rows);
                                                   }));
  require_rows(records[0].shard_rows);
  return or_abandon(ring, [&] { return scatter_shards(ring, global, sharding, along); });
}

/// The exchange of gather, when all ranks agree. segments, lengths: of the shards of all ranks.
template <Communicator C, class X>
auto gather_shards(C& ring, X const& local, std::span<std::vector<Segment> const> segments,
                   std::span<Index const> lengths, std::size_t axis) {
  using T = ScalarOf<X>;
  constexpr std::size_t N = rank_of<X>;
  auto const from = view_of(local);
  auto extents = from.extents();
  extents[axis] = std::accumulate(lengths.begin(), lengths.end(), Index{0});
  auto result = make_as(local, extents);
  auto const to = view_as(local, result);
  auto const write = [&](Rank rank, TensorView<T, N> shard) {
    gather_into(shard, std::span<Segment const>(segments[static_cast<std::size_t>(rank)]), to, axis);
  };
  PackedTensor<T, N> own(from.extents());
  copy_elements(TensorView<T const, N>(from), own.view);
  write(ring.rank(), own.view);
  for (int hop = 1; hop < ring.size(); ++hop) {
    Rank const source = ring_neighbour(ring.rank(), -hop, ring.size());
    auto arriving = from.extents();
    arriving[axis] = lengths[static_cast<std::size_t>(source)];
    PackedTensor<T, N> other(arriving);
    shift(ring, hop, own.elements, other.elements);
    write(source, other.view);
  }
  return result;
}

/// Replaces elements of type T by their sums over the ranks, piece by piece.
template <class T, Communicator C>
void sum_over_ranks(C& ring, std::span<std::byte> elements) {
  using Sum = typename SumOf<T>::type;
  std::size_t const piece = std::max(sizeof(T), (std::size_t{1} << 16) / sizeof(T) * sizeof(T));
  std::vector<std::byte> gathered(piece * static_cast<std::size_t>(ring.size()));
  for (std::size_t begin = 0; begin < elements.size(); begin += piece) {
    std::size_t const bytes = std::min(piece, elements.size() - begin);
    auto const mine = elements.subspan(begin, bytes);
    auto const all = std::span(gathered).first(bytes * static_cast<std::size_t>(ring.size()));
    ring.all_gather(mine, all);
    auto* const sums = reinterpret_cast<T*>(mine.data());
    auto const* const terms = reinterpret_cast<T const*>(all.data());
    std::size_t const count = bytes / sizeof(T);
    for (std::size_t i = 0; i < count; ++i) {
      Sum sum(0);
      for (std::size_t r = 0; r < static_cast<std::size_t>(ring.size()); ++r)
        sum = static_cast<Sum>(sum + static_cast<Sum>(terms[r * count + i]));
      sums[i] = static_cast<T>(sum);
    }
  }
}

}  // namespace detail

/// Global positions of this rank's rows among `tokens`, in the order of the rows: for rotary embeddings, say. Queries
/// are counted from 0: add the query offset. Not collective. Throws ShapeError for a sharding of another length.
template <Communicator C>
std::vector<Index> positions(C const& ring, Sharding const& sharding, Index tokens, Side side = Side::query) {
  auto const segments = sharding.segments(side, ring.rank(), sharding.lengths(side, ring.size(), tokens));
  return positions_of(segments);
}

/// This rank's shard of the tensor that rank 0 passes. Collective. The other ranks' tensors give the type alone, are
/// not read, and may be empty. `global` has one to eight axes, of any element type; `along.axis` counts in attention
/// order. Returns a new tensor of its family, its extent along that axis being sharding.lengths(side, ranks,
/// extent)[rank]; on a ring of GPUs a DeviceTensor on the current one. Throws ShapeError or CommunicationError on all
/// ranks.
template <Communicator C, class X>
auto scatter(C& ring, X const& global, Sharding const& sharding, Along const& along = {}) {
  return detail::scatter_rows(ring, global, sharding, along, [](Index) {});
}

/// The whole tensor in natural order, on every rank, from the shards of all ranks. Collective. The shards may have any
/// lengths that the sharding accepts (with Contiguous: any at all); their other extents are equal. Returns a new tensor
/// of the shard's family, in which every row is written; on a ring of GPUs from a DeviceTensor a row-major
/// Eigen::Tensor. Throws ShapeError or CommunicationError on all ranks.
template <Communicator C, class X>
auto gather(C& ring, X const& local, Sharding const& sharding, Along const& along = {}) {
  static_assert(detail::RequireCollective<C, X, typename C::memory_space>::value);
  auto const from = view_of(local);
  auto equal = from.extents();
  if (along.axis < equal.size()) equal[along.axis] = 0;
  using Operation = detail::CollectiveOperation;
  auto const records = detail::agree(
      ring,
      detail::record_along<ScalarOf<X>>(Operation::gather, along, sharding, equal, [&](detail::CallRecord& record) {
        detail::require_addressable("the shard", from);
        record.shard_rows = from.extent(along.axis);
      }));
  std::vector<std::vector<Segment>> segments;
  std::optional<ShapeError> refusal;
  std::vector<Index> lengths;
  or_abandon(ring, [&] {
    for (detail::CallRecord const& record : records) lengths.push_back(record.shard_rows);
    try {
      for (Rank rank = 0; rank < ring.size(); ++rank) segments.push_back(sharding.segments(along.side, rank, lengths));
    } catch (ShapeError const& error) {
      refusal = error;
    }
  });
  // Every rank sees the same lengths: what is refused here, all ranks refuse, and the ring stays open.
  if (refusal) throw *refusal;
  return or_abandon(ring,
                    [&] { return detail::gather_shards(ring, detail::on_host(local), segments, lengths, along.axis); });
}

/// Replaces each element of x by its sum over the ranks, added in rank order: the same bits on every rank and in every
/// run. Collective. x has the same extents on all ranks, of any number of axes up to eight; 16-bit elements are summed
/// in float and rounded once. `call`: number of this operation, chosen by the caller; compared across ranks. Throws
/// ShapeError or CommunicationError on all ranks.
template <Communicator C, class X>
void all_reduce(C& ring, X&& x, std::optional<Index> call = {}) {
  static_assert(detail::RequireCollective<C, std::remove_cvref_t<X>>::value);
  using T = ScalarOf<X>;
  constexpr std::size_t N = rank_of<X>;
  auto const view = view_of(x);
  auto record = detail::record_of_tensors<T>(detail::CollectiveOperation::all_reduce, call, view.extents());
  record.fill_or_refuse([&](detail::CallRecord&) { detail::require_addressable("the tensor", view); });
  detail::agree(ring, record);
  or_abandon(ring, [&] {
    detail::PackedTensor<T, N> own(view.extents());
    detail::copy_elements(TensorView<T const, N>(view), own.view);
    detail::sum_over_ranks<T>(ring, own.elements);
    detail::copy_elements(TensorView<T const, N>(own.view), view);
  });
}

}  // namespace annulus
