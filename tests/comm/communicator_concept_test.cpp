// The communicator concepts accept minimal models, and reject each that lacks one requirement.

#include "annulus/comm/communicator.hpp"

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

/// A minimal communicator.
struct Minimal {
  struct Transfer {
    void wait();
  };
  using memory_space = ForeignMemory;
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

/// A communicator that knows which ranks are near.
struct Placed : Minimal {
  std::span<Rank const> near_ranks() const;
};
struct NearRanksMayMove : Minimal {
  std::vector<Rank> near_ranks() const;
};

static_assert(TopologyAwareCommunicator<Placed>);
static_assert(!TopologyAwareCommunicator<NearRanksMayMove>);
static_assert(!TopologyAwareCommunicator<Minimal>);

static_assert(Communicator<Minimal>);
static_assert(!Communicator<NoSpace>);
static_assert(!Communicator<RankChanges>);
static_assert(!Communicator<SizeIsNoInt>);
static_assert(!Communicator<TransferWithoutWait>);
static_assert(!Communicator<ImmovableTransfer>);
static_assert(!Communicator<WaitReturnsBool>);
static_assert(!Communicator<ShiftWithoutHop>);
static_assert(!Communicator<NoGather>);
static_assert(!Communicator<AbandonMayThrow>);

static_assert(Communicator<RecordingCommunicator<SelfRing>>);
static_assert(Communicator<RecordingCommunicator<Minimal>>);
static_assert(Communicator<UnrulyCommunicator<SimulatedRing>>);
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

static_assert(ZeroCopyCommunicator<MinimalZeroCopy>);
static_assert(!ZeroCopyCommunicator<Minimal>);
static_assert(!ZeroCopyCommunicator<NoSharesMemory>);
static_assert(!ZeroCopyCommunicator<NoReclaim>);
static_assert(!ZeroCopyCommunicator<ImmovableWindow>);

struct ProgressMayThrow {
  void wait() {}
  void progress() {}
};
struct Progresses {
  void wait() {}
  void progress() noexcept {}
};
static_assert(ProgressingTransfer<Progresses>);
static_assert(!ProgressingTransfer<ProgressMayThrow>);
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
