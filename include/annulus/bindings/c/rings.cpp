// Rings of one rank and of simulated ranks.

#include "annulus/bindings/c/rings.hpp"

#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"

using namespace annulus;
using namespace annulus::bindings;

annulus_ring_options annulus_default_ring_options(void) {
  return {static_cast<std::int64_t>(SimulatedRingOptions{}.timeout.count()), ANNULUS_ZERO_COPY_AUTOMATIC};
}

annulus_status annulus_ring_self(annulus_ring** ring) {
  return guarded([&] {
    require_given(ring, "ring");
    *ring = new RingHandle<SelfRing>(SelfRing());
  });
}

annulus_status annulus_run_ring(int ranks, annulus_rank_function function, void* context,
                                annulus_ring_options const* options) {
  return guarded([&] {
    detail::check<UnsupportedError>(function != nullptr, "function is NULL; a function for each rank is required");
    auto const run = [&](SimulatedRing& ring) {
      RingHandle<SimulatedRing&> handle(ring);
      annulus_error const none{ANNULUS_SUCCESS, -1, -1, -1, ""};
      annulus_set_error(&none);
      annulus_status const status = function(&handle, context);
      if (status == ANNULUS_SUCCESS) return;
      annulus_error error = annulus_last_error();
      std::string const unexplained =
          detail::message_of("the function of rank ", ring.rank(), " returned status ", static_cast<int>(status));
      if (error.status != status) error = {status, -1, -1, -1, unexplained.c_str()};
      error.rank = ring.rank();
      throw RankFailure(error);
    };
    run_ring(ranks, run, ring_options_of<SimulatedRingOptions>(options));
  });
}

int annulus_ring_rank(annulus_ring const* ring) { return ring ? ring->rank() : -1; }

int annulus_ring_size(annulus_ring const* ring) { return ring ? ring->size() : 0; }

void annulus_ring_free(annulus_ring* ring) {
  if (ring && ring->owned()) delete ring;
}
