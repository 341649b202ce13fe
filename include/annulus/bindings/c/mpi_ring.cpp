// Rings over MPI, the library annulus_c_mpi. It is separate, so that annulus_c runs where MPI is not installed.

#include "annulus/comm/mpi.hpp"

#include "annulus/bindings/c/rings.hpp"

using namespace annulus;
using namespace annulus::bindings;

annulus_status annulus_ring_from_mpi(int communicator, annulus_ring_options const* options, annulus_ring** ring) {
  return guarded([&] {
    require_given(ring, "ring");
    auto const mpi_options = ring_options_of<MpiRingOptions>(options);
    detail::check<CommunicationError>(detail::mpi_is_running(),
                                      "annulus_ring_from_mpi must be called after MPI_Init and before MPI_Finalize");
    *ring = new RingHandle<MpiRing>(MpiRing(MPI_Comm_f2c(communicator), mpi_options));
  });
}
