#pragma once
// Handles of rings.

#include <chrono>
#include <memory>
#include <utility>

#include "annulus/bindings/c/handles.hpp"
#include "annulus/bindings/c/passes.hpp"
#include "annulus/comm/communicator.hpp"

namespace annulus::bindings {

/// The handle of a ring that it holds (`Held` is a ring), or that outlives it (`Held` is a reference).
template <class Held>
class RingHandle final : public annulus_ring {
 public:
  explicit RingHandle(Held ring) : ring_(std::forward<Held>(ring)) {}
  ~RingHandle() override { end_attentions(); }

  int rank() const noexcept override { return ring_.rank(); }
  int size() const noexcept override { return ring_.size(); }
  bool owned() const noexcept override { return !std::is_reference_v<Held>; }
  std::unique_ptr<Passes> make_passes(Options options, int threads) override {
    return std::make_unique<PassesOn<std::remove_reference_t<Held>>>(ring_, std::move(options), threads);
  }

 private:
  Held ring_;
};

/// SimulatedRingOptions or MpiRingOptions; NULL: the defaults.
template <class RingOptions>
RingOptions ring_options_of(annulus_ring_options const* given) {
  RingOptions options;
  if (!given) return options;
  options.timeout = std::chrono::milliseconds(given->timeout_ms);
  switch (given->zero_copy) {
    case ANNULUS_ZERO_COPY_AUTOMATIC:
      options.zero_copy = ZeroCopy::automatic;
      return options;
    case ANNULUS_ZERO_COPY_NEVER:
      options.zero_copy = ZeroCopy::never;
      return options;
    case ANNULUS_ZERO_COPY_ALWAYS:
      options.zero_copy = ZeroCopy::always;
      return options;
  }
  throw UnsupportedError(detail::message_of("zero_copy is ", static_cast<int>(given->zero_copy),
                                            "; accepted: 0 automatic, 1 never, 2 always"));
}

}  // namespace annulus::bindings
