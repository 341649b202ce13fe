#pragma once
// Buffers that the ranks of a simulated ring, which are threads of one process, share with each other.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "annulus/comm/zero_copy.hpp"
#include "annulus/core/short_list.hpp"

namespace annulus::detail {

/// Bytes aligned to a cache line, and the number of windows that each rank reads. Lives as long as the Buffer of the
/// ring or any window on it.
class SharedBuffer {
 public:
  SharedBuffer(Rank rank, int ranks, Index bytes)
      : size(bytes),
        owner(rank),
        readers(static_cast<std::size_t>(ranks), 0),
        bytes_(bytes == 0 ? nullptr
                          : static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), alignment))) {}

  std::byte* data() const { return bytes_.get(); }
  bool holds(std::span<std::byte const> run) const {
    return data() <= run.data() && run.data() + run.size() <= data() + size;
  }
  /// A rank that has not released a window; none if the bytes may be written.
  std::optional<Rank> reader() const {
    auto const found = std::find_if(readers.begin(), readers.end(), [](int windows) { return windows > 0; });
    return found == readers.end() ? std::nullopt : std::optional(static_cast<Rank>(found - readers.begin()));
  }

  Index const size;
  Rank const owner;
  std::vector<int> readers;  ///< windows that each rank has not released; guarded by the world's lock

 private:
  static constexpr std::align_val_t alignment{64};
  struct Free {
    void operator()(std::byte* bytes) const { ::operator delete(bytes, alignment); }
  };
  std::unique_ptr<std::byte, Free> bytes_;
};

/// The runs of a window, within one buffer; `memory` is null if all runs are empty.
struct SharedRuns {
  ShortList<std::span<std::byte const>, max_window_runs> runs;
  std::shared_ptr<SharedBuffer> memory;
};

/// The live buffers of one rank. Only its thread calls this class.
class SharedBuffers {
 public:
  std::shared_ptr<SharedBuffer> make(Rank owner, int ranks, Index bytes) {
    std::erase_if(memories_, [](auto const& memory) { return memory.expired(); });
    auto memory = std::make_shared<SharedBuffer>(owner, ranks, bytes);
    memories_.push_back(memory);
    return memory;
  }

  /// The buffer that contains the byte at `first`; null if there is none.
  std::shared_ptr<SharedBuffer> of(std::byte const* first) const {
    for (auto const& entry : memories_)
      if (auto memory = entry.lock(); memory && memory->holds({first, 1})) return memory;
    return nullptr;
  }

  /// Throws CommunicationError if there are too many runs or they do not lie within one buffer.
  SharedRuns runs_of(OutgoingBytes out) const {
    check<CommunicationError>(out.size() <= max_window_runs, "a window of ", out.size(), " runs; at most ",
                              max_window_runs, " are accepted");
    SharedRuns shared;
    for (std::size_t p = 0; p < out.size(); ++p) {
      shared.runs.push_back(out[p]);
      if (out[p].empty()) continue;
      if (!shared.memory) shared.memory = of(out[p].data());
      check<CommunicationError>(shared.memory && shared.memory->holds(out[p]), "run ", p,
                                " of a window does not lie within one buffer of the ring");
    }
    return shared;
  }

 private:
  std::vector<std::weak_ptr<SharedBuffer>> memories_;
};

}  // namespace annulus::detail
