#pragma once
// Memory in which ranks that are processes of one node meet, under a name, and what tells that one of them has died.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "annulus/comm/communicator.hpp"
#include "annulus/comm/polling_timer.hpp"
#include "annulus/comm/ring_failure.hpp"
#include "annulus/core/error.hpp"

namespace annulus {

/// Where the processes of a ring find each other. All give the same name, size and timeout, and each its own rank.
struct PeerMeeting {
  std::string
      name;       ///< letters, digits, '-' and '_': new for each ring of the node; of one process, sent to the others
  Rank rank = 0;  ///< of this process
  int size = 1;   ///< number of ranks
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  ///< the longest wait for another rank
};

namespace detail {

/// Memory shared by the ranks of a meeting. The name is gone when the constructor has returned, or thrown, on one rank
/// that was not refused. A process belongs to a meeting as one rank, and holds a lock on a byte of the memory that the
/// system gives back when the process ends: a rank without its lock has died, or has left.
class MeetingMemory {
 public:
  /// Returns when all ranks have come. The `bytes` at data() are zero until a rank writes them. Throws UnsupportedError
  /// if a field of `meeting` is out of range, CommunicationError if a rank dies, does not come in time or has come as
  /// another process, and Error if the system has no such memory.
  MeetingMemory(PeerMeeting const& meeting, std::size_t bytes)
      : rank_(meeting.rank), size_(meeting.size), bytes_(header_bytes(meeting) + bytes) {
    // Ranks that differ in the size do not meet.
    std::string const name = message_of("/annulus-", meeting.name, "-", meeting.size);
    file_.descriptor = ::shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    check<Error>(file_.descriptor >= 0, "PeerMeeting: the system refuses the shared memory ", name);
    if (!set_lock())
      RingFailure::abandoned(rank_, "another process has come to the meeting as this rank", rank_).raise(rank_);
    Name const unlinked{name};
    // All ranks set the same length, so memory that is in use does not change.
    bool const sized = ::ftruncate(file_.descriptor, static_cast<off_t>(bytes_)) == 0;
    void* const data =
        sized ? ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_.descriptor, 0) : MAP_FAILED;
    check<Error>(data != MAP_FAILED, "PeerMeeting: the system has no ", bytes_, " bytes of shared memory");
    mapping_ = Mapping{data, bytes_};
    state(rank_) = has_come;
    await_all(meeting.timeout);
  }

  std::byte* data() const { return static_cast<std::byte*>(mapping_.data) + line * static_cast<std::size_t>(size_); }

  /// False if the process of a rank that has come has died or has left the meeting.
  bool is_alive(Rank rank) const {
    struct flock lock = lock_of(rank);
    return rank == rank_ || ::fcntl(file_.descriptor, F_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
  }

 private:
  static constexpr std::size_t line = 64;
  static constexpr std::uint32_t absent = 0, has_come = 1, gave_up = 2;

  struct File {
    int descriptor = -1;
    File() = default;
    File(File const&) = delete;
    ~File() {
      if (descriptor >= 0) ::close(descriptor);  // with the lock
    }
  };
  struct Mapping {
    void* data = nullptr;
    std::size_t bytes = 0;
    Mapping() = default;
    Mapping(void* first, std::size_t size) : data(first), bytes(size) {}
    Mapping& operator=(Mapping&& other) noexcept {
      std::swap(data, other.data);
      std::swap(bytes, other.bytes);
      return *this;
    }
    ~Mapping() {
      if (data) ::munmap(data, bytes);
    }
  };
  /// Unlinked at the end of the meeting, by all: each finds its own name, or none.
  struct Name {
    std::string const& name;
    ~Name() { ::shm_unlink(name.c_str()); }
  };

  /// Bytes before data(), of a meeting that is one.
  static std::size_t header_bytes(PeerMeeting const& meeting) {
    constexpr auto letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    check<UnsupportedError>(!meeting.name.empty() && meeting.name.size() <= 200 &&
                                meeting.name.find_first_not_of(letters) == std::string::npos,
                            "PeerMeeting: name is \"", meeting.name,
                            "\"; 1 to 200 letters, digits, '-' and '_' are accepted");
    check<UnsupportedError>(0 <= meeting.rank && meeting.rank < meeting.size, "PeerMeeting: rank is ", meeting.rank,
                            " of ", meeting.size, "; ranks are counted from 0");
    check<UnsupportedError>(meeting.timeout.count() >= 1, "PeerMeeting: timeout is ", meeting.timeout.count(),
                            " ms; at least 1 ms is accepted");
    return line * static_cast<std::size_t>(meeting.size);
  }

  static struct flock lock_of(Rank rank) {
    struct flock lock {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    lock.l_start = rank;
    lock.l_len = 1;
    return lock;
  }
  bool set_lock() const {
    struct flock lock = lock_of(rank_);
    return ::fcntl(file_.descriptor, F_SETLK, &lock) == 0;
  }

  /// absent, has_come, or gave_up + the rank that it has waited for in vain.
  std::atomic<std::uint32_t>& state(Rank rank) const {
    auto* const first = static_cast<std::byte*>(mapping_.data) + line * static_cast<std::size_t>(rank);
    return *reinterpret_cast<std::atomic<std::uint32_t>*>(first);
  }

  void await_all(std::chrono::milliseconds timeout) const {
    PollingTimer timer(PollingTimer::Of::shared_memory);
    for (Rank rank = 0; rank < size_; ++rank)
      for (; state(rank) == absent; timer.pause()) {
        require_all_alive(rank);
        if (!timer.exceeds(timeout)) continue;
        state(rank_) = gave_up + static_cast<std::uint32_t>(rank);
        RingFailure::late(rank_, rank, "meeting", timeout).raise(rank_);
      }
  }

  /// Throws if a rank has come and gone while `missing` has not come.
  void require_all_alive(Rank missing) const {
    for (Rank rank = 0; rank < size_; ++rank) {
      std::uint32_t const seen = state(rank);
      if (seen >= gave_up)
        RingFailure::abandoned(rank, "a rank has not come to the meeting", static_cast<Rank>(seen - gave_up))
            .raise(rank_);
      // A rank may also go because all have come meanwhile.
      if (seen == has_come && !is_alive(rank) && state(missing) == absent)
        RingFailure::returned(rank_, rank, "meeting").raise(rank_);
    }
  }

  Rank rank_;
  int size_;
  std::size_t bytes_;
  File file_;
  Mapping mapping_;
};

}  // namespace detail

}  // namespace annulus
