// The communicator concept accepts what it should, and nothing that lacks one thing.

#include "annulus/comm/communicator.hpp"

#include "annulus/comm/zero_copy.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "support/catch.hpp"
#include "support/foreign_space.hpp"
#include "support/recording_communicator.hpp"
#include "support/unruly_communicator.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

/// The least that is a communicator.
struct Least {
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

struct NoSpace : Least {
 private:
  using memory_space = void;
};
struct RankChanges : Least {
  Rank rank();
};
struct SizeIsNoInt : Least {
  long size() const;
};
struct TransferWithoutWait : Least {
  struct Nothing {};
  Nothing start_shift(Channel, int, OutgoingBytes, IncomingBytes);
};
struct TransferThatStays : Least {
  struct Pinned {
    Pinned(Pinned&&) = delete;
    void wait();
  };
  Pinned start_shift(Channel, int, OutgoingBytes, IncomingBytes);
};
struct WaitThatTells : Least {
  struct Telling {
    bool wait();
  };
  Telling start_shift(Channel, int, OutgoingBytes, IncomingBytes);
};
struct ShiftWithoutHop : Least {
  Transfer start_shift(Channel, OutgoingBytes, IncomingBytes);
};
struct NoGather : Least {
  void all_gather() = delete;
};
struct AbandonMayThrow : Least {
  void abandon(std::string const&);
};

static_assert(Communicator<Least>);
static_assert(!Communicator<NoSpace>);
static_assert(!Communicator<RankChanges>);
static_assert(!Communicator<SizeIsNoInt>);
static_assert(!Communicator<TransferWithoutWait>);
static_assert(!Communicator<TransferThatStays>);
static_assert(!Communicator<WaitThatTells>);
static_assert(!Communicator<ShiftWithoutHop>);
static_assert(!Communicator<NoGather>);
static_assert(!Communicator<AbandonMayThrow>);

static_assert(Communicator<RecordingCommunicator<SelfRing>>);
static_assert(Communicator<RecordingCommunicator<Least>>);
static_assert(Communicator<UnrulyCommunicator<SimulatedRing>>);
static_assert(Communicator<ForeignRing<UnrulyCommunicator<SimulatedRing>>>);

// The least that shares_memory.
struct LeastBuffer {
  std::byte* data() const { return nullptr; }
  Index size() const { return 0; }
};
struct LeastWindow {
  void wait() {}
  WindowRuns runs() const { return {}; }
  void release() noexcept {}
};
struct LeastZeroCopy : Least {
  using Buffer = LeastBuffer;
  bool shares_memory() const { return true; }
  LeastBuffer allocate(Index) { return {}; }
  LeastWindow open_window(Channel, int, OutgoingBytes) { return {}; }
  void reclaim(std::byte const*) {}
};

// One thing is missing in each.
struct NeverSaysWhether : LeastZeroCopy {
  bool shares_memory() const = delete;
};
struct NoReclaim : LeastZeroCopy {
  void reclaim(std::byte const*) = delete;
};
struct WindowThatStays : LeastWindow {
  WindowThatStays(WindowThatStays&&) = delete;
};
struct SharesForGood : LeastZeroCopy {
  WindowThatStays open_window(Channel, int, OutgoingBytes);
};

static_assert(ZeroCopyCommunicator<LeastZeroCopy>);
static_assert(!ZeroCopyCommunicator<Least>);
static_assert(!ZeroCopyCommunicator<NeverSaysWhether>);
static_assert(!ZeroCopyCommunicator<NoReclaim>);
static_assert(!ZeroCopyCommunicator<SharesForGood>);

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
static_assert(!ProgressingTransfer<TransferOf<Least>>);

}  // namespace

TEST_CASE("neighbours are counted around the ring", "[comm]") {
  CHECK(ring_neighbour(0, 1, 4) == 1);
  CHECK(ring_neighbour(3, 1, 4) == 0);
  CHECK(ring_neighbour(0, -1, 4) == 3);
  CHECK(ring_neighbour(1, -3, 4) == 2);
  CHECK(ring_neighbour(1, -21, 4) == 0);
  CHECK(ring_neighbour(0, 7, 1) == 0);
}
