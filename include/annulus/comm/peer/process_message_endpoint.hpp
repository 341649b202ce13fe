#pragma once
// One rank's end of a ring of GPUs whose ranks are processes of one node: copies by copy engines, ordered by events.
//
// start_shift records an event on the caller's queue for each of its two messages, and posts the runs of the one that
// it receives. The sender submits the copy, as a process cannot put work on a stream of another: when it starts the
// shift, if the receiver has posted, else in a later wait. Its copy stream waits for the events of both ends, pushes
// the runs into the receiver's memory and records `copied`. Transfer::wait(queue) returns when both messages have been
// submitted, and lets the queue wait for both copies.
//
// So every wait is submitted after the record that it waits for, as among threads (peer/endpoint.hpp), and no stream
// waits for work that may not come, unless a process dies.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <span>
#include <utility>
#include <vector>

#include "annulus/comm/peer/process_endpoint.hpp"
#include "annulus/core/cuda/queries.hpp"

namespace annulus::detail {

class PeerProcessEndpoint : public ProcessEndpoint {
  using Queue = CudaMemory::Queue;

  /// This rank's end of a message, and of those that use the same place. The events are made once.
  struct End {
    Address address;
    enum { idle, posted, submitted, refused } state = idle;
    cuda::detail::Event ready;    ///< where the shift was started
    cuda::detail::Event waiting;  ///< where the queue waits for the copy
    bool waited = false;          ///< `waiting` has been recorded for it
    cuda::detail::Event theirs;   ///< `ready` of the receiver, or `copied` of the sender; opened once it is recorded
  };
  struct Sent : End {
    std::vector<std::span<std::byte const>> out;
    CallPosition sent_at;
    cuda::detail::Event copied;  ///< on the copy stream: `out` has been read and the receiver's runs written
  };
  struct Received : End {};

 public:
  struct Shift {
    Sent* sent;
    Received* received;
  };

  /// The current GPU is that of the rank, also in all other calls.
  explicit PeerProcessEndpoint(PeerMeeting const& meeting)
      : ProcessEndpoint(meeting),
        numbers_(meeting.rank, meeting.size),
        sent_(places(meeting.size)),
        received_(places(meeting.size)) {
    or_close([&] {
      cuda::detail::check(cudaGetDevice(&gpu_), "cudaGetDevice");
      for (auto& stream : copies_) stream = cuda::detail::make_stream();
      finished_ = cuda::detail::make_event();
    });
  }

  /// Closes what it has opened of the others, and waits until they have closed what is of this rank.
  ~PeerProcessEndpoint() override {
    if (!has_awaited_copies_) await_own_copies();
    for (Sent& end : sent_) end.theirs = {};
    for (Received& end : received_) end.theirs = {};
    opened_ = {};
    await_users();
  }

  int gpu() const { return gpu_; }

  Shift start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in, Queue const& queue) {
    return or_close([&] {
      require_open();
      Shift const shift{&new_end(sent_, numbers_.to_next(channel, hop)),
                        &new_end(received_, numbers_.from_next(channel, hop))};
      check<UnsupportedError>(!queue.is_captured(),
                              "a ring of GPUs of several processes cannot be captured in a graph; accepted: PeerRing");
      post(*shift.received, in, queue);
      post(*shift.sent, out, queue);
      serve();
      return shift;
    });
  }

  /// Returns when both messages have been submitted. Work that is put on the queue from then on begins after them.
  void complete(Shift const& shift, Queue const& queue) {
    or_close([&] {
      await(shift);
      order(shift, queue);
    });
    shift.sent->state = shift.received->state = End::idle;
    flight_record().advance();
  }

  void drop(Shift const&) noexcept { abandon("it dropped a pending transfer", rank_); }

  /// Returns when the work that is on the queue is done. The one wait of the host for a GPU. When it throws, no copy
  /// reads or writes memory of this rank; see abandon.
  void finish(Queue const& queue) {
    or_close([&] {
      await_end(queue);
      if (copies_are_over()) opened_.close_unused();
    });
  }

  /// Collective. Closes the memory of the others; when it returns, they have closed that of this rank.
  void close_memory() {
    or_close([&] {
      await_own_copies();
      opened_ = {};
    });
    all_gather({}, {});
  }

 private:
  static std::size_t places(int size) { return num_streams(size) * ProcessState::most_pending; }

  std::size_t index_of(Address const& address) const {
    Rank const peer = address.from == rank_ ? address.to : address.from;
    return stream_index(address.channel, peer) * ProcessState::most_pending +
           address.number % ProcessState::most_pending;
  }
  /// The end of this rank of a new message.
  template <class E>
  E& new_end(std::vector<E>& ends, Address const& address) {
    E& end = ends[index_of(address)];
    check<UnsupportedError>(end.state == End::idle, ProcessState::most_pending, " shifts to a rank are pending on the ",
                            name_of(address.channel), " channel; a ring of processes accepts no more");
    end.address = address;
    return end;
  }

  ProcessMessage& message(End const& end) const { return state_.message(end.address); }

  void post(Received& end, IncomingBytes in, Queue const& queue) {
    ProcessMessage& message = this->message(end);
    check<UnsupportedError>(in.size() <= ProcessMessage::most_runs, "a shift of ", in.size(),
                            " runs; a ring of processes accepts ", ProcessMessage::most_runs);
    if (!end.ready) {
      end.ready = cuda::detail::make_interprocess_event();
      end.waiting = cuda::detail::make_event();
      message.ready = cuda::detail::address_of(end.ready);
    }
    message.count = in.size();
    for (std::size_t p = 0; p < in.size(); ++p) message.runs[p] = run_of(in[p], end.address);
    message.expected_at = flight_record().position();
    record(end.ready, queue.stream);
    end.state = End::posted;
    end.waited = false;
    message.posted = end.address.number + 1;
  }
  static ProcessMessage::Run run_of(std::span<std::byte> bytes, Address const& address) {
    ProcessMessage::Run run{{}, bytes.data(), bytes.size()};
    if (!bytes.empty() && address.from != address.to) run.address = cuda::detail::address_of(bytes.data());
    return run;
  }

  void post(Sent& end, OutgoingBytes out, Queue const& queue) {
    if (!end.ready) {
      end.ready = cuda::detail::make_event();
      end.waiting = cuda::detail::make_event();
      end.copied = cuda::detail::make_interprocess_event();
      message(end).copied = cuda::detail::address_of(end.copied);
    }
    end.out.assign(out.begin(), out.end());
    end.sent_at = flight_record().position();
    record(end.ready, queue.stream);
    pending_.push_back(&end);
    end.state = End::posted;
    end.waited = false;
  }

  void serve() override {
    std::erase_if(pending_, [&](Sent* end) {
      if (message(*end).posted == end->address.number + 1) submit(*end);
      return end->state != End::posted;
    });
  }

  /// Submits the copy of a message of which both ends are posted, unless the ring is closed.
  void submit(Sent& end) {
    ProcessMessage& message = this->message(end);
    InProgress const in_progress(message.in_progress);
    if (state_.failure()) return;
    message.complaint = disagreement(message.in(), message.expected_at, end.out, end.sent_at);
    if (message.complaint.empty()) copy(end, message);
    end.state = message.complaint.empty() ? End::submitted : End::refused;
    message.delivered = end.address.number + 1;
  }

  /// Marks a message of which copies are being submitted. If the receiver closes the ring meanwhile, it waits for the
  /// end of that, or the sender finds the ring closed.
  struct InProgress {
    std::atomic<bool>& mark;
    explicit InProgress(std::atomic<bool>& of_message) : mark(of_message) { mark = true; }
    InProgress(InProgress const&) = delete;
    ~InProgress() { mark = false; }
  };

  void copy(Sent& end, ProcessMessage& message) {
    cuda::detail::CurrentDevice const current(gpu_);
    cudaStream_t const stream = copies_[static_cast<std::size_t>(end.address.channel)];
    places_.clear();
    for (auto const& run : message.in()) places_.push_back(place_of(run, end.address));
    cudaEvent_t const theirs = ready_of_receiver(end);
    cuda::detail::check(cudaStreamWaitEvent(stream, end.ready, 0), "cudaStreamWaitEvent");
    cuda::detail::check(cudaStreamWaitEvent(stream, theirs, 0), "cudaStreamWaitEvent");
    try {
      for (std::size_t p = 0; p < places_.size(); ++p)
        if (places_[p])
          cuda::detail::check(
              cudaMemcpyAsync(places_[p], end.out[p].data(), end.out[p].size(), cudaMemcpyDefault, stream),
              "cudaMemcpyAsync");
      record(end.copied, stream);
      message.has_copies = true;
    } catch (...) {  // copies of the first runs may have been submitted
      await_own_copies();
      throw;
    }
  }
  /// Where this process finds a run of the receiver; null if it is empty.
  std::byte* place_of(ProcessMessage::Run const& run, Address const& address) {
    if (run.bytes == 0) return nullptr;
    return address.to == rank_ ? run.data : opened_.open(run.address);
  }
  // A rank that sends to itself has both events.
  cudaEvent_t ready_of_receiver(Sent& end) {
    return end.address.to == rank_ ? received_[index_of(end.address)].ready : opened(end, message(end).ready);
  }
  cudaEvent_t copied_of_sender(Received& end) {
    return end.address.from == rank_ ? sent_[index_of(end.address)].copied : opened(end, message(end).copied);
  }
  static cudaEvent_t opened(End& end, cudaIpcEventHandle_t const& handle) {
    if (!end.theirs) end.theirs = cuda::detail::open_event(handle);
    return end.theirs;
  }

  /// Waits until both messages have been submitted. Throws CommunicationError if the runs that arrive are not those
  /// expected.
  void await(Shift const& shift) {
    Sent const& sent = *shift.sent;
    Received const& received = *shift.received;
    auto const what = ProcessWait::shift(received.address.channel);
    ProcessMessage const& arriving = message(received);
    wait(what,
         [&](Rank rank) { return rank == received.address.from && arriving.delivered != received.address.number + 1; });
    if (!arriving.complaint.empty()) {
      Rank const from = received.address.from;
      fail(RingFailure::received(rank_, arriving.complaint.view(), from, from));
    }
    wait(what, [&](Rank rank) { return rank == sent.address.to && sent.state == End::posted; });
  }

  void order(Shift const& shift, Queue const& queue) {
    Sent& sent = *shift.sent;
    Received& received = *shift.received;
    cudaEvent_t const arrived = copied_of_sender(received);
    record(received.waiting, queue.stream);
    cuda::detail::check(cudaStreamWaitEvent(queue.stream, arrived, 0), "cudaStreamWaitEvent");
    received.waited = true;
    if (sent.state == End::refused) return;  // it was not copied, and the receiver closes the ring
    record(sent.waiting, queue.stream);
    cuda::detail::check(cudaStreamWaitEvent(queue.stream, sent.copied, 0), "cudaStreamWaitEvent");
    sent.waited = true;
  }

  void await_end(Queue const& queue) {
    using namespace std::chrono_literals;
    record(finished_, queue.stream);
    PollingTimer timer(PollingTimer::Of::device);
    for (; !cuda::detail::is_reached(finished_); timer.pause()) {
      serve();
      require_open();
      if (!timer.exceeds(1ms)) continue;
      ProcessWait const what{ProcessWait::gpu, late_peer()};
      publish(what);
      if (what.is_for_peer() && timer.exceeds(50ms) && has_died(what.peer)) fail(loss_of(what.peer, what));
      if (timer.exceeds(timeout_)) fail(what.is_for_peer() ? report() : late_work(what));
    }
    publish({});
  }
  RingFailure late_work(ProcessWait const& what) const noexcept {
    return RingFailure::late(rank_, rank_, what.text().view(), timeout_);
  }

  /// The peer for whose end of a message a queue of this rank waits; unknown if none does.
  Rank late_peer() noexcept {
    for (Received& end : received_)
      if (waits(end, end.theirs)) return end.address.from;
    for (Sent& end : sent_)
      if (waits(end, end.copied) && !cuda::detail::is_over(end.theirs)) return end.address.to;
    return CommunicationError::unknown;
  }
  /// True if a queue has reached its wait for the copy of a message, which is not done.
  static bool waits(End& end, cudaEvent_t copied) noexcept {
    if (!end.waited || end.address.from == end.address.to) return false;
    end.waited = !cuda::detail::is_over(copied);
    return end.waited && cuda::detail::is_over(end.waiting);
  }

  bool copies_are_over() const noexcept {
    auto const is_over = [](auto const& stream) { return !stream || cuda::detail::is_idle(stream); };
    return std::all_of(copies_.begin(), copies_.end(), is_over);
  }
  /// Returns when this rank copies nothing, at the timeout at the latest.
  void await_own_copies() const noexcept {
    PollingTimer timer(PollingTimer::Of::device);
    while (!copies_are_over() && !timer.exceeds(timeout_)) timer.pause();
  }
  void await_copies() noexcept override {
    if (std::exchange(has_awaited_copies_, true)) return;
    PollingTimer timer(PollingTimer::Of::device);
    while ((!copies_are_over() || is_written()) && !timer.exceeds(timeout_)) timer.pause();
  }
  /// True while a rank that lives submits a copy to this one, or has one to do.
  bool is_written() noexcept {
    for (Received& end : received_) {
      if (!end.ready || end.address.from == rank_ || !state_.is_alive(end.address.from)) continue;
      ProcessMessage const& message = this->message(end);
      if (message.in_progress) return true;
      try {
        if (message.has_copies && !cuda::detail::is_over(copied_of_sender(end))) return true;
      } catch (std::exception const&) {  // the event cannot be opened: the sender has gone
      }
    }
    return false;
  }

  static void record(cudaEvent_t event, cudaStream_t stream) {
    cuda::detail::check(cudaEventRecord(event, stream), "cudaEventRecord");
  }

  int gpu_ = 0;
  MessageNumbers numbers_;
  std::vector<Sent> sent_;          ///< by index_of
  std::vector<Received> received_;  ///< by index_of
  std::vector<Sent*> pending_;      ///< those that are posted
  std::vector<std::byte*> places_;  ///< of the runs of a copy
  cuda::detail::OpenedMemory opened_;
  std::array<cuda::detail::Stream, num_channels> copies_;  ///< of what this rank sends
  cuda::detail::Event finished_;                           ///< the end of a call on its queue
  bool has_awaited_copies_ = false;
};

}  // namespace annulus::detail
