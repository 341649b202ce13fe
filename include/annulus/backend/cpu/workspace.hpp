#pragma once
// Working memory of calls: kept by the process, so that a repeated call allocates nothing, and ranks that take turns on
// a core share it.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/backend/host_operations.hpp"
#include "annulus/core/index.hpp"

namespace annulus::cpu {

class WorkspaceStore {
 public:
  static WorkspaceStore& shared() {
    static WorkspaceStore store;
    return store;
  }

  /// The smallest buffer that holds so many bytes, or else the largest one, made larger.
  HostBuffer take(Index bytes) {
    std::lock_guard const lock(mutex_);
    auto const larger = [](HostBuffer const& a, HostBuffer const& b) { return a.size() < b.size(); };
    auto best = idle_.end();
    for (auto buffer = idle_.begin(); buffer != idle_.end(); ++buffer)
      if (buffer->size() >= bytes && (best == idle_.end() || buffer->size() < best->size())) best = buffer;
    if (best == idle_.end()) best = std::max_element(idle_.begin(), idle_.end(), larger);
    HostBuffer taken;
    if (best != idle_.end()) {
      taken = std::move(*best);
      *best = std::move(idle_.back());
      idle_.pop_back();
    }
    if (taken.size() < bytes) {
      taken = HostBuffer();
      taken = HostBuffer(bytes);
    }
    return taken;
  }

  void give_back(HostBuffer buffer) {
    std::lock_guard const lock(mutex_);
    idle_.push_back(std::move(buffer));
  }

 private:
  std::mutex mutex_;
  std::vector<HostBuffer> idle_;
};

/// Memory of one call, dealt out in pieces that begin on cache lines.
class Workspace {
 public:
  explicit Workspace(Index bytes) : buffer_(WorkspaceStore::shared().take(bytes)) {}
  Workspace(Workspace const&) = delete;
  Workspace& operator=(Workspace const&) = delete;
  ~Workspace() { WorkspaceStore::shared().give_back(std::move(buffer_)); }

  std::byte* data() const { return buffer_.data(); }

 private:
  HostBuffer buffer_;
};

/// Deals out a run of bytes. Without memory it only counts, so that a layout is written once.
class Dealer {
 public:
  explicit Dealer(std::byte* memory = nullptr) : memory_(memory) {}

  template <class E>
  E* take(Index count) {
    std::byte* const place = memory_ ? memory_ + used_ : nullptr;
    used_ += ceil_divide(count * static_cast<Index>(sizeof(E)), 64) * 64;
    return reinterpret_cast<E*>(place);
  }
  /// As take, with default-constructed elements, which are never destroyed.
  template <class E>
  E* construct(Index count) {
    static_assert(std::is_trivially_destructible_v<E> && alignof(E) <= 64);
    E* const elements = take<E>(count);
    if (memory_) std::uninitialized_default_construct_n(elements, count);
    return elements;
  }
  bool has_memory() const { return memory_ != nullptr; }
  Index used() const { return used_; }

 private:
  std::byte* memory_;
  Index used_ = 0;
};

}  // namespace annulus::cpu
