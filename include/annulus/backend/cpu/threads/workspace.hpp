#pragma once
// Pooled working memory of calls. The process keeps it, so that a repeated call allocates nothing, and ranks that share
// a core share it.

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/backend/cpu/simd/operand.hpp"
#include "annulus/backend/cpu/threads/thread_pool.hpp"
#include "annulus/core/host_memory.hpp"
#include "annulus/core/process.hpp"

namespace annulus::cpu::detail {

/// Thread-safe pool of buffers.
class [[gnu::visibility("default")]] WorkspaceStore {
 public:
  /// Takes the smallest idle buffer of at least `bytes` bytes; if there is none, enlarges the largest one.
  annulus::detail::HostBuffer take(Index bytes) {
    std::lock_guard const lock(mutex_);
    auto best = idle_.end();
    for (auto buffer = idle_.begin(); buffer != idle_.end(); ++buffer)
      if (buffer->size() >= bytes && (best == idle_.end() || buffer->size() < best->size())) best = buffer;
    if (best == idle_.end()) best = std::max_element(idle_.begin(), idle_.end(), smaller);
    annulus::detail::HostBuffer taken;
    if (best != idle_.end()) {
      taken = std::move(*best);
      *best = std::move(idle_.back());
      idle_.pop_back();
    }
    enlarge(taken, bytes);
    idle_.reserve(idle_.size() + ++in_use_);  // so that release() does not allocate
    return taken;
  }

  /// Returns a buffer obtained from take().
  void release(annulus::detail::HostBuffer buffer) {
    std::lock_guard const lock(mutex_);
    --in_use_;
    idle_.push_back(std::move(buffer));
  }

  /// Ensures that `count` idle buffers of at least `bytes` bytes exist.
  void provide(Index bytes, Index count) {
    std::lock_guard const lock(mutex_);
    if (static_cast<Index>(idle_.size()) < count) idle_.resize(static_cast<std::size_t>(count));
    std::partial_sort(
        idle_.begin(), idle_.begin() + count, idle_.end(),
        [](annulus::detail::HostBuffer const& a, annulus::detail::HostBuffer const& b) { return smaller(b, a); });
    for (Index i = 0; i < count; ++i) enlarge(idle_[static_cast<std::size_t>(i)], bytes);
  }

 private:
  static bool smaller(annulus::detail::HostBuffer const& a, annulus::detail::HostBuffer const& b) {
    return a.size() < b.size();
  }
  static void enlarge(annulus::detail::HostBuffer & buffer, Index bytes) {
    if (buffer.size() >= bytes) return;
    buffer = annulus::detail::HostBuffer();
    buffer = annulus::detail::HostBuffer(bytes);
  }

  std::mutex mutex_;
  std::vector<annulus::detail::HostBuffer> idle_;
  std::size_t in_use_ = 0;
};

/// The stores of this process: for memory that the threads of a call share, and for memory of single threads.
struct [[gnu::visibility("default")]] WorkspaceStores {
  WorkspaceStore of_calls, of_threads;

  static WorkspaceStores& shared() { return PerProcess<WorkspaceStores>::get(); }
};

/// A buffer taken from a store, for one call or one of its threads; the destructor releases it.
class Workspace {
 public:
  Workspace(WorkspaceStore& store, Index bytes) : store_(store), buffer_(store.take(bytes)) {}
  Workspace(Workspace const&) = delete;
  Workspace& operator=(Workspace const&) = delete;
  ~Workspace() { store_.release(std::move(buffer_)); }

  std::byte* data() const { return buffer_.data(); }

 private:
  WorkspaceStore& store_;
  annulus::detail::HostBuffer buffer_;
};

/// Bump allocator whose pieces begin on multiples of 64 bytes. Without memory it only counts bytes, so that the same
/// code computes the size of a layout and allocates it.
class Arena {
 public:
  explicit Arena(std::byte* memory = nullptr) : memory_(memory) {}

  /// Uninitialised memory for `count` elements; null without memory.
  template <class E>
  E* take(Index count) {
    std::byte* const place = memory_ ? memory_ + used_ : nullptr;
    used_ += annulus::detail::ceil_divide(count * static_cast<Index>(sizeof(E)), 64) * 64;
    return reinterpret_cast<E*>(place);
  }
  /// `count` elements E(arena, arguments...), which take further memory from this arena and are never destroyed.
  template <class E, class... Arguments>
  E* construct(Index count, Arguments const&... arguments) {
    static_assert(std::is_trivially_destructible_v<E> && alignof(E) <= 64);
    E* const elements = take<E>(count);
    for (Index i = 0; i < count; ++i)
      if (memory_)
        std::construct_at(elements + i, *this, arguments...);
      else
        E(*this, arguments...);
    return elements;
  }
  Index used() const { return used_; }

 private:
  std::byte* memory_;
  Index used_ = 0;
};

/// Bytes that allocate(arena) takes.
template <class Allocate>
Index bytes_of(Allocate&& allocate) {
  Arena sizes;
  allocate(sizes);
  return sizes.used();
}

inline namespace ANNULUS_CPU_INSTRUCTIONS {

/// Calls work(team, scratch, item) for each item below `items`, on up to `threads` threads, which claim items in
/// ascending order and then multiply elements E. `scratch` is the result of allocate(arena), called once per thread,
/// with `progresses` set on the calling thread.
template <class E, class Allocate, class Work>
void share_items(ThreadPool::Call& call, Index threads, Index items, Allocate&& allocate, Work&& work) {
  Index const bytes = bytes_of(allocate);
  WorkspaceStore& store = WorkspaceStores::shared().of_threads;
  store.provide(bytes, threads);
  std::atomic<Index> next{0};
  call.run(threads, [&](Team const& team, int slot) {
    Workspace const own(store, bytes);
    Arena arena(own.data());
    auto scratch = allocate(arena);
    scratch.progresses = slot == 0;
    [[maybe_unused]] FlushDenormals const guard;
    [[maybe_unused]] AmxTilesFor<E> const amx;
    for (Index item; (item = next.fetch_add(1, std::memory_order_relaxed)) < items;) work(team, scratch, item);
  });
}

}  // namespace ANNULUS_CPU_INSTRUCTIONS
}  // namespace annulus::cpu::detail
