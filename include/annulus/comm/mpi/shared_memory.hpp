#pragma once
// What the ranks of a ring share each other where all of them share memory.
//
// Each rank has a board, on which it pins up its windows for the others, and segments, in which shared bytes lie. Both are
// mapped by the readers. A segment counts the windows of each reader that are not given back.

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "annulus/comm/zero_copy.hpp"
#include "annulus/comm/mpi/shared_mapping.hpp"
#include "annulus/core/check.hpp"

namespace annulus::detail {

/// Which rows: number `number` of a channel from `owner` to this rank, asked for at `position`.
struct WindowNumber {
  Rank owner = 0;
  Channel channel{};
  std::uint64_t number = 0;
  CallPosition position{};
};

/// The bytes of a window that this rank has taken. They stay mapped as long as it lives.
struct AttachedWindow {
  std::array<std::span<std::byte const>, max_window_runs> runs;
  std::size_t count = 0;
  CallPosition position{};  ///< of the owner when it shared them
  std::shared_ptr<SharedMapping const> segment;
  std::atomic<std::uint32_t>* readers = nullptr;
};

class MpiSharedMemory {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
                "annulus: atomics that other processes see must not need a lock of this one");

 public:
  MpiSharedMemory(Rank rank, int size, std::uint64_t key)
      : rank_(rank),
        size_(size),
        key_(key),
        table_(SharedMapping::make(sizeof(std::uint64_t) * places_in_line +
                                   sizeof(Notice) * channels * max_open_windows * static_cast<std::size_t>(size))),
        shared_(channels * static_cast<std::size_t>(size), 0),
        windows_(shared_) {
    if (table_) *reinterpret_cast<std::uint64_t*>(table_.data()) = key_;
  }

  MpiSharedMemory(MpiSharedMemory const&) = delete;
  MpiSharedMemory& operator=(MpiSharedMemory const&) = delete;
  ~MpiSharedMemory() {
    for (auto const& segment : segments_) segment->header().retired.store(1, std::memory_order_release);
  }

  /// Where the others find this rank's board; 0 bytes: there is none.
  MappingAddress address() const { return table_ ? table_.address() : MappingAddress{}; }

  /// Maps the boards of all ranks, which have these addresses and keys. The first one that cannot be reached, if any.
  std::optional<Rank> open(std::span<MappingAddress const> addresses, std::span<std::uint64_t const> keys) {
    for (Rank rank = 0; rank < size_; ++rank) {
      auto const r = static_cast<std::size_t>(rank);
      SharedMapping board = SharedMapping::open(addresses[r]);
      if (!board || *reinterpret_cast<std::uint64_t const*>(board.data()) != keys[r]) return rank;
      tables_.push_back(std::move(board));
    }
    return std::nullopt;
  }

  /// Memory to share from; null for no bytes. Throws std::bad_alloc.
  std::byte* allocate(Index bytes) {
    if (bytes == 0) return nullptr;
    auto const wanted = static_cast<std::uint64_t>(bytes);
    for (auto const& segment : segments_)
      if (!segment->used && !reader_of(*segment) && segment->bytes >= wanted && segment->bytes / 2 <= wanted) {
        segment->used = true;
        return segment->first;
      }
    drop_unused();
    std::uint64_t const header_bytes = header_bytes_of(size_), whole = header_bytes + wanted;
    auto segment = std::make_unique<OwnMapping>(OwnMapping{SharedMapping::make(whole), nullptr, wanted, true});
    if (!segment->memory) throw std::bad_alloc();
    segment->header().key = key_ + ++made_;
    segment->key = key_ + made_;
    segment->first = segment->memory.data() + header_bytes;
    return segments_.emplace_back(std::move(segment))->first;
  }

  /// The buffer at `first` is no longer wanted. What is shared stays until it is given back.
  void free(std::byte* first) noexcept {
    if (OwnMapping* const segment = segment_of(first)) segment->used = false;
    if (!keeps_spare_) drop_unused();
  }

  /// No buffer will be asked for any more.
  void keep_no_spare() noexcept {
    keeps_spare_ = false;
    drop_unused();
  }

  /// Pins up a window.
  void share(Channel channel, Rank to, OutgoingBytes out, CallPosition const& position) {
    check<CommunicationError>(out.size() <= max_window_runs, "a window of ", out.size(), " runs; at most ", max_window_runs,
                              " are accepted");
    std::uint64_t& number = shared_[line_of(channel, to)];
    Notice& notice = notice_on(table_, channel, to, number);
    check<CommunicationError>(
        notice.taken.load(std::memory_order_acquire) == notice.pinned.load(std::memory_order_relaxed), "more than ",
        max_open_windows, " windows under way to rank ", to);
    OwnMapping* segment = nullptr;
    for (std::size_t p = 0; p < out.size(); ++p) {
      notice.runs[p] = {0, out[p].size()};
      if (out[p].empty()) continue;
      OwnMapping* const found = segment_of(out[p].data());
      check<CommunicationError>(
          found && (!segment || segment == found) && out[p].data() + out[p].size() <= found->first + found->bytes,
          "run ", p, " of a window does not lie within one buffer of the ring");
      segment = found;
      notice.runs[p].offset = static_cast<std::uint64_t>(out[p].data() - segment->memory.data());
    }
    notice.count = out.size();
    notice.position = position;
    notice.segment = segment ? segment->memory.address() : MappingAddress{};
    notice.key = segment ? segment->key : 0;
    if (segment) readers_of(segment->memory.data(), to)->fetch_add(1, std::memory_order_relaxed);
    notice.pinned.store(++number, std::memory_order_release);
  }

  WindowNumber next_window_from(Rank owner, Channel channel, CallPosition const& position) {
    return {owner, channel, windows_[line_of(channel, owner)]++, position};
  }

  bool is_open(WindowNumber const& window) const {
    return notice_for_me(window).pinned.load(std::memory_order_acquire) > window.number;
  }

  /// Takes a window that is_open; empty if its memory cannot be reached.
  std::optional<AttachedWindow> take(WindowNumber const& window) {
    Notice& notice = notice_for_me(window);
    AttachedWindow taken;
    taken.count = notice.count;
    taken.position = notice.position;
    if (notice.segment.bytes > 0) {
      taken.segment = mapping(window.owner, notice.segment, notice.key);
      if (!taken.segment) return std::nullopt;
      taken.readers = readers_of(taken.segment->data(), rank_);
    }
    for (std::size_t p = 0; p < taken.count; ++p)
      if (notice.runs[p].length > 0)
        taken.runs[p] = {taken.segment->data() + notice.runs[p].offset,
                         static_cast<std::size_t>(notice.runs[p].length)};
    notice.taken.store(window.number + 1, std::memory_order_release);
    return taken;
  }

  static void release(AttachedWindow& window) noexcept {
    if (window.readers) window.readers->fetch_sub(1, std::memory_order_release);
    window = {};
  }

  /// A rank that has not given back what lies in the buffer at `first`; none: it may be written.
  std::optional<Rank> reader_of(std::byte const* first) const {
    OwnMapping const* const segment = segment_of(first);
    return segment ? reader_of(*segment) : std::nullopt;
  }

 private:
  static constexpr std::size_t channels = 3, places_in_line = 8;

  /// A window on the board of its owner.
  struct alignas(64) Notice {
    std::atomic<std::uint64_t> pinned, taken;  ///< one more than the number of the last window pinned up, taken, here
    std::uint64_t count, key;
    CallPosition position;
    MappingAddress segment;
    struct {
      std::uint64_t offset, length;
    } runs[max_window_runs];
  };

  struct MappingHeader {
    std::uint64_t key;
    std::atomic<std::uint32_t> retired;  ///< the owner will not share it again
  };
  static constexpr std::uint64_t readers_begin = 64, page = 4096;

  struct OwnMapping {
    SharedMapping memory;
    std::byte* first;
    std::uint64_t bytes;
    bool used;
    std::uint64_t key = 0;
    MappingHeader& header() const { return *reinterpret_cast<MappingHeader*>(memory.data()); }
  };

  static std::uint64_t header_bytes_of(int size) {
    return (readers_begin + sizeof(std::uint32_t) * static_cast<std::uint64_t>(size) + page - 1) / page * page;
  }
  static std::atomic<std::uint32_t>* readers_of(std::byte* segment, Rank reader) {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(segment + readers_begin) + reader;
  }

  std::size_t line_of(Channel channel, Rank peer) const {
    return static_cast<std::size_t>(channel) * static_cast<std::size_t>(size_) + static_cast<std::size_t>(peer);
  }
  Notice& notice_on(SharedMapping const& board, Channel channel, Rank reader, std::uint64_t number) const {
    auto* const notices = reinterpret_cast<Notice*>(board.data() + sizeof(std::uint64_t) * places_in_line);
    return notices[line_of(channel, reader) * max_open_windows + number % max_open_windows];
  }
  Notice& notice_for_me(WindowNumber const& window) const {
    return notice_on(tables_[static_cast<std::size_t>(window.owner)], window.channel, rank_, window.number);
  }

  OwnMapping* segment_of(std::byte const* place) const {
    for (auto const& segment : segments_)
      if (place >= segment->first && place < segment->first + segment->bytes) return segment.get();
    return nullptr;
  }
  std::optional<Rank> reader_of(OwnMapping const& segment) const {
    for (Rank rank = 0; rank < size_; ++rank)
      if (readers_of(segment.memory.data(), rank)->load(std::memory_order_acquire) != 0) return rank;
    return std::nullopt;
  }

  void drop_unused() noexcept {
    std::erase_if(segments_, [&](auto const& segment) {
      bool const gone = !segment->used && !reader_of(*segment);
      if (gone) segment->header().retired.store(1, std::memory_order_release);
      return gone;
    });
  }

  /// Another rank's segment; mapped once.
  std::shared_ptr<SharedMapping const> mapping(Rank owner, MappingAddress const& address, std::uint64_t key) {
    auto const known = mapped_.find({owner, key});
    if (known != mapped_.end()) return known->second;
    std::erase_if(mapped_, [](auto const& entry) {
      auto const* const header = reinterpret_cast<MappingHeader const*>(entry.second->data());
      return header->retired.load(std::memory_order_acquire) != 0;
    });
    auto segment = std::make_shared<SharedMapping const>(SharedMapping::open(address));
    if (!*segment || reinterpret_cast<MappingHeader const*>(segment->data())->key != key) return nullptr;
    return mapped_[{owner, key}] = segment;
  }

  Rank rank_;
  int size_;
  std::uint64_t key_, made_ = 0;
  SharedMapping table_;
  std::vector<SharedMapping> tables_;
  std::vector<std::uint64_t> shared_, windows_;  ///< how many, by channel and peer
  std::vector<std::unique_ptr<OwnMapping>> segments_;
  std::map<std::pair<Rank, std::uint64_t>, std::shared_ptr<SharedMapping const>> mapped_;
  bool keeps_spare_ = true;
};

}  // namespace annulus::detail
