#pragma once
// Separate memory space, as of a device, with a queue of work, and a communicator for it. It consists of host memory,
// but only bytes of a ForeignAllocation are accepted as foreign.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "annulus/core/error.hpp"
#include "support/deferred_queue.hpp"
#include "support/unruly_communicator.hpp"

namespace annulus_test {

/// The order of the work in foreign memory, which is done later; see DeferredQueue.
struct ForeignQueue {
  DeferredQueue* work = nullptr;
  // Errors that tests plant:
  std::optional<std::size_t> place{};                   ///< of what is put; see DeferredQueue::push
  std::vector<std::function<void()>>* later = nullptr;  ///< takes what is put instead of the queue

  void wait() const { work->drain(); }
  void put(std::function<void()> piece) const {
    if (later)
      later->push_back(std::move(piece));
    else
      work->push(std::move(piece), place);
  }
};

/// Memory space tag.
struct ForeignMemory {
  using Queue = ForeignQueue;
};

/// Error: host memory passed as foreign memory. Not an annulus::Error, so that no code under test handles it.
class HostMemoryRefused : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Registry of all foreign memory of the process. Thread-safe.
class ForeignRegistry {
 public:
  static ForeignRegistry& instance() {
    static ForeignRegistry registry;
    return registry;
  }

  void add(std::byte const* begin, std::size_t bytes) {
    std::lock_guard const lock(mutex_);
    allocations_.emplace(begin, bytes);
    bytes_ += bytes;
    most_bytes_ = std::max(most_bytes_, bytes_);
  }

  void remove(std::byte const* begin) noexcept {
    std::lock_guard const lock(mutex_);
    auto const found = allocations_.find(begin);
    bytes_ -= found->second;
    allocations_.erase(found);
  }

  /// True if the bytes lie inside one allocation; always true for 0 bytes.
  bool contains(void const* begin, std::size_t bytes) const {
    if (bytes == 0) return true;
    auto const* first = static_cast<std::byte const*>(begin);
    std::lock_guard const lock(mutex_);
    auto allocation = allocations_.upper_bound(first);
    if (allocation == allocations_.begin()) return false;
    --allocation;
    auto const offset = static_cast<std::size_t>(first - allocation->first);
    return offset <= allocation->second && bytes <= allocation->second - offset;
  }

  void require(void const* begin, std::size_t bytes, char const* use) const {
    if (!contains(begin, bytes))
      throw HostMemoryRefused(annulus::detail::message_of("host memory refused: ", bytes, " bytes to ", use,
                                                          " do not lie inside one foreign allocation"));
  }

  std::size_t allocations() const {
    std::lock_guard const lock(mutex_);
    return allocations_.size();
  }
  std::size_t bytes() const {
    std::lock_guard const lock(mutex_);
    return bytes_;
  }
  /// Largest number of bytes allocated at once since the last restart_peak().
  std::size_t most_bytes() const {
    std::lock_guard const lock(mutex_);
    return most_bytes_;
  }
  void restart_peak() {
    std::lock_guard const lock(mutex_);
    most_bytes_ = bytes_;
  }

  /// Number of allocations found with overwritten guard zones since the last call.
  int take_overruns() {
    std::lock_guard const lock(mutex_);
    return std::exchange(overruns_, 0);
  }
  void report_overrun() noexcept {
    std::lock_guard const lock(mutex_);
    ++overruns_;
  }

 private:
  ForeignRegistry() = default;
  mutable std::mutex mutex_;
  // std::less orders pointers of unrelated allocations; operator< need not.
  std::map<std::byte const*, std::size_t, std::less<>> allocations_;
  std::size_t bytes_ = 0, most_bytes_ = 0;
  int overruns_ = 0;
};

/// Foreign bytes, aligned to 64, initialised to 0xFF (as floating-point numbers: NaN), between guard zones that the
/// destructor checks; a test then calls ForeignRegistry::take_overruns().
class ForeignAllocation {
 public:
  ForeignAllocation() = default;

  explicit ForeignAllocation(std::size_t bytes) : bytes_(bytes) {
    block_.reset(static_cast<std::byte*>(::operator new(bytes + 2 * zone, std::align_val_t(zone))));
    std::fill_n(block_.get(), zone, guard);
    std::fill_n(data(), bytes, poison);
    std::fill_n(data() + bytes, zone, guard);
    ForeignRegistry::instance().add(data(), bytes);
  }

  ForeignAllocation(ForeignAllocation&& other) noexcept
      : block_(std::move(other.block_)), bytes_(std::exchange(other.bytes_, 0)) {}
  ForeignAllocation& operator=(ForeignAllocation&& other) noexcept {
    std::swap(block_, other.block_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  ~ForeignAllocation() {
    if (!block_) return;
    auto const intact = [](std::byte const* begin) {
      return std::all_of(begin, begin + zone, [](std::byte b) { return b == guard; });
    };
    if (!intact(block_.get()) || !intact(data() + bytes_)) ForeignRegistry::instance().report_overrun();
    ForeignRegistry::instance().remove(data());
    // Later reads give NaN, also without a sanitizer.
    std::fill_n(data(), bytes_, poison);
  }

  std::byte* data() const { return block_ ? block_.get() + zone : nullptr; }
  std::size_t size() const { return bytes_; }
  std::span<std::byte> bytes() const { return {data(), bytes_}; }

 private:
  static constexpr std::size_t zone = 64;
  static constexpr std::byte guard{0xA5}, poison{0xFF};

  struct Free {
    void operator()(std::byte* block) const { ::operator delete(block, std::align_val_t(zone)); }
  };

  std::unique_ptr<std::byte, Free> block_;
  std::size_t bytes_ = 0;
};

/// Options of a ForeignRing.
struct ForeignRingOptions {
  std::uint64_t seed = 0;
  /// Bytes arrive when their transfer ends on the queue, as late as it is allowed; otherwise between two pieces of work
  /// that are chosen at random.
  bool late = false;
};

/// A shift of foreign bytes: work on a queue, from begin() to end(), with the freedom of the contract in between.
///  * The bytes of `out` are copied at begin(); end() reports bytes that have changed since as MisusedTransfer.
///  * The bytes of `in` are 0xFF (as floating-point numbers: NaN) from begin() until the data arrives, at any time up to
///    end(); end() reports bytes that were written by anyone else.
template <annulus::Communicator Inner>
class ForeignShift {
 public:
  ForeignShift(Inner& ring, annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in)
      : ring_(ring), channel_(channel), hop_(hop), out_(out.begin(), out.end()), in_(in.begin(), in.end()) {
    require_no_overlap(out, in);
  }

  void begin() {
    std::lock_guard const lock(mutex_);
    if (cancelled_) return;
    for (auto const& run : out_) sent_.emplace_back(run.begin(), run.end());
    for (auto const& run : in_) {
      received_.emplace_back(run.size());
      expected_.emplace_back(run.size(), poison);
      std::fill(run.begin(), run.end(), poison);
    }
    std::vector<std::span<std::byte const>> const leaving(sent_.begin(), sent_.end());
    std::vector<std::span<std::byte>> const arriving(received_.begin(), received_.end());
    inner_.emplace(ring_.start_shift(channel_, hop_, leaving, arriving));
  }

  /// Receives the data if it has not been. Returns true if nothing is left to do before end().
  bool arrive() {
    std::lock_guard const lock(mutex_);
    if (cancelled_ || arrived_) return true;
    inner_->wait();
    require_unchanged();
    for (std::size_t p = 0; p < in_.size(); ++p) std::copy(received_[p].begin(), received_[p].end(), in_[p].begin());
    expected_ = received_;
    return arrived_ = true;
  }

  void end() {
    arrive();
    std::lock_guard const lock(mutex_);
    require_unchanged();
  }

  /// Gives it up, from the thread that puts work on the queue: afterwards the bytes are neither read nor written.
  void cancel() noexcept {
    annulus::abandon_ring(ring_, "it dropped a pending transfer");
    std::lock_guard const lock(mutex_);
    cancelled_ = true;
    inner_.reset();
  }

 private:
  static constexpr std::byte poison{0xFF};

  void require_unchanged() const {
    for (std::size_t p = 0; p < out_.size(); ++p)
      if (!std::equal(sent_[p].begin(), sent_[p].end(), out_[p].begin()))
        throw MisusedTransfer(annulus::detail::message_of("run ", p, " was overwritten while it was sent"));
    for (std::size_t p = 0; p < in_.size(); ++p)
      if (!std::equal(expected_[p].begin(), expected_[p].end(), in_[p].begin()))
        throw MisusedTransfer(annulus::detail::message_of("run ", p, " was written while it was received"));
  }

  Inner& ring_;
  annulus::Channel channel_;
  int hop_;
  std::vector<std::span<std::byte const>> out_;
  std::vector<std::span<std::byte>> in_;
  std::mutex mutex_;  ///< cancel() is called by another thread than the others
  std::vector<std::vector<std::byte>> sent_, received_, expected_;
  bool arrived_ = false, cancelled_ = false;
  std::optional<annulus::TransferOf<Inner>> inner_;  // destroyed first: it refers to the copies
};

/// Sends foreign bytes over a communicator of host memory, which must outlive it, and refuses other bytes. Shifts are
/// work on the queue, done by its thread. Records of all_gather are in host memory, as the contract requires.
template <annulus::Communicator Inner = annulus::SimulatedRing>
class ForeignRing {
  static_assert(std::same_as<typename Inner::memory_space, annulus::HostMemory>);
  using Shift = ForeignShift<Inner>;

 public:
  using memory_space = ForeignMemory;

  class Transfer {
   public:
    Transfer(Transfer&&) noexcept = default;
    Transfer& operator=(Transfer&& other) noexcept {
      std::swap(shift_, other.shift_);
      return *this;
    }
    ~Transfer() {
      if (shift_) shift_->cancel();
    }

    void wait(ForeignQueue const& queue) {
      if (!shift_) return;
      queue.put([shift = std::exchange(shift_, nullptr)] { shift->end(); });
    }

   private:
    friend class ForeignRing;
    explicit Transfer(std::shared_ptr<Shift> shift) : shift_(std::move(shift)) {}
    std::shared_ptr<Shift> shift_;
  };

  explicit ForeignRing(Inner& inner, ForeignRingOptions const& options = {})
      : inner_(&inner),
        late_(options.late),
        dice_(std::make_shared<std::mt19937_64>(options.seed * 1'000'003u + static_cast<std::uint64_t>(inner.rank()))) {
  }

  annulus::Rank rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }

  Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in,
                       ForeignQueue const& queue) {
    auto const& registry = ForeignRegistry::instance();
    for (auto const& run : out) registry.require(run.data(), run.size(), "send");
    for (auto const& run : in) registry.require(run.data(), run.size(), "receive");
    auto const shift = std::make_shared<Shift>(*inner_, channel, hop, out, in);
    queue.put([shift, late = late_, dice = dice_, work = queue.work] {
      shift->begin();
      if (late || (*dice)() % 3 == 0) return;
      work->attempt_between([shift, dice] { return (*dice)() % 3 == 0 && shift->arrive(); });
    });
    return Transfer(shift);
  }

  /// The work on the queue keeps the deadline of the communicator below.
  void finish(ForeignQueue const& queue) { queue.wait(); }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) { inner_->all_gather(mine, all); }
  void abandon(std::string const& reason) noexcept { inner_->abandon(reason); }

 private:
  Inner* inner_;
  bool late_;
  std::shared_ptr<std::mt19937_64> dice_;  ///< used by the thread of the queue
};

static_assert(annulus::Communicator<ForeignRing<>>);

}  // namespace annulus_test
