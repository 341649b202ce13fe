#pragma once
// Runs a function on a thread for each rank of a ring.

#include <algorithm>
#include <cstddef>
#include <exception>
#include <optional>
#include <string_view>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/comm/threads/endpoint.hpp"
#include "annulus/core/definitions.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/function_ref.hpp"

namespace annulus::detail {

/// Calls run(rank) on a thread for each rank of the ring, and returns when all have ended; rank 0 has the caller's. If
/// run throws, the ring is closed, and the exception of the rank that closed it is rethrown. `caller`: named in errors.
void run_on_threads(ThreadRing& ring, std::string_view caller, FunctionRef<void(Rank)> run);

#if defined(ANNULUS_DEFINITIONS)

ANNULUS_INLINE void run_on_threads(ThreadRing& ring, std::string_view caller, FunctionRef<void(Rank)> run) {
  std::size_t const count = ring.ranks.size();
  std::vector<std::exception_ptr> failures(count);
  auto const run_one = [&](Rank rank) {
    auto const r = static_cast<std::size_t>(rank);
    try {
      run(rank);
    } catch (std::exception const& error) {
      failures[r] = std::current_exception();
      ring.ranks[r]->abandon(error.what(), rank);
    } catch (...) {
      failures[r] = std::current_exception();
      ring.ranks[r]->abandon("it threw an exception of unknown type", rank);
    }
  };
  {
    std::vector<std::jthread> threads;
    threads.reserve(count);
    auto const start = [&](Rank rank) {
      try {
        threads.emplace_back(run_one, rank);
      } catch (std::exception const& error) {
        throw Error(message_of(caller, " over ", count, " ranks needs ", count - 1,
                               " threads; the system refuses the thread of rank ", rank, ": ", error.what()));
      }
    };
    for (std::size_t r = 1; r < count; ++r) try {
        start(static_cast<Rank>(r));
      } catch (...) {
        ring.ranks[r]->abandon("no thread could be created for it", static_cast<Rank>(r));
        failures[r] = std::current_exception();
        break;
      }
    run_one(0);
  }
  // The rank that closed the ring failed first; the exceptions of the others follow from that.
  if (Rank const closer = ring.closer; closer != CommunicationError::unknown)
    if (auto const& first = failures[static_cast<std::size_t>(closer)]) std::rethrow_exception(first);
  for (auto const& failure : failures)
    if (failure) std::rethrow_exception(failure);
}

#endif

/// Calls run(call), which calls call(ring) on all ranks of a ring. Returns nothing, or what function(ring) returns, in
/// rank order.
template <class Ring, class Run, class Function>
auto results_of_ranks(int ranks, Run run, Function& function) {
  using Result = std::invoke_result_t<Function&, Ring&>;
  if constexpr (std::is_void_v<Result>) {
    run([&](Ring& ring) { function(ring); });
  } else {
    std::vector<std::optional<Result>> results(static_cast<std::size_t>(std::max(ranks, 0)));
    run([&](Ring& ring) { results[static_cast<std::size_t>(ring.rank())] = function(ring); });
    std::vector<Result> values;
    for (auto& result : results) values.push_back(std::move(*result));
    return values;
  }
}

}  // namespace annulus::detail
