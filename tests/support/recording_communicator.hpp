#pragma once
// Communicator wrapper that logs the exchanges of one rank, in order and with their bytes.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "annulus/comm/communicator.hpp"

namespace annulus_test {

/// One event in the log of a recorded communicator.
struct RecordedEvent {
  enum Kind {
    started,    ///< start_shift
    finished,   ///< wait() of that shift has returned
    failed,     ///< wait() of that shift has thrown
    dropped,    ///< the transfer was destroyed without wait()
    gathered,   ///< all_gather
    abandoned,  ///< abandon
    marked,     ///< RecordingCommunicator::mark, by the test
  };
  Kind kind;
  int shift = -1;  ///< sequence number of start_shift on this rank, over all channels, from 0; -1 for other events
  annulus::Channel channel{};
  int hop = 0;
  std::size_t bytes_sent = 0;
  std::size_t bytes_received = 0;
  std::size_t runs = 0;
  std::string text{};

  bool operator==(RecordedEvent const&) const = default;
};

/// Wraps the communicator of one rank, which must outlive it; models Communicator without changing the behaviour.
template <annulus::Communicator C>
class RecordingCommunicator {
 public:
  using memory_space = typename C::memory_space;

  class Transfer {
   public:
    Transfer(Transfer&&) noexcept = default;
    Transfer& operator=(Transfer&& other) noexcept {
      std::swap(inner_, other.inner_);
      std::swap(log_, other.log_);
      std::swap(event_, other.event_);
      other.drop();
      return *this;
    }
    ~Transfer() { drop(); }

    /// queue: that of the memory space, unless it is empty.
    template <class... Queue>
    void wait(Queue const&... queue) {
      try {
        inner_.wait(queue...);
      } catch (...) {
        end(RecordedEvent::failed);
        throw;
      }
      end(RecordedEvent::finished);
    }

   private:
    friend class RecordingCommunicator;
    using Log = std::shared_ptr<std::vector<RecordedEvent>>;
    Transfer(annulus::TransferOf<C> inner, Log log, RecordedEvent event)
        : inner_(std::move(inner)), log_(std::move(log)), event_(std::move(event)) {}

    void drop() { end(RecordedEvent::dropped); }

    void end(RecordedEvent::Kind kind) {
      if (!log_) return;
      event_.kind = kind;
      log_->push_back(event_);
      log_ = nullptr;
    }

    annulus::TransferOf<C> inner_;
    Log log_;
    RecordedEvent event_;
  };

  explicit RecordingCommunicator(C& inner) : inner_(&inner) {}

  annulus::Rank rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }

  template <class... Queue>
  Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in,
                       Queue const&... queue) {
    auto inner = inner_->start_shift(channel, hop, out, in, queue...);
    RecordedEvent const event{RecordedEvent::started, shifts_++, channel, hop, total(out), total(in), out.size()};
    log_->push_back(event);
    return {std::move(inner), log_, event};
  }

  void finish(annulus::QueueOf<memory_space> const& queue) { annulus::detail::finish_queue(*inner_, queue); }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    log_->push_back({RecordedEvent::gathered, -1, {}, 0, mine.size(), all.size(), 1});
    inner_->all_gather(mine, all);
  }

  void abandon(std::string const& reason) noexcept {
    log_->push_back({RecordedEvent::abandoned, -1, {}, 0, 0, 0, 0, reason});
    inner_->abandon(reason);
  }

  /// Adds a mark to the log, so that a test can separate the events before it from those after it.
  void mark(std::string const& text) { log_->push_back({RecordedEvent::marked, -1, {}, 0, 0, 0, 0, text}); }

  std::vector<RecordedEvent> const& events() const { return *log_; }

  int count(RecordedEvent::Kind kind) const {
    return static_cast<int>(std::count_if(log_->begin(), log_->end(), [&](auto const& e) { return e.kind == kind; }));
  }

  int shifts(annulus::Channel channel) const {
    return static_cast<int>(std::count_if(log_->begin(), log_->end(), [&](auto const& event) {
      return event.kind == RecordedEvent::started && event.channel == channel;
    }));
  }

  /// Bytes that this rank passed to start_shift on a channel.
  std::size_t bytes_sent(annulus::Channel channel) const {
    std::size_t bytes = 0;
    for (auto const& event : *log_)
      if (event.kind == RecordedEvent::started && event.channel == channel) bytes += event.bytes_sent;
    return bytes;
  }

  std::vector<int> hops(annulus::Channel channel) const {
    std::vector<int> hops;
    for (auto const& event : *log_)
      if (event.kind == RecordedEvent::started && event.channel == channel) hops.push_back(event.hop);
    return hops;
  }

  /// Number of shifts of a channel that have started but not ended.
  int pending(annulus::Channel channel) const {
    int open = 0;
    for (auto const& event : *log_) open += event.channel == channel ? change_of(event.kind) : 0;
    return open;
  }

  /// Largest number of shifts of a channel that were pending at once.
  int most_pending(annulus::Channel channel) const {
    int open = 0, most = 0;
    for (auto const& event : *log_) {
      open += event.channel == channel ? change_of(event.kind) : 0;
      most = std::max(most, open);
    }
    return most;
  }

 private:
  template <class Runs>
  static std::size_t total(Runs runs) {
    std::size_t bytes = 0;
    for (auto const& run : runs) bytes += run.size();
    return bytes;
  }

  static int change_of(RecordedEvent::Kind kind) {
    if (kind == RecordedEvent::started) return 1;
    return kind == RecordedEvent::finished || kind == RecordedEvent::failed || kind == RecordedEvent::dropped ? -1 : 0;
  }

  C* inner_;
  std::shared_ptr<std::vector<RecordedEvent>> log_ = std::make_shared<std::vector<RecordedEvent>>();
  int shifts_ = 0;
};

}  // namespace annulus_test
