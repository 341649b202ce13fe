#pragma once
// Working memory of the CPU backend, reserved before a test counts allocations.

#include <annulus/backend/cpu/threads/workspace.hpp>

namespace annulus_test {

/// The backend keeps as much working memory as simultaneous calls have needed, and which calls are simultaneous depends
/// on the timing of the ranks. Afterwards up to eight calls, or threads, of a small problem find theirs.
inline void reserve_workspaces() {
  auto& stores = annulus::cpu::detail::WorkspaceStores::shared();
  for (auto* store : {&stores.of_calls, &stores.of_threads}) store->provide(annulus::Index{1} << 22, 8);
}

}  // namespace annulus_test
