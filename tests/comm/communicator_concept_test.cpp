// The communicator concepts accept minimal models, and reject each that lacks one requirement.

#include "annulus/comm/communicator.hpp"

#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "support/catch.hpp"
#include "support/foreign_space.hpp"
#include "support/recording_communicator.hpp"
#include "support/unruly_communicator.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

/// Another memory space than HostMemory without a queue.
struct OtherMemory {
  struct Queue {};
};

/// A minimal communicator.
struct Minimal {
  struct Transfer {
    void wait();
  };
  using memory_space = OtherMemory;
  Rank rank() const;
  int size() const;
  Transfer start_shift(Channel, int, OutgoingBytes, IncomingBytes);
  void all_gather(std::span<std::byte const>, std::span<std::byte>);
  void abandon(std::string const&) noexcept;
};

struct NoSpace : Minimal {
 private:
  using memory_space = void;
};
struct RankChanges : Minimal {
  Rank rank();
};
struct SizeIsNoInt : Minimal {
  long size() const;
};
struct TransferWithoutWait : Minimal {
  struct Nothing {};
  Nothing start_shift(Channel, int, OutgoingBytes, IncomingBytes);
};
struct ImmovableTransfer : Minimal {
  struct Immovable {
    Immovable(Immovable&&) = delete;
    void wait();
  };
  Immovable start_shift(Channel, int, OutgoingBytes, IncomingBytes);
};
struct WaitReturnsBool : Minimal {
  struct ReturnsBool {
    bool wait();
  };
  ReturnsBool start_shift(Channel, int, OutgoingBytes, IncomingBytes);
};
struct ShiftWithoutHop : Minimal {
  Transfer start_shift(Channel, OutgoingBytes, IncomingBytes);
};
struct NoGather : Minimal {
  void all_gather() = delete;
};
struct AbandonMayThrow : Minimal {
  void abandon(std::string const&);
};

/// A minimal communicator of a memory space whose queue is not empty.
struct MinimalQueued : Minimal {
  struct Transfer {
    void wait(ForeignQueue);
  };
  using memory_space = ForeignMemory;
  Transfer start_shift(Channel, int, OutgoingBytes, IncomingBytes, ForeignQueue);
  void finish(ForeignQueue);
};

// Each lacks one requirement.
struct SpaceWithoutQueue : Minimal {
  struct memory_space {};
};
struct QueueWithoutWait : MinimalQueued {
  struct memory_space {
    struct Queue {
      int stream;
    };
  };
  Transfer start_shift(Channel, int, OutgoingBytes, IncomingBytes, memory_space::Queue);
  void finish(memory_space::Queue);
};
struct ShiftWithoutQueue : MinimalQueued {
  Minimal::Transfer start_shift(Channel, int, OutgoingBytes, IncomingBytes);
};
struct WaitWithoutQueue : MinimalQueued {
  Minimal::Transfer start_shift(Channel, int, OutgoingBytes, IncomingBytes, ForeignQueue);
};
struct NoFinish : MinimalQueued {
  void finish(ForeignQueue) = delete;
};

static_assert(Communicator<MinimalQueued> && !Communicator<SpaceWithoutQueue> && !Communicator<QueueWithoutWait>);
static_assert(!Communicator<ShiftWithoutQueue> && !Communicator<WaitWithoutQueue> && !Communicator<NoFinish>);

/// A communicator that knows which ranks are near.
struct Placed : Minimal {
  std::span<Rank const> near_ranks() const;
};
struct NearRanksMayMove : Minimal {
  std::vector<Rank> near_ranks() const;
};

static_assert(TopologyAwareCommunicator<Placed> && !TopologyAwareCommunicator<NearRanksMayMove>);
static_assert(!TopologyAwareCommunicator<Minimal>);

static_assert(Communicator<Minimal> && !Communicator<NoSpace> && !Communicator<RankChanges>);
static_assert(!Communicator<SizeIsNoInt> && !Communicator<TransferWithoutWait> && !Communicator<ImmovableTransfer>);
static_assert(!Communicator<WaitReturnsBool> && !Communicator<ShiftWithoutHop> && !Communicator<NoGather>);
static_assert(!Communicator<AbandonMayThrow>);

static_assert(Communicator<RecordingCommunicator<SelfRing>> && Communicator<RecordingCommunicator<Minimal>>);
static_assert(Communicator<RecordingCommunicator<MinimalQueued>> && Communicator<UnrulyCommunicator<SimulatedRing>>);
static_assert(Communicator<ForeignRing<UnrulyCommunicator<SimulatedRing>>>);

// A minimal communicator with zero-copy exchange.
struct MinimalBuffer {
  std::byte* data() const { return nullptr; }
  Index size() const { return 0; }
};
struct MinimalWindow {
  void wait() {}
  WindowRuns runs() const { return {}; }
  void release() noexcept {}
};
struct MinimalZeroCopy : Minimal {
  using Buffer = MinimalBuffer;
  bool shares_memory() const { return true; }
  MinimalBuffer allocate(Index) { return {}; }
  MinimalWindow open_window(Channel, int, OutgoingBytes) { return {}; }
  void reclaim(std::byte const*) {}
};

// Each lacks one requirement.
struct NoSharesMemory : MinimalZeroCopy {
  bool shares_memory() const = delete;
};
struct NoReclaim : MinimalZeroCopy {
  void reclaim(std::byte const*) = delete;
};
struct FixedWindow : MinimalWindow {
  FixedWindow(FixedWindow&&) = delete;
};
struct ImmovableWindow : MinimalZeroCopy {
  FixedWindow open_window(Channel, int, OutgoingBytes);
};

static_assert(ZeroCopyCommunicator<MinimalZeroCopy> && !ZeroCopyCommunicator<Minimal>);
static_assert(!ZeroCopyCommunicator<NoSharesMemory> && !ZeroCopyCommunicator<NoReclaim>);
static_assert(!ZeroCopyCommunicator<ImmovableWindow>);

// Windows of a memory space whose queue is not empty.
struct MinimalQueuedWindow {
  void wait(ForeignQueue) {}
  WindowRuns runs() const { return {}; }
  void release(ForeignQueue) {}
};
struct MinimalQueuedWindows : MinimalQueued {
  using Buffer = MinimalBuffer;
  bool shares_memory() const { return true; }
  MinimalBuffer allocate(Index) { return {}; }
  MinimalQueuedWindow open_window(Channel, int, OutgoingBytes, ForeignQueue) { return {}; }
  void reclaim(std::byte const*, ForeignQueue) {}
};

// Each lacks one requirement.
struct OpensWithoutQueue : MinimalQueuedWindows {
  MinimalQueuedWindow open_window(Channel, int, OutgoingBytes) { return {}; }
};
struct ReclaimsWithoutQueue : MinimalQueuedWindows {
  void reclaim(std::byte const*) {}
};
struct WindowWithoutQueue : MinimalQueuedWindows {
  MinimalWindow open_window(Channel, int, OutgoingBytes, ForeignQueue) { return {}; }
};
struct ReleasedWithoutQueue : MinimalQueuedWindows {
  struct Window : MinimalQueuedWindow {
    void release() {}
  };
  Window open_window(Channel, int, OutgoingBytes, ForeignQueue) { return {}; }
};

static_assert(ZeroCopyCommunicator<MinimalQueuedWindows>);
static_assert(std::same_as<WindowOf<MinimalQueuedWindows>, MinimalQueuedWindow>);
static_assert(!ZeroCopyCommunicator<MinimalQueued> && !ZeroCopyCommunicator<OpensWithoutQueue>);
static_assert(!ZeroCopyCommunicator<ReclaimsWithoutQueue> && !ZeroCopyCommunicator<WindowWithoutQueue>);
static_assert(!ZeroCopyCommunicator<ReleasedWithoutQueue>);

struct ProgressMayThrow {
  void wait() {}
  void progress() {}
};
struct Progresses {
  void wait() {}
  void progress() noexcept {}
};
static_assert(ProgressingTransfer<Progresses> && !ProgressingTransfer<ProgressMayThrow>);
static_assert(!ProgressingTransfer<TransferOf<Minimal>>);

}  // namespace

TEST_CASE("ring_neighbour counts places modulo the size of the ring", "[comm]") {
  CHECK(ring_neighbour(0, 1, 4) == 1);
  CHECK(ring_neighbour(3, 1, 4) == 0);
  CHECK(ring_neighbour(0, -1, 4) == 3);
  CHECK(ring_neighbour(1, -3, 4) == 2);
  CHECK(ring_neighbour(1, -21, 4) == 0);
  CHECK(ring_neighbour(0, 7, 1) == 0);
}
