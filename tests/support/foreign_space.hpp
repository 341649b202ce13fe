#pragma once
// Separate memory space, as of a device, and a communicator for it. It consists of host memory, but only bytes of a
// ForeignAllocation are accepted as foreign.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "annulus/core/error.hpp"

namespace annulus_test {

/// Memory space tag.
struct ForeignMemory {};

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

/// Sends foreign bytes over a communicator of host memory, which must outlive it, and refuses other bytes. Records
/// of all_gather are in host memory, as the contract requires.
template <annulus::Communicator Inner = annulus::SimulatedRing>
class ForeignRing {
  static_assert(std::same_as<typename Inner::memory_space, annulus::HostMemory>);

 public:
  using memory_space = ForeignMemory;

  explicit ForeignRing(Inner& inner) : inner_(&inner) {}

  annulus::Rank rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }

  annulus::TransferOf<Inner> start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out,
                                         annulus::IncomingBytes in) {
    auto const& registry = ForeignRegistry::instance();
    for (auto const& run : out) registry.require(run.data(), run.size(), "send");
    for (auto const& run : in) registry.require(run.data(), run.size(), "receive");
    return inner_->start_shift(channel, hop, out, in);
  }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) { inner_->all_gather(mine, all); }
  void abandon(std::string const& reason) noexcept { inner_->abandon(reason); }

 private:
  Inner* inner_;
};

static_assert(annulus::Communicator<ForeignRing<>>);

}  // namespace annulus_test
