#pragma once
// State that the processes of a ring of GPUs share: plain data in the memory in which they meet.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "annulus/comm/message.hpp"
#include "annulus/comm/peer/meeting.hpp"
#include "annulus/core/cuda/interprocess.hpp"

namespace annulus::detail {

/// What a rank waits for. Zeros: nothing.
struct ProcessWait {
  enum What : std::int32_t { nothing, all_gather, gpu, first_channel };

  std::int32_t what = nothing;  ///< above gpu: first_channel + the channel of a shift
  std::int32_t peer = 0;        ///< unknown where work of its own GPU is awaited

  static ProcessWait shift(Channel channel) { return {first_channel + static_cast<std::int32_t>(channel), 0}; }

  bool is_for_peer() const { return what != nothing && peer != CommunicationError::unknown; }
  Awaited text() const noexcept {
    if (what == all_gather) return Awaited("all-gather");
    if (what < first_channel) return Awaited("work of its GPU");
    return Awaited(name_of(static_cast<Channel>(what - first_channel)), " shift");
  }
};

/// A rank as the others see it. Written by its own process alone.
struct alignas(64) ProcessRank {
  /// A piece of a contribution to an all-gather.
  struct Record {
    static constexpr std::size_t most_bytes = 4096;

    std::atomic<std::uint64_t> round;  ///< from 1
    std::uint64_t length;              ///< of the whole contribution
    std::array<std::byte, most_bytes> bytes;
  };

  std::atomic<ProcessWait> wait;
  std::atomic<bool> left;           ///< waits for it fail
  std::atomic<bool> uses_no_other;  ///< it has opened nothing of the others, and opens no more
  std::array<Record, 2> records;    ///< by parity of the round
  RingFailure failure;              ///< written before the ring is closed by this rank
  FlightRecord record;
};

/// A message, and those that use the same place before and after it. Its two ends write other members.
struct alignas(64) ProcessMessage {
  static constexpr std::size_t most_runs = 128;

  /// Bytes of the receiver, where the sender finds them.
  struct Run {
    cuda::detail::MemoryAddress address;  ///< for another process
    std::byte* data;                      ///< in the receiver's own
    std::uint64_t bytes;

    std::uint64_t size() const { return bytes; }
  };

  // By the sender.
  cudaIpcEventHandle_t copied;           ///< on its copy stream: the runs are written
  std::atomic<std::uint64_t> delivered;  ///< 1 + the number of the last message that was copied, or has a complaint
  std::atomic<bool> in_progress;         ///< it submits a copy
  std::atomic<bool> has_copies;          ///< it has recorded `copied`
  Complaint complaint;

  // By the receiver.
  cudaIpcEventHandle_t ready;         ///< where the shift was started: the runs may be overwritten
  std::atomic<std::uint64_t> posted;  ///< 1 + the number of the last message whose runs are set
  CallPosition expected_at;
  std::uint64_t count;
  std::array<Run, most_runs> runs;  // last: most messages touch one page of memory

  std::span<Run const> in() const { return {runs.data(), static_cast<std::size_t>(count)}; }
};

/// The shared state, of which all is zero at first: what a rank has not written yet says that it has done nothing.
class ProcessState {
 public:
  /// Messages of a channel that may be pending between two ranks.
  static constexpr std::size_t most_pending = 8;

  /// Returns when all ranks have come; throws as MeetingMemory does.
  explicit ProcessState(PeerMeeting const& meeting)
      : size_(meeting.size), memory_(meeting, messages_begin(size_) + num_messages(size_) * sizeof(ProcessMessage)) {
    std::construct_at(&of(meeting.rank).record);  // for its first time
  }

  int size() const { return size_; }
  ProcessRank& of(Rank rank) const { return at<ProcessRank>(line)[rank]; }
  ProcessMessage& message(Address const& address) const {
    std::size_t const stream =
        stream_index(address.channel, address.to) + static_cast<std::size_t>(address.from) * num_streams(size_);
    return at<ProcessMessage>(messages_begin(size_))[stream * most_pending + address.number % most_pending];
  }
  bool is_alive(Rank rank) const { return memory_.is_alive(rank); }

  /// The failure that closed the ring; null while it is open.
  RingFailure const* failure() const {
    int const closer = closer_and_one();
    return closer == 0 ? nullptr : &of(closer - 1).failure;
  }
  /// Closes the ring on behalf of a rank, unless it is closed.
  void close(Rank rank, RingFailure const& failure) noexcept {
    int open = 0;
    if (closer_and_one() != 0) return;
    of(rank).failure = failure;
    closer_and_one().compare_exchange_strong(open, rank + 1);
  }

 private:
  static constexpr std::size_t line = 64;

  static std::size_t messages_begin(int size) { return line + static_cast<std::size_t>(size) * sizeof(ProcessRank); }
  static std::size_t num_messages(int size) {
    return num_streams(size) * static_cast<std::size_t>(size) * most_pending;
  }

  template <class T>
  T* at(std::size_t offset) const {
    static_assert(std::atomic<ProcessWait>::is_always_lock_free && std::atomic<std::uint64_t>::is_always_lock_free);
    return reinterpret_cast<T*>(memory_.data() + offset);
  }
  std::atomic<int>& closer_and_one() const { return *at<std::atomic<int>>(0); }

  int size_;
  MeetingMemory memory_;
};

}  // namespace annulus::detail
