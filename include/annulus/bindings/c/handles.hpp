#pragma once
// The handles behind annulus_ring and annulus_attention. The interfaces are virtual, so that annulus_c_mpi adds a ring
// to annulus_c; each library catches the exceptions of its own ring.

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "annulus/annulus.h"
#include "annulus/attention/options.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus::bindings {

struct ForwardArguments {
  annulus_tensor const *q, *k, *v;
  annulus_operands const* operands;
  annulus_tensor const *output, *lse, *lse_remainder;
};

struct BackwardArguments {
  annulus_tensor const *dout, *output, *lse, *lse_remainder, *q, *k, *v;
  annulus_operands const* operands;
  annulus_gradients const* gradients;
};

/// The passes of a RingAttention on one kind of ring.
class Passes {
 public:
  virtual ~Passes() = default;
  virtual annulus_status forward(ForwardArguments const& arguments) noexcept = 0;
  virtual annulus_status backward(BackwardArguments const& arguments) noexcept = 0;
  virtual std::optional<RingPlan> const& plan(Pass pass) const noexcept = 0;
};

}  // namespace annulus::bindings

struct annulus_attention {
  annulus_ring* ring;  ///< null once the ring has been freed
  std::unique_ptr<annulus::bindings::Passes> passes;
};

struct annulus_ring {
  virtual ~annulus_ring() = default;
  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  /// True if annulus_ring_free destroys it; false for the rings of annulus_run_ring.
  virtual bool owned() const noexcept = 0;
  /// Throws std::bad_alloc alone.
  virtual std::unique_ptr<annulus::bindings::Passes> make_passes(annulus::Options options, int threads) = 0;

  /// Passes must end before their ring, whatever the order in which a program frees its handles.
  void end_attentions() noexcept {
    for (annulus_attention* attention : attentions) {
      attention->passes.reset();
      attention->ring = nullptr;
    }
    attentions.clear();
  }

  std::vector<annulus_attention*> attentions;
};
