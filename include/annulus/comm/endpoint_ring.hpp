#pragma once
// Communicator of one rank, on top of the endpoint that moves the bytes: the base of PeerRing, and, with zero-copy
// exchange, of SimulatedRing and MpiRing.

#include <cstddef>
#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "annulus/comm/communicator.hpp"

namespace annulus::detail {

/// An exchange or a window that this rank waits for; given up if it is destroyed before. `Pointer`: to the endpoint.
template <class Pointer, class What>
class Pending {
 public:
  Pending(Pointer endpoint, What what) : endpoint_(std::move(endpoint)), what_(std::move(what)) {}
  Pending(Pending&& other) noexcept
      : endpoint_(std::move(other.endpoint_)),
        what_(std::move(other.what_)),
        state_(std::exchange(other.state_, completed)) {}
  Pending& operator=(Pending other) noexcept {
    std::swap(endpoint_, other.endpoint_);
    std::swap(what_, other.what_);
    std::swap(state_, other.state_);
    return *this;
  }
  ~Pending() {
    if (state_ == pending) endpoint_->drop(what_);
  }

  /// Returns when it is complete, or when the work put on the queue from then on begins after that. After a wait that
  /// has thrown, throws the error that closed the ring.
  template <class... Queue>
  void wait(Queue const&... queue) {
    if (state_ == failed) endpoint_->require_open();
    if (state_ != pending) return;
    state_ = failed;
    endpoint_->complete(what_, queue...);
    state_ = completed;
  }

  void progress() noexcept requires requires(Pointer const& endpoint, What const& what) { endpoint->progress(what); }
  {
    if (state_ == pending) endpoint_->progress(what_);
  }

 protected:
  Pointer endpoint_;
  What what_;

 private:
  enum { pending, failed, completed } state_ = pending;
};

/// Leaves a ring; if an exception ends it that the other ranks do not throw as well, abandons it first. `exceptions`:
/// those that were uncaught when the ring was made.
template <class Endpoint>
void leave_ring(Endpoint& endpoint, int exceptions) noexcept {
  // Where all ranks throw the same error, a peer may still be receiving the records that it needs to throw it.
  if (std::uncaught_exceptions() > exceptions && !endpoint.flight_record().fails_on_all_ranks())
    endpoint.abandon("an exception ended its ring", endpoint.rank());
  endpoint.leave();
}

/// The part of a communicator that knows no memory space. Models CallRecordingCommunicator and
/// TopologyAwareCommunicator in derived classes. `Pointer`: to the endpoint, which has the functions that this class
/// forwards to.
template <class Pointer>
class EndpointRank {
 public:
  Rank rank() const { return endpoint_->rank(); }
  int size() const { return endpoint_->size(); }
  /// For each rank, the first rank that is near it, or itself.
  std::span<Rank const> near_ranks() const { return endpoint_->near_ranks(); }

  /// Throws CommunicationError if the ring is or becomes closed, if records differ in length, or if `all` is not
  /// size() * mine.size() bytes long.
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    check<CommunicationError>(all.size() == static_cast<std::size_t>(size()) * mine.size(), "all-gather of ",
                              mine.size(), " bytes a rank over ", size(), " ranks needs ",
                              static_cast<std::size_t>(size()) * mine.size(), " bytes of space, got ", all.size());
    endpoint_->all_gather(mine, all);
  }

  /// Closes the ring on all ranks; the errors of the others blame `culprit`, by default this rank.
  void abandon(std::string_view reason, Rank culprit) noexcept { endpoint_->abandon(reason, culprit); }
  void abandon(std::string_view reason) noexcept { abandon(reason, rank()); }

  FlightRecord& flight_record() { return endpoint_->flight_record(); }

 protected:
  explicit EndpointRank(Pointer endpoint) : endpoint_(std::move(endpoint)) {}

  Pointer endpoint_;
};

/// Models ZeroCopyCommunicator. `Pointer`: to the endpoint, which has
///  - the types Shift and Window of what this rank waits for; a complete Window has `runs`, and is released when its
///    `reading` ends;
///  - complete(what), which waits, and gives up `what` if it throws; drop(what), which gives it up and closes the ring;
///  - require_open(), which throws the failure that closed the ring, if it is closed;
///  - the functions that this class and its base forward to.
template <class Pointer>
class EndpointRing : public EndpointRank<Pointer> {
  using Endpoint = typename std::pointer_traits<Pointer>::element_type;

 public:
  using memory_space = HostMemory;

  /// Both sides of a shift: what this rank sends and what it receives.
  using Transfer = Pending<Pointer, typename Endpoint::Shift>;

  /// A window on a buffer of another rank, held by this one.
  class SharedWindow : public Pending<Pointer, typename Endpoint::Window> {
   public:
    using Pending<Pointer, typename Endpoint::Window>::Pending;

    WindowRuns runs() const { return this->what_.runs; }
    void release() noexcept {
      this->what_.runs.clear();
      this->what_.reading = decltype(this->what_.reading)();
    }
  };

  /// Memory that the other ranks can read, aligned to 64 bytes.
  class Buffer {
   public:
    Buffer(std::shared_ptr<std::byte> bytes, Index size) : bytes_(std::move(bytes)), size_(size) {}
    std::byte* data() const { return bytes_.get(); }
    Index size() const { return size_; }

   private:
    std::shared_ptr<std::byte> bytes_;
    Index size_;
  };

  /// Throws CommunicationError if the ring is closed, and std::bad_alloc if memory is short.
  Transfer start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in) {
    return {endpoint_, endpoint_->start_shift(channel, hop, out, in)};
  }

  /// True if the ranks read each other's buffers; if false, allocate, open_window and reclaim must not be called.
  bool shares_memory() const { return endpoint_->shares_memory(); }

  /// Throws std::bad_alloc.
  Buffer allocate(Index bytes) { return {endpoint_->allocate(bytes), bytes}; }

  /// Throws CommunicationError if the ring is closed, `out` is not within one Buffer, or too many windows are open.
  SharedWindow open_window(Channel channel, int hop, OutgoingBytes out) {
    return {endpoint_, endpoint_->open_window(channel, hop, out)};
  }

  /// Returns when no rank reads the Buffer at `first`. Throws CommunicationError if the ring is or becomes closed.
  void reclaim(std::byte const* first) { endpoint_->reclaim(first); }

 protected:
  using EndpointRank<Pointer>::EndpointRank;
  using EndpointRank<Pointer>::endpoint_;
};

}  // namespace annulus::detail
