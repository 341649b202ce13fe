// Attention over 1,048,576 tokens on 64 workers of 16,384 tokens: the whole program is built, validated and costed, and
// rows of sampled query tiles are executed over the whole ring.

#include <sys/resource.h>

#include <chrono>
#include <cmath>
#include <random>

#include <Eigen/Core>

#include "annulus/nki/cost/report.hpp"
#include "annulus/nki/kernels/forward_kernel.hpp"
#include "annulus/nki/validate/validate.hpp"
#include "annulus/sharding/sharding.hpp"
#include "nki/simulate/simulated_launch.hpp"
#include "support/catch.hpp"
#include "support/larger_error.hpp"

namespace {

using annulus::Index;
using annulus_test::larger_error;
namespace nki = annulus::nki;

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Peak resident memory of the process so far, in bytes.
double peak_memory() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return 1024.0 * static_cast<double>(usage.ru_maxrss);
}

nki::KernelSpec causal_spec(int workers, Index queries, Index keys, Index dim) {
  nki::KernelSpec spec;
  spec.ranks = workers;
  spec.shape = {1, 1, 1, dim, dim};
  spec.local_queries = queries;
  spec.local_keys = keys;
  spec.softmax_scale = 1 / std::sqrt(static_cast<double>(dim));
  return spec;
}

std::vector<nki::RankRows> striped_rows(int workers, Index rows) {
  std::vector<Index> const held(static_cast<std::size_t>(workers), rows);
  std::vector<nki::RankRows> all;
  for (int rank = 0; rank < workers; ++rank)
    all.push_back({annulus::Sharding(annulus::Striped{}).segments(annulus::Side::key, rank, held)});
  return all;
}

/// Causal, striped over all workers. Every worker holds `keys` keys, but as queries only `sampled` rows of one query
/// tile of its shard, a different tile on each worker. The ring, its buffers, exchanges and key sections are those of
/// the whole problem; only the other query tiles are left out. All workers run the same program, so tiles at different
/// positions make it mask key tiles that the whole problem would skip or leave unmasked.
void execute_sample(int workers, Index keys, Index sampled, Index dim, Index checked_rows) {
  std::vector<nki::RankRows> const key_rows = striped_rows(workers, keys);
  std::vector<nki::RankRows> query_rows;
  for (int rank = 0; rank < workers; ++rank) {
    Index const tiles = std::max<Index>(1, keys / 128), tile = (rank * 37 + 11) % tiles;
    query_rows.push_back({{{0, sampled, rank + tile * 128 * workers, workers}}});
  }
  nki::RingMask const mask(annulus::causal(), query_rows, key_rows);
  nki::KernelSpec spec = causal_spec(workers, sampled, keys, dim);
  spec.output_type = nki::ElementType::float32;
  nki::ValidatedProgram const program = annulus_test::valid(nki::ForwardKernel(spec, mask).ring());

  std::mt19937 generator(5);
  std::normal_distribution<float> normal;
  auto const matrix = [&](Index rows, Index columns) {
    Eigen::MatrixXf values(rows, columns);
    for (float& value : values.reshaped()) value = normal(generator);
    nki::simulator::round_to(spec.type, values.data(), values.size());
    return values;
  };
  // Columns are the tokens of the whole sequence; the kernel takes v as [token, dim] and k as [dim, token].
  Index const tokens = workers * keys;
  Eigen::MatrixXf const k = matrix(dim, tokens), v = matrix(dim, tokens);
  std::vector<Eigen::MatrixXf> q;
  std::vector<nki::Tensors> inputs;
  auto const list = [](Eigen::MatrixXf const& values) {
    return std::vector<float>(values.data(), values.data() + values.size());
  };
  for (int rank = 0; rank < workers; ++rank) {
    q.push_back(matrix(dim, sampled));
    auto const own = Eigen::seqN(Index{rank}, keys, Index{workers});
    nki::Tensors& tensors = inputs.emplace_back();
    tensors["q"] = list(q.back().transpose());
    Eigen::MatrixXf const own_keys = k(Eigen::all, own);
    tensors["k"] = list(own_keys.transpose());
    tensors["v"] = list(v(Eigen::all, own));
    tensors["mask_offsets"] = mask.offsets(rank, 1);
  }
  std::vector<int> ring(static_cast<std::size_t>(workers));
  for (int place = 0; place < workers; ++place) ring[static_cast<std::size_t>(place)] = place * 5 % workers;
  std::vector<nki::Tensors> const results = annulus_test::launch(program, inputs, {.ring = ring});

  double worst = 0, worst_lse = 0;
  Index const columns = annulus::detail::ceil_divide(sampled, Index{128});
  for (int rank = 0; rank < workers; ++rank)
    for (Index sample = 0; sample < checked_rows; ++sample) {
      Index const row = sample * (sampled - 1) / std::max<Index>(1, checked_rows - 1);
      auto const& segment = query_rows[static_cast<std::size_t>(rank)].segments.front();
      Index const seen = segment.global_begin + row * workers + 1;
      // Products in float, sums in double: an error of 1e-6 in a score is far below the rounding of the weights.
      Eigen::ArrayXd weights =
          (k.leftCols(seen).transpose() * q[static_cast<std::size_t>(rank)].col(row)).cast<double>() *
          spec.softmax_scale;
      double const highest = weights.maxCoeff();
      weights = (weights - highest).exp();
      double const sum = weights.sum();
      Eigen::VectorXd output = Eigen::VectorXd::Zero(dim), terms = output;
      for (Index key = 0; key < seen; ++key) {
        output += weights[key] / sum * v.col(key).cast<double>();
        terms += weights[key] / sum * v.col(key).cwiseAbs().cast<double>();
      }
      nki::Tensors const& result = results[static_cast<std::size_t>(rank)];
      Eigen::Map<Eigen::VectorXf const> const got(result.at("output").data() + row * dim, dim);
      // Weights are rounded to bfloat16 once; 1e-5 is added for the float32 sum over a million of them.
      Eigen::ArrayXd const shares = (got.cast<double>() - output).array().abs() / ((0x1p-8 + 1e-5) * terms.array());
      worst = larger_error(worst, shares.maxCoeff<Eigen::PropagateNaN>());
      double const lse = result.at("lse")[static_cast<std::size_t>(row % 128 * columns + row / 128)];
      worst_lse = larger_error(worst_lse, std::abs(lse - highest - std::log(sum)));
    }
  CAPTURE(workers, keys, sampled, dim);
  CHECK(worst <= 1);
  CHECK(worst_lse <= 1e-5);
}

}  // namespace

TEST_CASE("a program for 1,048,576 tokens over 64 workers is built, validated and costed") {
  [[maybe_unused]] double const before = peak_memory();
  auto const begin = std::chrono::steady_clock::now();
  constexpr int workers = 64;
  constexpr Index rows = 16384;
  auto const ranks = striped_rows(workers, rows);
  nki::RingMask const mask(annulus::causal(), ranks, ranks);
  nki::KernelSpec spec = causal_spec(workers, rows, rows, 128);
  spec.shape.query_heads = spec.shape.kv_heads = 2;
  nki::Program const program = nki::ForwardKernel(spec, mask).ring();
  double const built = seconds_since(begin), memory_to_build = peak_memory();
  nki::Hardware const hardware = nki::hardware_of(spec.target);
  CHECK(nki::findings(program, hardware).empty());
  double const validated = seconds_since(begin);
  nki::CostReport const report = nki::cost_report(program, hardware);
  double const costed = seconds_since(begin);
  WARN("built " << built << " s, validated " << validated - built << " s, costed " << costed - validated
                << " s, peak of the process " << memory_to_build / 1048576 << " MiB built, " << peak_memory() / 1048576
                << " MiB costed; " << report.counts.instructions() << " instructions, modelled " << report.seconds
                << " s, tensor engine " << 100 * report.tensor_utilisation << " %");
  // Causal: at least half of the 4 n^2 d operations of 2 heads, divided among 64 workers.
  double const tokens = static_cast<double>(workers) * rows;
  CHECK(2.0 * static_cast<double>(report.counts.multiply_adds) >= 2 * 0.5 * 4 * tokens * tokens * 128 / workers);
  CHECK(report.on_chip.sbuf <= report.on_chip.sbuf_limit);
  // Some seconds and half a GiB are usual; sanitizers take several times the memory.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  CHECK(peak_memory() <= std::max(before, 2.0 * 1024 * 1024 * 1024));
#endif
}

TEST_CASE("sampled query tiles of a ring of 64 workers") { execute_sample(64, 256, 8, 32, 4); }

TEST_CASE("sampled query tiles of 1,048,576 tokens over 64 workers", "[.long]") {
  auto const begin = std::chrono::steady_clock::now();
  execute_sample(64, 16384, 16, 128, 2);
  WARN(seconds_since(begin) << " s, peak of the process " << peak_memory() / 1048576 << " MiB");
}
