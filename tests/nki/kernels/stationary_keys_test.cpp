// Forward kernel with stationary keys: it reports the rows whose sums are beyond its range, and all others are right.

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "annulus/nki/kernels/forward_kernel.hpp"
#include "annulus/nki/validate/validate.hpp"
#include "nki/kernels/vendor_problem.hpp"
#include "nki/simulate/simulated_launch.hpp"
#include "support/catch.hpp"

using namespace annulus_test;
namespace nki = annulus::nki;

namespace {

constexpr Index rows = 300, dim = 16, heads = 3, ranks = 2, columns = 3;

/// An operand of all ranks, [head][dim][row] or, of v and output, [head][row][dim].
struct Operand {
  std::vector<nki::Tensors> const& tensors;
  char const* name;
  bool by_token = false;

  double operator()(Index head, Index token, Index d) const {
    std::vector<float> const& values = tensors[static_cast<std::size_t>(token / rows)].at(name);
    Index const row = token % rows;
    return static_cast<double>(
        values[static_cast<std::size_t>(by_token ? (head * rows + row) * dim + d : (head * dim + d) * rows + row)]);
  }
};

/// Log-sum-exp and output of a query in double.
struct Exact {
  double lse = 0;
  std::vector<double> output = std::vector<double>(dim, 0.0);

  Exact(std::vector<nki::Tensors> const& inputs, VendorProblem const& problem, Index head, Index token) {
    Operand const q{inputs, "q"}, k{inputs, "k"}, v{inputs, "v", true};
    annulus::RowRange const seen = problem.seen(token);
    std::vector<double> logits;
    for (Index key = seen.begin; key < seen.end; ++key) {
      double product = 0;
      for (Index d = 0; d < dim; ++d) product += q(head, token, d) * k(head, key, d);
      logits.push_back(problem.scale() * product);
    }
    double const largest = *std::ranges::max_element(logits);
    double sum = 0;
    for (Index key = seen.begin; key < seen.end; ++key) {
      double const weight = std::exp(logits[static_cast<std::size_t>(key - seen.begin)] - largest);
      sum += weight;
      for (Index d = 0; d < dim; ++d) output[static_cast<std::size_t>(d)] += weight * v(head, key, d);
    }
    for (double& value : output) value /= sum;
    lse = largest + std::log(sum);
  }
};

float entry(nki::Tensors const& results, char const* name, Index head, Index row) {
  return results.at(name)[static_cast<std::size_t>((head * 128 + row % 128) * columns + row / 128)];
}

/// Multiplies the queries of each block of 20 rows by another factor, from harmless to far beyond float32, and shifts
/// all keys, so that some rows have large positive logits, some have large negative ones alone, and some have both.
void spread(std::vector<nki::Tensors>& inputs) {
  constexpr float factors[] = {1, 8, 30, 100, 1000, -8, -30, -100};
  for (nki::Tensors& rank : inputs) {
    for (std::size_t i = 0; i < rank["q"].size(); ++i) rank["q"][i] *= factors[i % rows / 20 % 8];
    for (Index head = 0; head < heads; ++head)
      for (Index row = 0; row < rows; ++row)
        for (Index d = 0; d < 4; ++d) rank["k"][static_cast<std::size_t>((head * dim + d) * rows + row)] += 3;
    for (char const* name : {"q", "k"}) nki::simulator::round_to(bf16, rank[name].data(), std::ssize(rank[name]));
  }
}

/// size: a power of two that multiplies the values.
void check_rows(Order order, int cores, float size = 1) {
  CAPTURE(static_cast<int>(order), cores, size);
  VendorProblem const problem({order, 1, heads, rows, dim, ranks, cores, bf16});
  nki::RingMask const mask = problem.mask();
  nki::KernelSpec spec = problem.spec();
  nki::ValidatedProgram const online = valid(nki::ForwardKernel(spec, mask).ring());
  spec.keys_stationary = true;
  nki::ValidatedProgram const fast = valid(nki::ForwardKernel(spec, mask).ring());
  std::vector<nki::Tensors> inputs = problem.inputs(mask);
  for (nki::Tensors& rank : inputs) {
    rank.erase("dout");
    for (float& value : rank["v"]) value *= size;
  }
  spread(inputs);
  nki::Arrangement const arrangement{.ring = {1, 0}, .first_core = cores - 1};
  std::vector<nki::Tensors> const results = launch(fast, inputs, arrangement);
  std::vector<nki::Tensors> const again = launch(online, inputs, arrangement);
  Index reported = 0, wrong = 0, missed = 0, needless = 0, wrong_again = 0;
  Operand const fast_output{results, "output", true}, online_output{again, "output", true};
  for (Index head = 0; head < heads; ++head)
    for (Index token = 0; token < ranks * rows; ++token) {
      // The order of the tokens does not matter without a mask; contiguous shards hold them in order.
      Exact const exact(inputs, problem, head, token);
      auto const rank = static_cast<std::size_t>(token / rows);
      bool const beyond = entry(results[rank], "beyond_range", head, token % rows) != 0;
      double const limit = 60 * std::log(2.0);
      if (std::abs(exact.lse) > limit + 0.1 && !beyond) ++missed;
      if (std::abs(exact.lse) < limit - 0.1 && beyond) ++needless;
      reported += beyond;
      auto const differs = [&](Operand const& output) {
        for (Index d = 0; d < dim; ++d)
          if (!(std::abs(output(head, token, d) - exact.output[static_cast<std::size_t>(d)]) <= 0.02 * double{size}))
            return true;
        return false;
      };
      if (!beyond) {
        wrong += differs(fast_output);
        wrong += !(std::abs(static_cast<double>(entry(results[rank], "lse", head, token % rows)) - exact.lse) <=
                   0x1p-8 + 1e-4);
      }
      wrong_again += differs(online_output);
    }
  CHECK(missed == 0);
  CHECK(needless == 0);
  CHECK(wrong == 0);
  CHECK(wrong_again == 0);
  // Every kind of row occurs, and rows of one block differ.
  CHECK(reported > ranks * rows * heads / 10);
  CHECK(reported < ranks * rows * heads * 9 / 10);
}

}  // namespace

TEST_CASE("stationary keys: rows beyond the range are reported, and no other row is wrong", "[nki]") {
  for (int const cores : {1, 2})
    for (Order const order : {full, contiguous}) check_rows(order, cores);
}

TEST_CASE("stationary keys: all rows of a head with a sink logit above 41 are reported", "[nki]") {
  VendorProblem const problem({full, 1, heads, rows, dim, ranks, 1, bf16});
  nki::RingMask const mask = problem.mask();
  nki::KernelSpec spec = problem.spec();
  spec.sinks = 2;
  spec.keys_stationary = true;
  std::vector<nki::Tensors> inputs = problem.inputs(mask);
  for (nki::Tensors& rank : inputs) {
    rank.erase("dout");
    rank["sinks"] = {-100, 41, -100, 42, 95, 3};  // of each head, two
  }
  std::vector<nki::Tensors> const results =
      launch(valid(nki::ForwardKernel(spec, mask).ring()), inputs, {.ring = {1, 0}});
  for (nki::Tensors const& rank : results)
    for (Index head = 0; head < heads; ++head)
      for (Index row = 0; row < rows; ++row) {
        CAPTURE(head, row);
        REQUIRE(entry(rank, "beyond_range", head, row) == (head == 0 ? 0.0f : 1.0f));
      }
}

TEST_CASE("stationary keys: values may be as large as 2^60, and as small as 2^-60", "[nki]") {
  for (float const size : {0x1p57f, 0x1p-57f})
    check_rows(full, 2, size);  // normally distributed, so up to 8 times that
}

TEST_CASE("stationary keys: what is not supported is refused", "[nki]") {
  VendorProblem const problem({full, 1, 1, 128, dim, 1, 1, bf16});
  nki::RingMask const mask = problem.mask();
  auto const refused = [&](auto const& change, std::string const& says) {
    nki::KernelSpec spec = problem.spec();
    spec.keys_stationary = true;
    change(spec);
    CHECK_THROWS_WITH(nki::ForwardKernel(spec, mask), Catch::Matchers::ContainsSubstring(says));
  };
  refused([](nki::KernelSpec& spec) { spec.type = fp16; }, "stationary keys of float16");
  refused([](nki::KernelSpec& spec) { spec.shape.value_dim = 512; }, "value_dim 512");
  refused([](nki::KernelSpec& spec) { spec.bias.given = true; }, "with a bias");
  nki::KernelSpec spec = problem.spec();
  spec.keys_stationary = true;
  std::vector<std::int32_t> query_ids(128, 1), key_ids(128, 1);
  std::fill_n(query_ids.begin() + 40, 40, 2);
  std::fill_n(key_ids.begin() + 60, 68, 2);
  std::vector<std::vector<std::int32_t>> const of_queries(1, query_ids), of_keys(1, key_ids);
  nki::RingMask const gap = nki::sharded_mask({}, annulus::Contiguous{}, 1, 128, 128, 0, of_queries, of_keys);
  CHECK_THROWS_WITH(nki::ForwardKernel(spec, gap), Catch::Matchers::ContainsSubstring("not consecutive"));
  nki::RingMask const sinks =
      nki::sharded_mask({.window = {.left = 9}, .sink_tokens = 3}, annulus::Contiguous{}, 1, 128, 128);
  CHECK_THROWS_WITH(nki::ForwardKernel(spec, sinks), Catch::Matchers::ContainsSubstring("begins at row 3"));
  nki::KernelSpec of_step = problem.spec();
  of_step.keys_stationary = true;
  CHECK_THROWS_AS(nki::ForwardKernel(of_step, mask).step(), annulus::UnsupportedError);
}
