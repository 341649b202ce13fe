#pragma once
// A call whose threads have memory of their own.

#include "annulus/backend/cpu/thread_pool.hpp"
#include "annulus/backend/cpu/workspace.hpp"

namespace annulus::cpu {

/// Calls work(team, slot, scratch) on up to `threads` threads, as ThreadPool::Call::run does. scratch is what
/// deal(arena) makes of the thread's memory.
template <class Deal, class Work>
void run_with_scratch(ThreadPool::Call& call, Index threads, Deal&& deal, Work&& work) {
  Index const bytes = bytes_of(deal);
  WorkspaceStore::of_threads().provide(bytes, threads);
  call.run(threads, [&](Team const& team, int slot) {
    Workspace const own(WorkspaceStore::of_threads(), bytes);
    Arena arena(own.data());
    auto scratch = deal(arena);
    work(team, slot, scratch);
  });
}

}  // namespace annulus::cpu
