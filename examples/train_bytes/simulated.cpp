// Training on simulated ranks.

#include "run.hpp"

namespace train_bytes {

template <class T>
Trained<T> train_simulated(int ranks, TrainingOptions const& options, Budget const& budget, Text const& text,
                           std::function<void(double)> const& report) {
  auto results = annulus::run_ring(ranks, [&](auto& ring) { return train<T>(ring, options, budget, text, report); });
  return std::move(results[0]);
}

template Trained<float> train_simulated(int, TrainingOptions const&, Budget const&, Text const&,
                                        std::function<void(double)> const&);
template Trained<double> train_simulated(int, TrainingOptions const&, Budget const&, Text const&,
                                         std::function<void(double)> const&);

}  // namespace train_bytes
