#pragma once
// One rank's end of a ring of GPUs: copies by copy engines, ordered by events.
//
// start_shift records an event on the caller's queue for each of its two messages. The rank that posts the second end
// of a message submits it: a copy stream of the sender's GPU waits for the events of both ends, pushes the runs into
// the receiver's memory and records `copied`. Transfer::wait(queue) returns when both messages have been submitted, and
// lets the queue wait for both copies.
//
// Every wait is submitted after the record that it waits for: an event that was never recorded is an empty set of work,
// and a stream that waits for it waits for nothing. So the order of submission is an order in which the work can be
// done, and no sharing of hardware queues among streams can deadlock. And no stream waits for work that may not come:
// after a failure all streams drain by themselves.

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "annulus/comm/peer/message.hpp"
#include "annulus/comm/polling_timer.hpp"
#include "annulus/comm/threads/message_endpoint.hpp"
#include "annulus/core/cuda/queries.hpp"

namespace annulus {

/// Options of a ring of GPUs.
struct PeerRingOptions {
  /// The longest wait of a rank for a peer or for the work of a call, after which the ring is closed on all ranks; at
  /// least 1 ms.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

namespace detail {

/// State of a ring of GPUs that all ranks use. Owns all events and streams, because a rank may still need those of
/// another that has left.
struct PeerState : ThreadRing {
  PeerState(std::vector<int> const& gpus, PeerRingOptions const& options);
};

/// Concurrency, in addition to that of the base. finish: called by the thread of the rank, with the rank's GPU current,
/// as start_shift and complete are. The events of a message are recorded by the thread that posts, copies or waits, and
/// queried by all.
class PeerEndpoint : public MessageEndpoint<PeerEndpoint, PeerMessage> {
  using Queue = CudaMemory::Queue;

 public:
  PeerEndpoint(PeerState& state, Rank rank, int size, int gpu) : MessageEndpoint(state, rank, size), gpu_(gpu) {
    cuda::detail::CurrentDevice const current(gpu);
    for (auto& stream : copies_) stream = cuda::detail::make_stream();
    finished_ = cuda::detail::make_event();
  }

  int gpu() const { return gpu_; }

  /// Returns when the work that is on the queue is done; at once where it is captured in a graph. The one wait of the
  /// host for a GPU. When it throws, no copy reads or writes memory of this rank; see abandon.
  void finish(Queue const& queue) {
    if (queue.is_captured()) return;
    try {
      or_close([&] { await_end(queue); });
    } catch (...) {
      await_copies();
      throw;
    }
  }

  /// Closes the ring, and returns when no copy reads or writes memory of this rank, or when the timeout has passed
  /// because work of a GPU before such a copy does not end.
  void abandon(std::string_view reason, Rank culprit) noexcept {
    ThreadEndpoint::abandon(reason, culprit);
    await_copies();
  }

 private:
  friend class MessageEndpoint<PeerEndpoint, PeerMessage>;

  std::unique_ptr<PeerMessage> make_message(Address const& address) const {
    return std::make_unique<PeerMessage>(of(address.from).gpu_, of(address.to).gpu_);
  }

  static void post_ends(Shift const& shift, Queue const& queue) {
    cuda::detail::check(cudaEventRecord(shift.sent->sender.ready, queue.stream), "cudaEventRecord");
    cuda::detail::check(cudaEventRecord(shift.received->receiver.ready, queue.stream), "cudaEventRecord");
  }

  void copy(PeerMessage const& message) const {
    PeerEndpoint const& sender = of(message.address.from);
    cudaStream_t const stream = sender.copies_[static_cast<std::size_t>(message.address.channel)];
    cuda::detail::CurrentDevice const current(sender.gpu_);
    cuda::detail::check(cudaStreamWaitEvent(stream, message.sender.ready, 0), "cudaStreamWaitEvent");
    cuda::detail::check(cudaStreamWaitEvent(stream, message.receiver.ready, 0), "cudaStreamWaitEvent");
    try {
      for (std::size_t p = 0; p < message.in.size(); ++p)
        if (!message.in[p].empty())
          cuda::detail::check(cudaMemcpyAsync(message.in[p].data(), message.out[p].data(), message.in[p].size(),
                                              cudaMemcpyDefault, stream),
                              "cudaMemcpyAsync");
      cuda::detail::check(cudaEventRecord(message.copied, stream), "cudaEventRecord");
    } catch (...) {  // copies of the first runs may have been submitted
      PollingTimer timer(PollingTimer::Of::device);
      while (!cuda::detail::is_idle(stream) && !timer.exceeds(ring_.timeout)) timer.pause();
      throw;
    }
  }

  void order(Shift const& shift, Queue const& queue) {
    PeerMessage &sent = *shift.sent, &received = *shift.received;
    cuda::detail::check(cudaEventRecord(received.receiver.waiting, queue.stream), "cudaEventRecord");
    cuda::detail::check(cudaStreamWaitEvent(queue.stream, received.copied, 0), "cudaStreamWaitEvent");
    if (sent.complaint.empty()) {  // else it was not copied, and the receiver closes the ring
      cuda::detail::check(cudaEventRecord(sent.sender.waiting, queue.stream), "cudaEventRecord");
      cuda::detail::check(cudaStreamWaitEvent(queue.stream, sent.copied, 0), "cudaStreamWaitEvent");
    }
    std::lock_guard const lock(ring_.mutex);
    received.receiver.waited = true;
    sent.sender.waited = sent.complaint.empty();
  }

  /// Returns when no copy touches memory of this rank, whose ring is closed.
  void await_copies() noexcept {
    PollingTimer const timer(PollingTimer::Of::device);
    std::unique_lock lock(ring_.mutex);
    // The mailboxes of a closed ring do not change.
    for (Rank to = 0; to < size(); ++to)
      for (auto const& message : of(to).mailbox())
        if (to == rank_ || message->address.from == rank_) quiesce(lock, *message, timer);
  }
  void await_copy(PeerMessage const& message, PollingTimer timer) const noexcept {
    // Also the copy of an earlier message that the object has served.
    while (!cuda::detail::is_over(message.copied) && !timer.exceeds(ring_.timeout)) timer.pause();
  }

  void await_end(Queue const& queue) {
    cuda::detail::check(cudaEventRecord(finished_, queue.stream), "cudaEventRecord");
    PollingTimer timer(PollingTimer::Of::device);
    for (; !cuda::detail::is_reached(finished_); timer.pause()) {
      std::lock_guard const lock(ring_.mutex);
      finishing_ = true;
      if (!ring_.failure && timer.exceeds(ring_.timeout)) close(late_work());
      require_open();
    }
    std::lock_guard const lock(ring_.mutex);
    finishing_ = false;
  }

  RankStatus status() const override {
    if (!finishing_) return MessageEndpoint::status();
    Rank const peer = late_peer();
    RankStatus status = RankStatus::of(peer, "work of its GPU", record_);
    if (peer == CommunicationError::unknown) status.text.add("; work of its GPU is not done");
    return status;
  }

  /// The failure of a call whose work has exceeded the timeout.
  RingFailure late_work() noexcept {
    awaited_ = late_peer();
    awaited_what_ = Awaited("work of its GPU");
    if (awaited_ != CommunicationError::unknown) return report();
    return RingFailure::late(rank_, rank_, awaited_what_.view(), ring_.timeout);
  }

  /// The peer for whose end of a message a queue of this rank waits; unknown if none does. Called with the lock.
  Rank late_peer() const noexcept {
    auto const waits = [](PeerEnd const& end) { return end.waited && cuda::detail::is_over(end.waiting); };
    for (Rank to = 0; to < size(); ++to)
      for (auto const& message : of(to).mailbox()) {
        Rank const from = message->address.from;
        if (message->state != PeerMessage::delivered || from == to || cuda::detail::is_over(message->copied)) continue;
        if (to == rank_ && waits(message->receiver)) return from;
        if (from == rank_ && waits(message->sender) && !cuda::detail::is_over(message->receiver.ready)) return to;
      }
    return CommunicationError::unknown;
  }

  int gpu_;
  std::array<cuda::detail::Stream, num_channels> copies_;  ///< of what this rank sends; used by all ranks
  cuda::detail::Event finished_;                           ///< the end of a call on its queue
  bool finishing_ = false;                                 ///< it waits for finished_; guarded by the lock
};

/// Lets each of these GPUs write memory of the others, where the machine can; else the driver stages copies.
inline void enable_peer_access(std::vector<int> const& gpus) {
  for (int const gpu : gpus)
    for (int const other : gpus) {
      int can = 0;
      if (gpu != other) cuda::detail::check(cudaDeviceCanAccessPeer(&can, gpu, other), "cudaDeviceCanAccessPeer");
      if (can == 0) continue;
      cuda::detail::CurrentDevice const current(gpu);
      cudaError_t const error = cudaDeviceEnablePeerAccess(other, 0);
      if (error == cudaErrorPeerAccessAlreadyEnabled)
        cudaGetLastError();  // or the next launch of a kernel would be told of it
      else
        cuda::detail::check(error, "cudaDeviceEnablePeerAccess");
    }
}

inline PeerState::PeerState(std::vector<int> const& gpus, PeerRingOptions const& options)
    // Ranks come within microseconds of each other, most of the time.
    : ThreadRing(static_cast<int>(gpus.size()), options.timeout, std::chrono::microseconds(50)) {
  check<UnsupportedError>(!gpus.empty(), "a ring of GPUs over 0 ranks; at least one is needed");
  check<UnsupportedError>(options.timeout.count() >= 1, "PeerRingOptions: timeout is ", options.timeout.count(),
                          " ms; at least 1 ms is accepted");
  int found = 0;
  cuda::detail::check(cudaGetDeviceCount(&found), "cudaGetDeviceCount");
  for (std::size_t r = 0; r < gpus.size(); ++r)
    check<UnsupportedError>(gpus[r] >= 0 && gpus[r] < found, "a ring of GPUs: rank ", r, " works on GPU ", gpus[r],
                            "; this process has ", found, " GPUs, counted from 0");
  enable_peer_access(gpus);
  for (std::size_t r = 0; r < gpus.size(); ++r)
    ranks.push_back(
        std::make_unique<PeerEndpoint>(*this, static_cast<Rank>(r), static_cast<int>(gpus.size()), gpus[r]));
  near_ranks.assign(gpus.size(), 0);
}

}  // namespace detail
}  // namespace annulus
