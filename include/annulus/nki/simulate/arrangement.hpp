#pragma once
// Choices left to the device, on which the results of a program must not depend.

#include <vector>

#include "annulus/core/check.hpp"
#include "annulus/core/index.hpp"

namespace annulus::nki {

/// Order of the ring, meaning of rank ids, and order of the cores.
struct Arrangement {
  /// Meaning of the rank ids that programs query: position in the group, or rank number across all groups.
  enum class Ids { position, global };

  /// Worker that each rank of the communicator runs as; empty: worker = rank. Data moves from each rank to the next.
  std::vector<int> ring;
  Ids ids = Ids::position;
  int group_begin = 0;  ///< global number of the group's first worker
  int first_core = 0;   ///< which core of a pair runs first between two synchronization points

  /// Throws UnsupportedError unless the ring names every worker once and first_core exists.
  void check_for(int ranks, int cores) const {
    check<UnsupportedError>(first_core >= 0 && first_core < cores, "core ", first_core, " is to go first of ", cores);
    if (ring.empty()) return;
    std::vector<bool> seen(static_cast<std::size_t>(ranks), false);
    check<UnsupportedError>(ring.size() == seen.size(), "a ring order of ", ring.size(), " workers for ", ranks,
                            " ranks");
    for (int worker : ring) {
      bool const fits = worker >= 0 && worker < ranks && !seen[static_cast<std::size_t>(worker)];
      check<UnsupportedError>(fits, "ring order ", ring, " does not name each of ", ranks, " workers once");
      seen[static_cast<std::size_t>(worker)] = true;
    }
  }

  int worker(Rank rank) const { return ring.empty() ? rank : ring[static_cast<std::size_t>(rank)]; }
  /// The id of the worker whose data is at `rank` after `hops` hops.
  int id_after(Index hops, Rank rank, int ranks) const {
    auto const from = static_cast<Rank>(((rank - hops) % ranks + ranks) % ranks);
    return worker(from) + (ids == Ids::global ? group_begin : 0);
  }
};

}  // namespace annulus::nki
