#pragma once
// Call on the thread pool with working memory for each thread.

#include "annulus/backend/cpu/thread_pool.hpp"
#include "annulus/backend/cpu/workspace.hpp"

namespace annulus::cpu {

/// Calls work(team, slot, scratch) on up to `threads` threads, as ThreadPool::Call::run does. `scratch` is the result
/// of allocate(arena), called once per thread.
template <class Allocate, class Work>
void run_with_scratch(ThreadPool::Call& call, Index threads, Allocate&& allocate, Work&& work) {
  Index const bytes = bytes_of(allocate);
  WorkspaceStore::of_threads().provide(bytes, threads);
  call.run(threads, [&](Team const& team, int slot) {
    Workspace const own(WorkspaceStore::of_threads(), bytes);
    Arena arena(own.data());
    auto scratch = allocate(arena);
    work(team, slot, scratch);
  });
}

}  // namespace annulus::cpu
