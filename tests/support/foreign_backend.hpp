#pragma once
// Asynchronous backend in foreign memory.

#include <cstddef>
#include <functional>
#include <utility>

#include "annulus/backend/reference/reference.hpp"
#include "support/deferred_queue.hpp"
#include "support/foreign_tensor.hpp"
#include "support/queued_backend.hpp"

namespace annulus_test {

class ForeignBuffer {
 public:
  ForeignBuffer() = default;
  explicit ForeignBuffer(annulus::Index bytes) : memory_(static_cast<std::size_t>(bytes)) {}

  std::byte* data() const { return memory_.data(); }
  annulus::Index size() const { return static_cast<annulus::Index>(memory_.size()); }

 private:
  ForeignAllocation memory_;
};

struct ForeignBackendOptions {
  DeferralOptions deferral{};
  int failing_call = -1;  ///< see QueuedBackend
};

/// A device in foreign memory, whose queue a thread works off.
class ForeignDevice {
 public:
  using Place = ForeignPlace;
  using Buffer = ForeignBuffer;

  explicit ForeignDevice(DeferralOptions const& deferral) : work_(deferral) {}

  ForeignQueue queue() { return {&work_}; }
  void push(std::function<void()> piece) { work_.push(std::move(piece)); }
  void synchronize() { work_.drain(); }

  DeferredQueue const& work() const { return work_; }

 private:
  DeferredQueue work_;
};

/// A backend whose work is done late; views of host memory are errors.
template <class Inner = annulus::ReferenceBackend>
class ForeignBackend : public QueuedBackend<Inner, ForeignDevice> {
 public:
  explicit ForeignBackend(ForeignBackendOptions const& options = {})
      : QueuedBackend<Inner, ForeignDevice>(options.failing_call, options.deferral) {}

  /// Number of calls whose work is not done yet.
  std::size_t pending() const { return this->device_.work().pending(); }
  /// Number of host waits, for the queue or by synchronize().
  int waits() const { return this->device_.work().drains(); }
};

static_assert(annulus::Backend<ForeignBackend<>>);

}  // namespace annulus_test
