#pragma once
// Conversion of striped shards to contiguous ones: nkilib's ring_attention_unpermute.

#include <array>
#include <span>
#include <vector>

#include "annulus/interop/nkilib.hpp"

namespace annulus::nkilib {

/// Parameters of ring_attention_unpermute; see ForwardParameters.
struct UnpermuteParameters {
  ReplicaGroups replica_groups{};
  int num_workers = 1;
};

/// Returns a tensor [bs, s, d] with positions rank * s ... rank * s + s - 1 of a sequence of n * s, for n ranks.
/// x [bs, s, d] holds positions rank, rank + n, rank + 2n, ...; s must be a multiple of n. Collective; every rank sends
/// (n - 1) / n of its shard. Throws on all ranks: UnsupportedError for num_workers or replica_groups (check_workers),
/// ShapeError, and CommunicationError if ranks pass different extents or a peer is lost.
template <Communicator C, class X>
auto ring_attention_unpermute(C& communicator, X const& x, UnpermuteParameters const& parameters = {}) {
  static_assert(RequireTensor<X>::value);
  static_assert(rank_of<X> == 3, "annulus: ring_attention_unpermute takes [bs, s, d]");
  static_assert(std::same_as<typename C::memory_space, HostMemory> && std::same_as<SpaceOf<X>, HostMemory>,
                "annulus: ring_attention_unpermute works in host memory");
  using T = ScalarOf<X>;
  int const ranks = communicator.size();
  Rank const rank = communicator.rank();
  TensorView<T const, 3> const striped = view_of(x);
  Index const rows = striped.extent(1), share = rows / ranks;
  interop::check_on_all_ranks(communicator, [&](CallRecord& record) {
    check_workers(parameters.num_workers, parameters.replica_groups, ranks);
    annulus::require_addressable("x", striped);
    check<ShapeError>(rows % ranks == 0, "x has ", rows, " rows; expected a multiple of num_workers = ", ranks);
    record.add("bs", striped.extent(0));
    record.add("s", rows);
    record.add("d", striped.extent(2));
  });

  auto result = make_like<T, 3>(x, striped.extents());
  TensorView<T, 3> const contiguous = view_of(result);
  std::array<Index, 3> const extents{striped.extent(0), share, striped.extent(2)};
  std::vector<T> sent(static_cast<std::size_t>(extents[0] * extents[1] * extents[2])), received(sent.size());
  auto const for_each_element = [&](std::vector<T>& buffer, auto&& function) {
    TensorView<T, 3> const block(buffer.data(), extents);
    for (Index b = 0; b < extents[0]; ++b)
      for (Index i = 0; i < extents[1]; ++i)
        for (Index d = 0; d < extents[2]; ++d) function(block(b, i, d), b, i, d);
  };
  try {
    for (int hop = 0; hop < ranks; ++hop) {
      Rank const to = ring_neighbour(rank, hop, ranks), from = ring_neighbour(rank, -hop, ranks);
      for_each_element(sent,
                       [&](T& element, Index b, Index i, Index d) { element = striped(b, to * share + i, d); });
      if (hop == 0) {
        received = sent;
      } else {
        std::array const out{std::as_bytes(std::span(sent))};
        std::array const in{std::as_writable_bytes(std::span(received))};
        communicator.start_shift(Channel::prefetched, hop, out, in).wait();
      }
      // Rank `from` owned every ranks-th position.
      for_each_element(received,
                       [&](T& element, Index b, Index i, Index d) { contiguous(b, i * ranks + from, d) = element; });
    }
  } catch (std::exception const& error) {
    communicator.abandon(error.what());
    throw;
  }
  return result;
}

}  // namespace annulus::nkilib
