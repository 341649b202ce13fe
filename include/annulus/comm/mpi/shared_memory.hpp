#pragma once
// Shared memory of a ring over MPI: the buffers that ranks share and the windows on them.
//
// Each rank has a table, in which it publishes its windows, and mappings, which hold the shared bytes. Readers map
// both. Each mapping counts, for each reader, the windows that it has not released. The memory is anonymous: it has no
// file name, so nothing is left behind however a process ends, and it lives until the last process unmaps it.

#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/error.hpp"
#include "annulus/core/short_list.hpp"

namespace annulus::detail {

/// Process and file descriptor through which another process maps the memory.
struct MappingAddress {
  std::int32_t process = -1, descriptor = -1;
  std::uint64_t bytes = 0;  ///< 0: no memory
  std::uint64_t key = 0;    ///< a random number, the first word of the memory, by which a reader recognises it
};

/// A mapping of anonymous memory, in the process that created it or in another one of this node.
class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept { *this = std::move(other); }
  SharedMapping& operator=(SharedMapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(address_, other.address_);
    std::swap(owned_, other.owned_);
    return *this;
  }
#if defined(__linux__)
  /// New memory of `bytes` bytes, all zero after its key. Empty if the system has no such memory, or no more of it.
  static SharedMapping make(std::uint64_t bytes, std::uint64_t key) {
    SharedMapping mapping;
    int const descriptor = ::memfd_create("annulus", MFD_CLOEXEC);
    if (descriptor < 0) return mapping;
    mapping.owned_ = true;
    mapping.address_ = {static_cast<std::int32_t>(::getpid()), descriptor, bytes, key};
    if (::ftruncate(descriptor, static_cast<off_t>(bytes)) == 0) mapping.map(descriptor);
    if (mapping) mapping.first_word() = key;
    return mapping;
  }

  /// Memory that another process has created. Empty if it cannot be mapped: on another node, in another container, or
  /// gone.
  static SharedMapping open(MappingAddress const& address) {
    SharedMapping mapping;
    if (address.bytes == 0) return mapping;
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", static_cast<int>(address.process),
                  static_cast<int>(address.descriptor));
    int const descriptor = ::open(path, O_RDWR | O_CLOEXEC);
    if (descriptor < 0) return mapping;
    mapping.address_ = address;
    // The address may refer to a file of an unrelated process on this node: a shorter one would fault when read.
    if (::lseek(descriptor, 0, SEEK_END) == static_cast<off_t>(address.bytes)) mapping.map(descriptor);
    ::close(descriptor);
    return mapping && mapping.first_word() == address.key ? std::move(mapping) : SharedMapping();
  }

  ~SharedMapping() {
    if (data_) ::munmap(data_, static_cast<std::size_t>(address_.bytes));
    if (owned_) ::close(address_.descriptor);
  }
#else
  static SharedMapping make(std::uint64_t, std::uint64_t) { return {}; }
  static SharedMapping open(MappingAddress const&) { return {}; }
#endif

  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  MappingAddress const& address() const { return address_; }

 private:
#if defined(__linux__)
  void map(int descriptor) {
    auto const bytes = static_cast<std::size_t>(address_.bytes);
    void* const place = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (place == MAP_FAILED) return;
    // Large pages, where the system grants them for shared memory, cause fewer page faults.
    ::madvise(place, bytes, MADV_HUGEPAGE);
    data_ = static_cast<std::byte*>(place);
  }
  std::uint64_t& first_word() const { return *reinterpret_cast<std::uint64_t*>(data_); }
#endif

  std::byte* data_ = nullptr;
  MappingAddress address_{};
  bool owned_ = false;
};

/// The window with sequence number `number` on a channel from `owner` to this rank.
struct MpiWindow {
  struct EndReading {
    std::shared_ptr<SharedMapping const> mapping;
    void operator()(std::atomic<std::uint32_t>* readers) const noexcept {
      readers->fetch_sub(1, std::memory_order_release);
    }
  };

  Rank owner = 0;
  Channel channel{};
  std::uint64_t number = 0;
  CallPosition position{};  ///< of this rank when it opened the window
  ShortList<std::span<std::byte const>, max_window_runs> runs{};  ///< once it is taken
  /// Null before it is taken. The window is released, and its bytes may then be unmapped, when this ends.
  std::unique_ptr<std::atomic<std::uint32_t>, EndReading> reading{};
};

/// One rank's table and buffers, and its mappings of those of the other ranks.
class MpiSharedMemory {
  static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
                "annulus: atomics that other processes see must not need a lock of this one");

 public:
  /// `key`: a random number; each mapping of this rank gets the next one.
  MpiSharedMemory(Rank rank, int size, std::uint64_t key)
      : rank_(rank),
        size_(size),
        key_(key),
        table_(SharedMapping::make(sizeof(std::uint64_t) * words_in_line +
                                       sizeof(WindowEntry) * max_open_windows * num_streams(size),
                                   key)),
        shared_(num_streams(size), 0),
        windows_(shared_) {}

  MpiSharedMemory(MpiSharedMemory const&) = delete;
  MpiSharedMemory& operator=(MpiSharedMemory const&) = delete;
  ~MpiSharedMemory() {
    for (OwnMapping const& own : own_mappings_) own.header().retired.store(1, std::memory_order_release);
  }

  /// The address of this rank's table; 0 bytes if the system has no memory for it.
  MappingAddress address() const { return table_ ? table_.address() : MappingAddress{}; }

  /// Maps the tables of all ranks. Returns the first rank whose table cannot be mapped, if any.
  std::optional<Rank> open(std::span<MappingAddress const> addresses) {
    for (MappingAddress const& address : addresses)
      if (!tables_.emplace_back(SharedMapping::open(address))) return static_cast<Rank>(tables_.size()) - 1;
    return std::nullopt;
  }

  /// A buffer that this rank can share; null for 0 bytes. Throws std::bad_alloc.
  std::byte* allocate(Index bytes) {
    if (bytes == 0) return nullptr;
    auto const wanted = static_cast<std::size_t>(bytes);
    for (OwnMapping& own : own_mappings_)
      if (!own.used && !reader_of(own) && own.buffer().size() >= wanted && own.buffer().size() / 2 <= wanted) {
        own.used = true;
        return own.buffer().data();
      }
    drop_unused();
    std::size_t const header =
        (readers_begin + sizeof(std::uint32_t) * static_cast<std::size_t>(size_) + page - 1) / page * page;
    OwnMapping own{SharedMapping::make(header + wanted, ++key_), header};
    if (!own.memory) throw std::bad_alloc();
    return own_mappings_.emplace_back(std::move(own)).buffer().data();
  }

  /// Frees the buffer at `first`. Windows on it stay readable until they are released.
  void free(std::byte* first) noexcept {
    for (OwnMapping& own : own_mappings_)
      if (own.buffer().data() == first) own.used = false;
    if (!keeps_spare_) drop_unused();
  }

  /// Stops keeping free memory for later buffers, because none will be allocated any more.
  void keep_no_spare() noexcept {
    keeps_spare_ = false;
    drop_unused();
  }

  /// True if rank `to` has not taken max_open_windows windows: the table has no place for another one.
  bool is_full(Channel channel, Rank to) const {
    WindowEntry const& entry = entry_in(table_, channel, to, shared_[stream_index(channel, to)]);
    return entry.taken.load(std::memory_order_acquire) != entry.opened.load(std::memory_order_relaxed);
  }

  /// Publishes a window for rank `to`, for which the table has a place. Throws CommunicationError if there are too many
  /// runs, or if they do not lie within one buffer.
  void share(Channel channel, Rank to, OutgoingBytes out, CallPosition const& position) {
    OwnMapping const* const own = buffer_of_window(out, [&](std::span<std::byte const> run) {
      OwnMapping const* const found = own_mapping_of(run.data());
      return found && own_mapping_of(&run.back()) == found ? found : nullptr;
    });
    std::uint64_t& number = shared_[stream_index(channel, to)];
    WindowEntry& entry = entry_in(table_, channel, to, number);
    for (std::size_t p = 0; p < out.size(); ++p) {
      entry.runs[p] = {0, out[p].size()};
      if (!out[p].empty()) entry.runs[p].offset = static_cast<std::uint64_t>(out[p].data() - own->memory.data());
    }
    entry.count = out.size();
    entry.position = position;
    entry.address = own ? own->memory.address() : MappingAddress{};
    if (own) readers_of(own->memory.data(), to)->fetch_add(1, std::memory_order_relaxed);
    entry.opened.store(++number, std::memory_order_release);
  }

  /// The next window on this channel from `owner` to this rank, which is at `position`.
  MpiWindow next_window_from(Rank owner, Channel channel, CallPosition const& position) {
    return {owner, channel, windows_[stream_index(channel, owner)]++, position};
  }

  /// Takes a window. Returns the position of the owner when it shared the bytes; none if it has not shared them yet, or
  /// its memory cannot be mapped.
  std::optional<CallPosition> take(MpiWindow& window) {
    SharedMapping const& table = tables_[static_cast<std::size_t>(window.owner)];
    WindowEntry& entry = entry_in(table, window.channel, rank_, window.number);
    if (entry.opened.load(std::memory_order_acquire) <= window.number) return std::nullopt;
    std::shared_ptr<SharedMapping const> mapping;
    if (entry.address.bytes > 0 && !(mapping = map_once(entry.address))) return std::nullopt;
    for (auto const& [offset, length] : std::span(entry.runs).first(entry.count))
      window.runs.push_back(length == 0 ? std::span<std::byte const>()
                                        : std::span<std::byte const>(mapping->data() + offset, length));
    if (mapping) window.reading = {readers_of(mapping->data(), rank_), {std::move(mapping)}};
    entry.taken.store(window.number + 1, std::memory_order_release);
    return entry.position;
  }

  /// A rank that has not released a window on the buffer at `first`; none if the buffer may be written.
  std::optional<Rank> reader_of(std::byte const* first) const {
    OwnMapping const* const own = own_mapping_of(first);
    return own ? reader_of(*own) : std::nullopt;
  }

 private:
  static constexpr std::size_t words_in_line = 8;

  /// A window in the table of its owner.
  struct alignas(64) WindowEntry {
    std::atomic<std::uint64_t> opened, taken;  ///< 1 + the number of the last window opened here, and of the last taken
    std::uint64_t count;
    CallPosition position;
    MappingAddress address;
    struct {
      std::uint64_t offset, length;
    } runs[max_window_runs];
  };

  /// First bytes of a mapping; the counts of windows that each reader has not released follow at readers_begin.
  struct MappingHeader {
    std::uint64_t key;                   ///< of its address
    std::atomic<std::uint32_t> retired;  ///< 1: the owner will not share it again
  };
  static constexpr std::uint64_t readers_begin = 64, page = 4096;

  /// A mapping of this rank, which holds one buffer behind its header.
  struct OwnMapping {
    SharedMapping memory;
    std::size_t header_bytes;
    bool used = true;
    MappingHeader& header() const { return *reinterpret_cast<MappingHeader*>(memory.data()); }
    std::span<std::byte> buffer() const {
      return std::span(memory.data(), static_cast<std::size_t>(memory.address().bytes)).subspan(header_bytes);
    }
  };

  static std::atomic<std::uint32_t>* readers_of(std::byte* memory, Rank reader) {
    return reinterpret_cast<std::atomic<std::uint32_t>*>(memory + readers_begin) + reader;
  }

  static WindowEntry& entry_in(SharedMapping const& table, Channel channel, Rank reader, std::uint64_t number) {
    auto* const entries = reinterpret_cast<WindowEntry*>(table.data() + sizeof(std::uint64_t) * words_in_line);
    return entries[stream_index(channel, reader) * max_open_windows + number % max_open_windows];
  }

  OwnMapping const* own_mapping_of(std::byte const* place) const {
    for (OwnMapping const& own : own_mappings_)
      if (place >= own.buffer().data() && place <= &own.buffer().back()) return &own;
    return nullptr;
  }
  std::optional<Rank> reader_of(OwnMapping const& own) const {
    for (Rank rank = 0; rank < size_; ++rank)
      if (readers_of(own.memory.data(), rank)->load(std::memory_order_acquire) != 0) return rank;
    return std::nullopt;
  }

  void drop_unused() noexcept {
    std::erase_if(own_mappings_, [&](OwnMapping const& own) {
      bool const gone = !own.used && !reader_of(own);
      if (gone) own.header().retired.store(1, std::memory_order_release);
      return gone;
    });
  }

  /// The memory of this address, mapped at most once; null if it cannot be mapped.
  std::shared_ptr<SharedMapping const> map_once(MappingAddress const& address) {
    std::pair const place(address.process, address.key);
    auto const known = mapped_.find(place);
    if (known != mapped_.end()) return known->second;
    std::erase_if(mapped_, [](auto const& entry) {
      auto const* const header = reinterpret_cast<MappingHeader const*>(entry.second->data());
      return header->retired.load(std::memory_order_acquire) != 0;
    });
    auto mapping = std::make_shared<SharedMapping const>(SharedMapping::open(address));
    return *mapping ? mapped_[place] = std::move(mapping) : nullptr;
  }

  Rank rank_;
  int size_;
  std::uint64_t key_;  ///< of the mapping made last
  SharedMapping table_;
  std::vector<SharedMapping> tables_;
  std::vector<std::uint64_t> shared_, windows_;  ///< windows opened for, and by, each peer, by stream_index
  std::vector<OwnMapping> own_mappings_;
  std::map<std::pair<std::int32_t, std::uint64_t>, std::shared_ptr<SharedMapping const>> mapped_;
  bool keeps_spare_ = true;
};

}  // namespace annulus::detail
