#pragma once
// Shifts between ranks that are threads: the rank that posts the second end of a message copies it, at once or as work
// on a queue.

#include <chrono>
#include <cstddef>
#include <exception>
#include <mutex>
#include <utility>

#include "annulus/comm/polling_timer.hpp"
#include "annulus/comm/threads/endpoint.hpp"
#include "annulus/comm/threads/message.hpp"

namespace annulus::detail {

/// A shift has a queue, or none where bytes are copied at once. `Endpoint` derives from this class and has
///  * make_message(address): an object for messages between two ranks; called with the lock held;
///  * post_ends(shift, queue...): notes the places of both ends on the queue;
///  * copy(message), which copies the runs of a message of which both ends are posted, or submits the copies;
///  * order(shift, queue...): work put on the queue from now on begins when both messages have been copied;
///  * await_copy(message, timer): returns when nothing that copy() has submitted reads or writes its runs, or the
///    timer exceeds the timeout.
/// These, except make_message, are called without the lock. post() copies while the message is `copying`: no other
/// thread touches it then.
template <class Endpoint, class Message>
class MessageEndpoint : public ThreadEndpoint {
 public:
  /// The two messages of this rank's shift.
  struct Shift {
    Message *sent, *received;
  };

  MessageEndpoint(ThreadRing& ring, Rank rank, int size) : ThreadEndpoint(ring, rank), numbers_(rank, size) {}

  template <class... Queue>
  Shift start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in, Queue const&... queue) {
    return or_close([&] { return start(channel, hop, out, in, queue...); });
  }

  /// Returns when both messages have been copied, or will have been before later work on the queue.
  template <class... Queue>
  void complete(Shift const& shift, Queue const&... queue) {
    std::unique_lock lock(ring_.mutex);
    try {
      await(lock, shift);
      if constexpr (sizeof...(Queue) > 0) {
        lock.unlock();
        or_close([&] { self().order(shift, queue...); });
        lock.lock();
      }
    } catch (...) {
      withdraw(lock, shift);
      throw;
    }
    --shift.sent->holders;
    --shift.received->holders;
    record_.advance();
  }

  void drop(Shift const& shift) noexcept {
    ThreadEndpoint::abandon("it dropped a pending transfer", rank_);
    std::unique_lock lock(ring_.mutex);
    withdraw(lock, shift);
  }

 protected:
  Endpoint& of(Rank rank) const { return static_cast<Endpoint&>(ThreadEndpoint::of(rank)); }
  Mailbox<Message> const& mailbox() const { return messages_; }

  /// Returns when no thread copies the message and nothing that was submitted touches its runs. Called with the lock.
  void quiesce(std::unique_lock<std::mutex>& lock, Message const& message, PollingTimer const& timer) noexcept {
    changed_.wait(lock, [&] { return message.state != Message::copying; });
    lock.unlock();
    self().await_copy(message, timer);
    lock.lock();
  }

 private:
  /// start_shift(), in a ring that is closed if this fails.
  template <class... Queue>
  Shift start(Channel channel, int hop, OutgoingBytes out, IncomingBytes in, Queue const&... queue) {
    Address const sending = numbers_.to_next(channel, hop), receiving = numbers_.from_next(channel, hop);
    std::unique_lock lock(ring_.mutex);
    require_open();
    Shift const shift{&hold(sending), &hold(receiving)};
    try {
      shift.sent->out.assign(out.begin(), out.end());
      shift.sent->sent_at = record_.position();
      shift.received->in.assign(in.begin(), in.end());
      shift.received->expected_at = record_.position();
      if constexpr (sizeof...(Queue) > 0) {
        lock.unlock();
        self().post_ends(shift, queue...);
        lock.lock();
      }
      post(lock, *shift.sent);
      post(lock, *shift.received);
    } catch (...) {
      withdraw(lock, shift);
      throw;
    }
    return shift;
  }

  Endpoint& self() { return static_cast<Endpoint&>(*this); }

  Message& hold(Address const& address) {
    return of(address.to).messages_.hold(address, [&] { return self().make_message(address); });
  }

  /// Waits until both ends of both messages are posted and copied. Throws CommunicationError if the runs that arrive
  /// are not those expected.
  void await(std::unique_lock<std::mutex>& lock, Shift const& shift) {
    Message const &sent = *shift.sent, &received = *shift.received;
    Awaited const what(name_of(received.address.channel), " shift");
    Rank const from = received.address.from, to = sent.address.to;
    auto const lacks_arrival = [&](Rank rank) { return rank == from && received.state != Message::delivered; };
    auto const lacks_reader = [&](Rank rank) { return rank == to && sent.state != Message::delivered; };
    wait(lock, what, lacks_arrival);
    if (!received.complaint.empty()) fail(received.complaint.view(), from);
    wait(lock, what, lacks_reader);
  }

  /// Notes that an end of the message is posted, and copies the message if both are.
  void post(std::unique_lock<std::mutex>& lock, Message& message) {
    if (++message.posted < 2 || message.withdrawn || message.state != Message::awaited) return;
    require_open();
    message.state = Message::copying;
    lock.unlock();
    std::exception_ptr failure;
    if (message.agrees()) try {
        self().copy(message);
      } catch (...) {
        failure = std::current_exception();
      }
    lock.lock();
    message.state = failure ? Message::awaited : Message::delivered;
    of(message.address.from).changed_.notify_all();
    of(message.address.to).changed_.notify_all();
    if (failure) std::rethrow_exception(failure);
  }

  /// Withdraws an unfinished shift: afterwards no rank reads or writes its bytes. Takes the lock, if it is not held.
  void withdraw(std::unique_lock<std::mutex>& lock, Shift const& shift) noexcept {
    if (!lock) lock.lock();
    PollingTimer const timer(PollingTimer::Of::device);
    for (Message* message : {shift.sent, shift.received}) {
      message->withdrawn = true;
      quiesce(lock, *message, timer);
      --message->holders;
    }
  }

  MessageNumbers numbers_;     ///< used by this rank's thread alone
  Mailbox<Message> messages_;  ///< guarded by the lock
};

}  // namespace annulus::detail
