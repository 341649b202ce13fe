#pragma once
// A whole training run: steps until a number of them or a time is reached, then validation.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <functional>
#include <numbers>
#include <optional>
#include <utility>
#include <vector>

#include "curve.hpp"
#include "text.hpp"
#include "training.hpp"

namespace train_bytes {

/// The end of a run: after a number of steps, or at the first step that begins after a time, if one is given.
struct Budget {
  Index steps = 200;
  std::optional<double> minutes{};
};

/// What each rank returns. Equal on all ranks, except for the seconds.
template <class T>
struct Trained {
  Parameters<T> parameters;
  Curve curve;
  double validation;  ///< bits per byte
  Index validation_windows;
  double seconds;  ///< of the steps alone
};

inline double bits(double nats) { return nats / std::numbers::ln2; }

/// Trains a model on all ranks of the ring. report(share) is called on rank 0, with the share of the run that is done.
/// Collective.
template <class T, class Ring>
Trained<T> train(Ring& ring, TrainingOptions const& options, Budget const& budget, Text const& text,
                 std::function<void(double)> const& report) {
  Trainer<T, Ring> trainer(ring, options, Parameters<T>::initial(options.shape, options.seed));
  RandomWindows windows(text.training, options.batch, options.context + 1, options.seed);
  auto const begin = std::chrono::steady_clock::now();
  auto const seconds = [begin] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  // With a time limit the clock of rank 0 counts for all ranks, so that they take equal steps and end together.
  auto const progress = [&](Index step) {
    if (!budget.minutes) return static_cast<double>(step) / static_cast<double>(budget.steps);
    double share = ring.rank() == 0 ? seconds() / (60 * *budget.minutes) : 0;
    annulus::all_reduce(ring, annulus::TensorView<double, 1>(&share, {1}));
    return share;
  };
  Curve curve;
  for (Index step = 0;; ++step) {
    double const share = progress(step);
    if (ring.rank() == 0) report(share);
    if (share >= 1) break;
    double const rate = options.learning_rate * learning_rate_factor(step, options.warm_up_steps, share);
    auto const [loss, gradient_norm] = trainer.step(windows.next(), rate);
    curve.push_back({step, bits(loss), gradient_norm, rate});
  }
  double const trained_seconds = seconds();

  auto const validation = even_windows(text.validation, options.batch, options.context + 1);
  double sum = 0;
  for (Windows const& batch : validation) sum += trainer.loss(batch);
  auto const batches = static_cast<double>(validation.size());
  return {trainer.parameters(), std::move(curve), bits(sum / batches),
          static_cast<Index>(validation.size()) * options.batch, trained_seconds};
}

/// train() on `ranks` threads of this process. Returns rank 0's result.
template <class T>
Trained<T> train_simulated(int ranks, TrainingOptions const& options, Budget const& budget, Text const& text,
                           std::function<void(double)> const& report);

/// train() on the processes of MPI_COMM_WORLD. prepare(rank, ranks) runs first on each of them, and may fill `text`; if
/// it throws on any rank, all throw AgreedEnding. Throws InputError in a build without MPI.
template <class T>
Trained<T> train_over_mpi(std::function<void(int, int)> const& prepare, TrainingOptions const& options,
                          Budget const& budget, Text const& text, std::function<void(double)> const& report);

}  // namespace train_bytes
