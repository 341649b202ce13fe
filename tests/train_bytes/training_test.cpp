// Training steps on rings of several sizes: the gradient of the whole model against finite differences of the loss, and
// runs that may differ only by rounding.

#include "train_bytes/training.hpp"

#include <annulus/annulus.hpp>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "finite_differences.hpp"
#include "support/larger_error.hpp"
#include "train_bytes/text.hpp"

using namespace annulus_test;
using namespace train_bytes;

namespace {

std::vector<annulus::Sharding> const shardings{annulus::Contiguous{}, annulus::Zigzag{}, annulus::Striped{}};

TrainingOptions small_options(annulus::Sharding const& sharding) {
  return {.shape = {.layers = 2, .width = 16, .heads = 4, .kv_heads = 2},
          .context = 21,
          .batch = 3,
          .learning_rate = 0.01,
          .sharding = sharding};
}

/// Bytes in which some follow from those before.
Bytes test_text(std::size_t size) {
  std::mt19937_64 engine(5);
  Bytes text{0, 255};
  while (text.size() < size)
    text.push_back(static_cast<std::uint8_t>(engine() % 3 == 0 ? engine() : text[text.size() - 2]));
  return text;
}

struct Run {
  std::vector<double> losses;
  Column<double> parameters;
};

/// Results of all ranks.
std::vector<Run> train_small(int ranks, annulus::Sharding const& sharding, Parameters<double> const& initial) {
  TrainingOptions const options = small_options(sharding);
  Bytes const text = test_text(2000);
  return annulus::run_ring(ranks, [&](auto& ring) {
    Trainer<double, annulus::SimulatedRing> trainer(ring, options, initial);
    RandomWindows windows(text, options.batch, options.context + 1, 3);
    Run run;
    for (int step = 0; step < 8; ++step) run.losses.push_back(trainer.step(windows.next(), options.learning_rate).loss);
    run.losses.push_back(trainer.loss(windows.next()));
    run.parameters = trainer.parameters().values();
    return run;
  });
}

double largest_difference(std::vector<double> const& one, std::vector<double> const& other) {
  REQUIRE(one.size() == other.size());
  double largest = 0;
  for (std::size_t i = 0; i < one.size(); ++i) largest = larger_error(largest, std::abs(one[i] - other[i]));
  return largest;
}

/// How far rounding errors can move the losses of a run on one rank: the largest effect of weights that are perturbed
/// at random by 16 roundings each, the square root of the 256 terms of the longest sums, over a few perturbations,
/// times 4, as rounding takes place in every step.
double rounding_bound(std::vector<double> const& losses, Parameters<double> const& initial) {
  double largest = 0;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Parameters<double> perturbed = initial;
    perturbed.values().array() *=
        1 + std::ldexp(16.0, -53) * random_matrix(initial.values().size(), 1, seed).col(0).array().sign();
    largest =
        larger_error(largest, largest_difference(losses, train_small(1, annulus::Contiguous{}, perturbed)[0].losses));
  }
  return 4 * largest;
}

}  // namespace

TEST_CASE("the gradient of the model equals finite differences of the loss, on every ring", "[train_bytes]") {
  TrainingOptions options{.shape = {.layers = 2, .width = 8, .heads = 2, .kv_heads = 1}, .context = 7, .batch = 2};
  Parameters<double> parameters(options.shape);
  parameters.values() = random_matrix(options.shape.parameters(), 1, 1);
  Bytes const text = test_text(200);
  Windows const windows = RandomWindows(text, options.batch, options.context + 1, 3).next();

  annulus::SelfRing alone;
  // The loss as an average over windows and positions, of the model's own forward pass.
  auto const loss = [&] {
    double sum = 0;
    for (Index window = 0; window < options.batch; ++window) {
      RingLayers<double, annulus::SelfRing> attention(alone, options.shape, 1, annulus::Contiguous{});
      Rotary<double> const rotary({0, 1, 2, 3, 4, 5, 6}, options.shape.head_dim());
      auto const begin = windows.bytes.begin() + window * windows.length;
      auto activations = model_forward(parameters, Bytes(begin, begin + options.context), rotary, attention);
      sum += cross_entropy(activations.logits, Bytes(begin + 1, begin + 1 + options.context), 0);
    }
    return sum / static_cast<double>(options.batch * options.context);
  };
  Matrix<double> const expected = differences(parameters.values(), loss);
  for (annulus::Sharding const& sharding : shardings)
    for (int ranks : {1, 2, 3, 4}) {
      INFO(ranks << " ranks, " << sharding.name());
      options.sharding = sharding;
      auto const results = annulus::run_ring(ranks, [&](auto& ring) {
        Trainer<double, annulus::SimulatedRing> trainer(ring, options, parameters);
        double const mean = trainer.loss_and_gradient(windows);
        return std::pair(mean, trainer.gradient().values());
      });
      for (auto const& [mean, gradient] : results) {
        CHECK(mean == Approx(loss()).epsilon(1e-13));
        CHECK((gradient - expected).norm() <= 1e-9 * expected.norm() + 1e-11);
      }
    }
}

TEST_CASE("runs on rings of several sizes differ only by rounding, and ranks not at all", "[train_bytes]") {
  auto const initial = Parameters<double>::initial(small_options({}).shape, 1);
  Run const alone = train_small(1, annulus::Contiguous{}, initial)[0];
  double const bound = rounding_bound(alone.losses, initial);
  CHECK(bound > 0);
  CHECK(bound < 1e-9);
  CHECK(alone.losses[7] < alone.losses[0] - 0.1);
  for (annulus::Sharding const& sharding : shardings)
    for (int ranks : {2, 4, 5}) {
      INFO(ranks << " ranks, " << sharding.name());
      std::vector<Run> const runs = train_small(ranks, sharding, initial);
      CHECK(largest_difference(runs[0].losses, alone.losses) <= bound);
      for (Run const& run : runs) {
        CHECK(run.losses == runs[0].losses);
        CHECK(run.parameters == runs[0].parameters);
      }
    }
}

TEST_CASE("more ranks than positions", "[train_bytes]") {
  TrainingOptions options = small_options({});
  options.context = 3;
  auto const initial = Parameters<double>::initial(options.shape, 1);
  Bytes const text = test_text(100);
  Windows const windows = RandomWindows(text, options.batch, options.context + 1, 3).next();
  auto const losses = annulus::run_ring(5, [&](auto& ring) {
    Trainer<double, annulus::SimulatedRing> trainer(ring, options, initial);
    trainer.step(windows, options.learning_rate);
    return trainer.loss(windows);
  });
  annulus::SelfRing alone;
  Trainer<double, annulus::SelfRing> trainer(alone, options, initial);
  trainer.step(windows, options.learning_rate);
  CHECK(losses[0] == Approx(trainer.loss(windows)).epsilon(1e-12));
}
