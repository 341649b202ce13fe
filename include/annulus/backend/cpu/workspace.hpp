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
#include "annulus/core/per_process.hpp"

namespace annulus::cpu {

class [[gnu::visibility("default")]] WorkspaceStore {
 public:
  /// Of what the threads of a call share, and of what each thread has for itself.
  static WorkspaceStore& of_calls();
  static WorkspaceStore& of_threads();

  /// The smallest buffer that holds so many bytes, or else the largest one, made larger.
  HostBuffer take(Index bytes) {
    std::lock_guard const lock(mutex_);
    auto best = idle_.end();
    for (auto buffer = idle_.begin(); buffer != idle_.end(); ++buffer)
      if (buffer->size() >= bytes && (best == idle_.end() || buffer->size() < best->size())) best = buffer;
    if (best == idle_.end()) best = std::max_element(idle_.begin(), idle_.end(), smaller);
    HostBuffer taken;
    if (best != idle_.end()) {
      taken = std::move(*best);
      *best = std::move(idle_.back());
      idle_.pop_back();
    }
    enlarge(taken, bytes);
    idle_.reserve(idle_.size() + ++in_use_);  // giving back must not fail
    return taken;
  }

  void release(HostBuffer buffer) {
    std::lock_guard const lock(mutex_);
    --in_use_;
    idle_.push_back(std::move(buffer));
  }

  /// Makes buffers so that `count` of so many bytes are there to be taken.
  void provide(Index bytes, Index count) {
    std::lock_guard const lock(mutex_);
    if (static_cast<Index>(idle_.size()) < count) idle_.resize(static_cast<std::size_t>(count));
    std::partial_sort(idle_.begin(), idle_.begin() + count, idle_.end(),
                      [](HostBuffer const& a, HostBuffer const& b) { return smaller(b, a); });
    for (Index i = 0; i < count; ++i) enlarge(idle_[static_cast<std::size_t>(i)], bytes);
  }

 private:
  static bool smaller(HostBuffer const& a, HostBuffer const& b) { return a.size() < b.size(); }
  static void enlarge(HostBuffer& buffer, Index bytes) {
    if (buffer.size() >= bytes) return;
    buffer = HostBuffer();
    buffer = HostBuffer(bytes);
  }

  std::mutex mutex_;
  std::vector<HostBuffer> idle_;
  std::size_t in_use_ = 0;
};

struct [[gnu::visibility("default")]] WorkspaceStores {
  WorkspaceStore of_calls, of_threads;
};

inline WorkspaceStore& WorkspaceStore::of_calls() { return PerProcess<WorkspaceStores>::get().of_calls; }
inline WorkspaceStore& WorkspaceStore::of_threads() { return PerProcess<WorkspaceStores>::get().of_threads; }

/// Memory of one call or one thread of it, dealt out in pieces that begin on cache lines.
class Workspace {
 public:
  Workspace(WorkspaceStore& store, Index bytes) : store_(store), buffer_(store.take(bytes)) {}
  Workspace(Workspace const&) = delete;
  Workspace& operator=(Workspace const&) = delete;
  ~Workspace() { store_.release(std::move(buffer_)); }

  std::byte* data() const { return buffer_.data(); }

 private:
  WorkspaceStore& store_;
  HostBuffer buffer_;
};

/// Deals out a run of bytes. Without memory it only counts, so that a layout is written once.
class Arena {
 public:
  explicit Arena(std::byte* memory = nullptr) : memory_(memory) {}

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

/// What deal(arena) takes.
template <class Deal>
Index bytes_of(Deal&& deal) {
  Arena sizes;
  deal(sizes);
  return sizes.used();
}

}  // namespace annulus::cpu
