// Training on the processes of an MPI job.

#include "command/collectives.hpp"
#include "command/errors.hpp"
#include "run.hpp"

#if TRAIN_BYTES_HAS_MPI
#include <annulus/comm/mpi.hpp>
#endif

namespace train_bytes {

using annulus_command::InputError;

template <class T>
Trained<T> train_over_mpi([[maybe_unused]] std::function<void(int, int)> const& prepare,
                          [[maybe_unused]] TrainingOptions const& options, [[maybe_unused]] Budget const& budget,
                          [[maybe_unused]] Text const& text,
                          [[maybe_unused]] std::function<void(double)> const& report) {
#if TRAIN_BYTES_HAS_MPI
  return annulus::run_mpi_ring([&](annulus::MpiRing& ring) {
    annulus_command::Collectives ranks{annulus_command::AnyRing(ring)};
    ranks.together([&] { prepare(ring.rank(), ring.size()); });
    auto const fingerprints = ranks.all(fingerprint(text));
    ranks.together([&] {
      for (std::size_t rank = 1; rank < fingerprints.size(); ++rank)
        if (fingerprints[rank] != fingerprints[0])
          throw InputError("the text differs between ranks 0 and " + std::to_string(rank) +
                           "; accepted: the same text on all ranks");
    });
    return train<T>(ring, options, budget, text, report);
  });
#else
  throw InputError("--comm mpi: this build has no MPI; accepted: sim");
#endif
}

template Trained<float> train_over_mpi(std::function<void(int, int)> const&, TrainingOptions const&, Budget const&,
                                       Text const&, std::function<void(double)> const&);
template Trained<double> train_over_mpi(std::function<void(int, int)> const&, TrainingOptions const&, Budget const&,
                                        Text const&, std::function<void(double)> const&);

}  // namespace train_bytes
