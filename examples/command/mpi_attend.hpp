#pragma once
// A whole call on the processes of mpirun: rank 0 has the global tensors, each rank gets its own shard and no more.

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "call_tensors.hpp"
#include "mpi_session.hpp"
#include "rank_pass.hpp"
#include "tracing.hpp"

namespace annulus_command {

namespace detail {

template <class TensorType>
auto bytes_of(TensorType& tensor) {
  auto const elements = std::span(tensor.data(), static_cast<std::size_t>(tensor.size()));
  if constexpr (std::is_const_v<TensorType>)
    return std::as_bytes(elements);
  else
    return std::as_writable_bytes(elements);
}

/// Between here and there nothing can fail but memory and MPI; then no message can be trusted to find its peer.
template <class Function>
void or_abort(MpiSession& session, Function&& function) {
  try {
    function();
  } catch (...) {
    session.abort(ending_of(std::current_exception()));
  }
}

template <annulus::Scalar T>
Inputs<T> own_inputs(MpiSession& session, Call const& call, Inputs<T> const* global) {
  int const ranks = session.size();
  Inputs<T> own;
  session.together([&] {
    Share const share(call, session.rank(), ranks);
    own = global ? scatter(*global, call, share) : make_inputs<T>(call, share.rows());
  });
  or_abort(session, [&] {
    if (!global) {
      for_each_tensor<T>(own, [&](auto& tensor) { session.receive(bytes_of(tensor), 0); });
      return;
    }
    for (annulus::Rank rank = 1; rank < ranks; ++rank) {
      Inputs<T> const shard = scatter(*global, call, Share(call, rank, ranks));
      for_each_tensor<T>(shard, [&](auto const& tensor) { session.send(bytes_of(tensor), rank); });
    }
  });
  return own;
}

/// Rank 0 gets the results of all ranks, the others nothing.
template <annulus::Scalar T>
std::optional<Results<T>> all_results(MpiSession& session, Call const& call, Results<T> const& own) {
  int const ranks = session.size();
  std::optional<Results<T>> global;
  session.together([&] {
    if (session.rank() == 0) global = make_results<T>(call, {call.shape.queries, call.shape.keys});
  });
  or_abort(session, [&] {
    if (session.rank() != 0) {
      for_each_tensor<T>(own, [&](auto const& tensor) { session.send(bytes_of(tensor), 0); });
      return;
    }
    gather(own, call, Share(call, 0, ranks), true, *global);
    for (annulus::Rank rank = 1; rank < ranks; ++rank) {
      Share const share(call, rank, ranks);
      Results<T> shard = make_results<T>(call, share.rows());
      for_each_tensor<T>(shard, [&](auto& tensor) { session.receive(bytes_of(tensor), rank); });
      gather(shard, call, share, false, *global);
    }
  });
  return global;
}

}  // namespace detail

/// `inputs`: the global tensors on rank 0, null elsewhere. `log`: of this rank. Rank 0 returns the global results.
template <annulus::Scalar T>
std::optional<Results<T>> attend_over_mpi(MpiSession& session, Inputs<T> const* inputs, Call const& call,
                                          StepLog& log) {
  Inputs<T> const shard = detail::own_inputs(session, call, inputs);
  Results<T> results;
  session.together(
      [&] { session.with_ring([&](AnyRing& ring) { results = attend_on_rank(ring, call, shard, log); }); });
  return detail::all_results(session, call, results);
}

/// Rank 0 gets the spans of all ranks, the others nothing.
inline std::vector<std::vector<Span>> all_spans(MpiSession& session, std::vector<Span> const& own) {
  std::vector<std::vector<Span>> all;
  detail::or_abort(session, [&] {
    std::size_t count = own.size();
    if (session.rank() != 0) {
      session.send(std::as_bytes(std::span(&count, 1)), 0);
      session.send(std::as_bytes(std::span(own)), 0);
      return;
    }
    all.push_back(own);
    for (annulus::Rank rank = 1; rank < session.size(); ++rank) {
      session.receive(std::as_writable_bytes(std::span(&count, 1)), rank);
      std::vector<Span>& spans = all.emplace_back(count);
      session.receive(std::as_writable_bytes(std::span(spans)), rank);
    }
  });
  return all;
}

}  // namespace annulus_command
