#pragma once
// A call on one rank of a ring, on ranks that are threads, and over MPI.

#include <annulus/comm/simulated_ring.hpp>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "call.hpp"
#include "collectives.hpp"
#include "gpu_ranks.hpp"
#include "options.hpp"
#include "timeline.hpp"

namespace annulus_command {

/// The backends that the command offers: "cpu|...".
std::string names_of_backends();

/// Throws InputError if the backend is unknown or cannot use this number of threads per rank.
void require_backend(std::string_view name, int threads);

/// Forward and, where dout is given, backward. Collective over the ring. Defined for the four element types.
template <annulus::Scalar T>
Results<T> attend_on_rank(AnyRing& ring, Call const& call, Inputs<T> const& own, Timeline& timeline);

extern template Results<double> attend_on_rank(AnyRing&, Call const&, Inputs<double> const&, Timeline&);
extern template Results<float> attend_on_rank(AnyRing&, Call const&, Inputs<float> const&, Timeline&);
extern template Results<Eigen::half> attend_on_rank(AnyRing&, Call const&, Inputs<Eigen::half> const&, Timeline&);
extern template Results<Eigen::bfloat16> attend_on_rank(AnyRing&, Call const&, Inputs<Eigen::bfloat16> const&,
                                                        Timeline&);

/// The part of a rank that is a thread, one of timelines.size(): its results are attend(its inputs, its timeline).
template <annulus::Scalar T, class Attend>
void attend_share(annulus::Rank rank, Inputs<T> const& inputs, Call const& call, std::vector<Timeline>& timelines,
                  Results<T>& results, Attend&& attend) {
  Share const share(call, rank, static_cast<int>(timelines.size()));
  Results<T> const local = attend(scatter(inputs, call, share), timelines[static_cast<std::size_t>(rank)]);
  gather(local, call, share, rank == 0, results);
}

/// Runs the call on timelines.size() simulated ranks, one timeline each, and returns the global results. Throws
/// CommunicationError if a rank waits longer than `timeout` for another.
template <annulus::Scalar T>
Results<T> attend_simulated(Inputs<T> const& inputs, Call const& call, std::vector<Timeline>& timelines,
                            std::chrono::milliseconds timeout) {
  int const ranks = static_cast<int>(timelines.size());
  Results<T> results = make_results<T>(call, {call.shape.queries, call.shape.keys});
  auto const run = [&](annulus::SimulatedRing& ring) {
    AnyRing any(ring);
    attend_share(ring.rank(), inputs, call, timelines, results,
                 [&](Inputs<T> const& own, Timeline& timeline) { return attend_on_rank(any, call, own, timeline); });
  };
  annulus::run_ring(ranks, run, {.timeout = timeout});
  return results;
}

/// Runs the call on ranks that are threads: attend_simulated or attend_on_gpus.
template <annulus::Scalar T>
Results<T> attend_on_threads(Inputs<T> const& inputs, Call const& call, Comm comm, std::vector<Timeline>& timelines,
                             std::chrono::milliseconds timeout) {
  return comm == Comm::simulated ? attend_simulated(inputs, call, timelines, timeout)
                                 : attend_on_gpus(inputs, call, comm, timelines, timeout);
}

namespace detail {

/// The bytes of all tensors, in a fixed order, as runs for Collectives::shift.
template <annulus::Scalar T, class Tensors>
auto runs_of(Tensors& tensors) {
  using Byte = std::conditional_t<std::is_const_v<Tensors>, std::byte const, std::byte>;
  std::vector<std::span<Byte>> runs;
  for_each_tensor<T>(tensors, [&](auto& tensor) {
    auto const elements = std::span(tensor.data(), static_cast<std::size_t>(tensor.size()));
    if constexpr (std::is_const_v<Tensors>)
      runs.push_back(std::as_bytes(elements));
    else
      runs.push_back(std::as_writable_bytes(elements));
  });
  return runs;
}

/// Sends each rank its shard and returns that of this rank. Collective. global: the inputs on rank 0, null elsewhere.
template <annulus::Scalar T>
Inputs<T> own_inputs(Collectives& ranks, Call const& call, Inputs<T> const* global) {
  Inputs<T> own;
  ranks.together([&] {
    Share const share(call, ranks.rank(), ranks.size());
    own = global ? scatter(*global, call, share) : make_inputs<T>(call, share.rows());
  });
  for (int hop = 1; hop < ranks.size(); ++hop) {
    if (global) {
      Inputs<T> const shard = scatter(*global, call, Share(call, hop, ranks.size()));
      ranks.shift(hop, runs_of<T>(shard), {});
    } else if (ranks.rank() == hop) {
      ranks.shift(hop, {}, runs_of<T>(own));
    } else {
      ranks.shift(hop, {}, {});
    }
  }
  return own;
}

/// Sends runs of all other ranks to rank 0. Collective. send() returns the runs of this rank; on rank 0 receive(rank)
/// returns memory of equal lengths for those of `rank`, and received(rank) is called when they have arrived.
template <class Send, class Receive, class Received>
void gather_runs(Collectives& ranks, Send&& send, Receive&& receive, Received&& received) {
  int const size = ranks.size();
  for (annulus::Rank rank = 1; rank < size; ++rank) {
    int const hop = size - rank;
    if (ranks.rank() == 0) {
      ranks.shift(hop, {}, receive(rank));
      received(rank);
    } else if (ranks.rank() == rank) {
      ranks.shift(hop, send(), {});
    } else {
      ranks.shift(hop, {}, {});
    }
  }
}

/// Gathers the results of all ranks. Collective. Returns the global results on rank 0, empty elsewhere.
template <annulus::Scalar T>
std::optional<Results<T>> all_results(Collectives& ranks, Call const& call, Results<T> const& own) {
  std::optional<Results<T>> global;
  ranks.together([&] {
    if (ranks.rank() == 0) global = make_results<T>(call, {call.shape.queries, call.shape.keys});
  });
  if (global) gather(own, call, Share(call, 0, ranks.size()), true, *global);
  std::optional<Results<T>> shard;
  gather_runs(
      ranks, [&] { return runs_of<T>(own); },
      [&](annulus::Rank rank) {
        shard = make_results<T>(call, Share(call, rank, ranks.size()).rows());
        return runs_of<T>(*shard);
      },
      [&](annulus::Rank rank) { gather(*shard, call, Share(call, rank, ranks.size()), false, *global); });
  return global;
}

}  // namespace detail

/// Collective. inputs: the global tensors on rank 0, null elsewhere; timeline: of this rank. Returns the global results
/// on rank 0, empty elsewhere.
template <annulus::Scalar T>
std::optional<Results<T>> attend_over_mpi(Collectives& ranks, Inputs<T> const* inputs, Call const& call,
                                          Timeline& timeline) {
  Inputs<T> const shard = detail::own_inputs(ranks, call, inputs);
  Results<T> const results = attend_on_rank(ranks.ring(), call, shard, timeline);
  return detail::all_results(ranks, call, results);
}

/// Gathers the intervals of all ranks. Collective. Returns them by rank on rank 0, empty elsewhere.
inline Intervals all_intervals(Collectives& ranks, std::vector<annulus::Interval> const& own) {
  static_assert(std::is_trivially_copyable_v<annulus::Interval>);
  std::vector<std::size_t> const counts = ranks.all(own.size());
  Intervals all;
  if (ranks.rank() == 0) all.push_back(own);
  detail::gather_runs(
      ranks, [&] { return std::vector{std::as_bytes(std::span(own))}; },
      [&](annulus::Rank rank) {
        return std::vector{std::as_writable_bytes(std::span(all.emplace_back(counts[static_cast<std::size_t>(rank)])))};
      },
      [](annulus::Rank) {});
  return all;
}

}  // namespace annulus_command
