#pragma once
// Zero-copy exchange in foreign memory: windows that open, show their bytes, are released and are reclaimed at places of
// a queue.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "support/foreign_space.hpp"

namespace annulus_test {

/// A window, as its owner and its reader see it.
struct ForeignWindowState {
  std::shared_ptr<ForeignAllocation> buffer;  ///< of the owner; null if all runs are empty
  std::vector<std::span<std::byte const>> runs;
  std::vector<std::vector<std::byte>> shown;  ///< the bytes when the owner's queue reached open_window
  int number = 0;                             ///< among all that the owner has opened
  bool is_shown = false, is_released = false;

  /// Work of the owner: false if it has written bytes that are shown.
  bool is_unchanged() const {
    for (std::size_t p = 0; p < shown.size(); ++p)
      if (!std::equal(shown[p].begin(), shown[p].end(), runs[p].begin())) return false;
    return true;
  }
};

/// The windows of all ranks of a ring. Thread-safe.
class ForeignWindowBoard {
 public:
  using State = std::shared_ptr<ForeignWindowState>;
  /// Owner, reader, channel, and number among those.
  using Key = std::tuple<annulus::Rank, annulus::Rank, annulus::Channel, int>;

  void post(Key const& key, State const& state) {
    std::lock_guard const lock(mutex_);
    posted_.emplace(key, state);
    changed_.notify_all();
  }
  /// The window that its owner has opened; waits for that.
  State take(Key const& key) {
    std::unique_lock lock(mutex_);
    wait(lock, [&] { return posted_.contains(key); });
    return posted_.extract(key).mapped();
  }

  void change(bool& flag) {
    std::lock_guard const lock(mutex_);
    flag = true;
    changed_.notify_all();
  }
  void wait_for(bool const& flag) {
    std::unique_lock lock(mutex_);
    wait(lock, [&] { return flag; });
  }
  void close() noexcept {
    std::lock_guard const lock(mutex_);
    closed_ = true;
    changed_.notify_all();
  }

 private:
  template <class Condition>
  void wait(std::unique_lock<std::mutex>& lock, Condition condition) {
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return closed_ || condition(); });
    if (!condition()) throw annulus::CommunicationError("a window is late, or its ring is closed");
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, State> posted_;
  bool closed_ = false;
};

/// A window that a rank reads: a copy of the bytes, which are 0xFF before they are shown and once it is released.
class ForeignReading {
 public:
  ForeignReading(std::shared_ptr<ForeignWindowBoard> board, ForeignWindowBoard::State state)
      : board_(std::move(board)), state_(std::move(state)) {
    for (auto const& run : state_->runs) copies_.emplace_back(run.size());
    for (ForeignAllocation const& copy : copies_) runs_.emplace_back(copy.bytes());
  }

  annulus::WindowRuns runs() const { return runs_; }
  /// Work on the reader's queue.
  void show() {
    board_->wait_for(state_->is_shown);
    for (std::size_t p = 0; p < copies_.size(); ++p)
      std::copy(state_->shown[p].begin(), state_->shown[p].end(), copies_[p].data());
    is_shown_ = true;
  }
  /// Work on the reader's queue.
  void release() {
    if (!is_shown_) throw MisusedTransfer("a window was released before its bytes were shown");
    for (std::size_t p = 0; p < copies_.size(); ++p) {
      auto const copy = copies_[p].bytes();
      if (!std::equal(copy.begin(), copy.end(), state_->shown[p].begin(), state_->shown[p].end()))
        throw MisusedTransfer("bytes of a window were not those shown when it was released");
      std::fill(copy.begin(), copy.end(), std::byte{0xFF});
    }
    is_released_ = true;
    board_->change(state_->is_released);
  }
  bool is_released() const { return is_released_; }

 private:
  std::shared_ptr<ForeignWindowBoard> board_;
  ForeignWindowBoard::State state_;
  std::vector<ForeignAllocation> copies_;
  std::vector<std::span<std::byte const>> runs_;
  bool is_shown_ = false, is_released_ = false;
};

/// Foreign ring whose ranks read each other's buffers through windows. Reported as MisusedTransfer:
///  * the owner writes bytes that are shown before it has reclaimed them, or the reader writes them;
///  * a window is not released at the end of a call, or before its bytes are shown.
template <annulus::Communicator Inner = annulus::SimulatedRing>
class ForeignWindowRing : public ForeignRing<Inner> {
  using State = ForeignWindowBoard::State;

 public:
  class Buffer {
   public:
    explicit Buffer(std::shared_ptr<ForeignAllocation> memory) : memory_(std::move(memory)) {}
    std::byte* data() const { return memory_->data(); }
    annulus::Index size() const { return static_cast<annulus::Index>(memory_->size()); }

   private:
    std::shared_ptr<ForeignAllocation> memory_;
  };

  class Window {
   public:
    Window(Window&& other) noexcept
        : ring_(std::exchange(other.ring_, nullptr)),
          key_(other.key_),
          reading_(std::move(other.reading_)),
          queue_(other.queue_) {}
    Window& operator=(Window other) noexcept {
      std::swap(ring_, other.ring_);
      std::swap(key_, other.key_);
      std::swap(reading_, other.reading_);
      std::swap(queue_, other.queue_);
      return *this;
    }
    ~Window() {
      if (reading_) release(queue_);
      if (ring_) ring_->abandon("it dropped a pending window");
    }

    void wait(ForeignQueue const& queue) {
      if (!ring_) return;
      reading_ = std::exchange(ring_, nullptr)->read(key_);
      queue_ = queue;
      queue.put([reading = reading_] { reading->show(); });
    }
    annulus::WindowRuns runs() const { return reading_->runs(); }
    void release(ForeignQueue const& queue) {
      if (!reading_) throw MisusedTransfer("a window was released that was not waited for");
      queue.put([reading = std::exchange(reading_, nullptr)] { reading->release(); });
    }

   private:
    friend class ForeignWindowRing;
    Window(ForeignWindowRing* ring, ForeignWindowBoard::Key const& key) : ring_(ring), key_(key) {}

    ForeignWindowRing* ring_;  ///< null unless it is pending
    ForeignWindowBoard::Key key_;
    std::shared_ptr<ForeignReading> reading_;  ///< between wait and release
    ForeignQueue queue_;                       ///< of wait
  };

  ForeignWindowRing(Inner& inner, std::shared_ptr<ForeignWindowBoard> board, ForeignRingOptions const& options = {})
      : ForeignRing<Inner>(inner, options), board_(std::move(board)) {}

  bool shares_memory() const { return true; }
  Buffer allocate(annulus::Index bytes) {
    auto const memory = std::make_shared<ForeignAllocation>(static_cast<std::size_t>(bytes));
    buffers_.push_back(memory);
    return Buffer(memory);
  }

  Window open_window(annulus::Channel channel, int hop, annulus::OutgoingBytes out, ForeignQueue const& queue) {
    annulus::Rank const rank = this->rank(), next = annulus::ring_neighbour(rank, hop, this->size()),
                        sender = annulus::ring_neighbour(rank, -hop, this->size());
    auto const state = std::make_shared<ForeignWindowState>();
    state->buffer = annulus::detail::buffer_of_window(out, [&](auto const& run) { return buffer_of(run); });
    state->runs.assign(out.begin(), out.end());
    state->number = opens_++;
    board_->post({rank, next, channel, opened_[{next, channel}]++}, state);
    queue.put([this, state] { show(state); });
    return Window(this, {sender, rank, channel, awaited_[{sender, channel}]++});
  }

  void reclaim(std::byte const* first, ForeignQueue const& queue) {
    queue.put([this, first, end = opens_] {
      auto const on_buffer = [&](State const& state) { return state->buffer->data() == first && state->number < end; };
      for (State const& state : shown_)
        if (on_buffer(state)) board_->wait_for(state->is_released);
      require_unchanged();
      std::erase_if(shown_, on_buffer);
    });
  }

  void finish(ForeignQueue const& queue) {
    queue.put([this] { require_end(); });
    ForeignRing<Inner>::finish(queue);
    readings_.clear();
  }

  void abandon(std::string const& reason) noexcept {
    ForeignRing<Inner>::abandon(reason);
    board_->close();
  }

 private:
  std::shared_ptr<ForeignReading> read(ForeignWindowBoard::Key const& key) {
    return readings_.emplace_back(std::make_shared<ForeignReading>(board_, board_->take(key)));
  }
  std::shared_ptr<ForeignAllocation> buffer_of(std::span<std::byte const> run) const {
    for (auto const& entry : buffers_)
      if (auto buffer = entry.lock())
        if (buffer->data() <= run.data() && run.data() + run.size() <= buffer->data() + buffer->size()) return buffer;
    return nullptr;
  }

  void show(State const& state) {
    require_unchanged();
    for (auto const& run : state->runs) state->shown.emplace_back(run.begin(), run.end());
    if (state->buffer) shown_.push_back(state);
    board_->change(state->is_shown);
  }
  void require_unchanged() const {
    for (State const& state : shown_)
      if (!state->is_unchanged())
        throw MisusedTransfer("bytes of a window were overwritten before they were reclaimed");
  }
  void require_end() const {
    require_unchanged();
    for (auto const& reading : readings_)
      if (!reading->is_released()) throw MisusedTransfer("a window was not released");
  }

  std::shared_ptr<ForeignWindowBoard> board_;
  std::vector<std::weak_ptr<ForeignAllocation>> buffers_;
  std::map<std::pair<annulus::Rank, annulus::Channel>, int> opened_, awaited_;
  int opens_ = 0;
  std::vector<State> shown_;                               ///< and not reclaimed; used by the thread of the queue
  std::vector<std::shared_ptr<ForeignReading>> readings_;  ///< of a call, kept so that late reads see 0xFF
};

static_assert(annulus::ZeroCopyCommunicator<ForeignWindowRing<>>);

}  // namespace annulus_test
