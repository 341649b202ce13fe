// rounding_bounds: results of the reference backend are within the bounds, errors of 3 percent of an element are not.

#include <cstdint>
#include <random>
#include <string>

#include "command/verification.hpp"
#include "support/catch.hpp"

using namespace annulus_command;

namespace {

Call call_of(annulus::DataType type) {
  Call call;
  call.shape = {.dtype = type,
                .attention = {.batch = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 8},
                .queries = 37,
                .keys = 45,
                .bias = {1, 4},
                .sinks = 2,
                .backward = true,
                .bias_gradient = true};
  call.options.mask.causal = true;
  call.options.query_offset = 8;
  return call;
}

template <annulus::Scalar T>
Inputs<T> random_inputs(Call const& call, std::uint64_t seed) {
  Inputs<T> inputs = make_inputs<T>(call, {call.shape.queries, call.shape.keys});
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  for_each_tensor<T>(inputs, [&](auto& tensor) {
    using Element = std::remove_reference_t<decltype(*tensor.data())>;
    for (Eigen::Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<Element>(normal(generator));
  });
  return inputs;
}

template <annulus::Scalar T>
Results<T> results_of(Inputs<T> const& inputs, Call const& call) {
  annulus::SelfRing self;
  AnyRing ring(self);
  Timeline timeline;
  return attend_on_rank(ring, call, inputs, timeline);
}

bool good(std::vector<Verified> const& all, std::string const& name) {
  for (Verified const& result : all)
    if (result.name == name) return result.good();
  FAIL("no result has the name " << name);
  return false;
}

template <annulus::Scalar T>
void check_planted_errors(annulus::DataType type) {
  Call const call = call_of(type);
  Inputs<T> const inputs = random_inputs<T>(call, 5);
  Results<T> const right = results_of(inputs, call);
  for (Verified const& result : verified(inputs, call, right)) {
    CAPTURE(result.name, result.largest, result.bound, result.of_bound, result.worst);
    CHECK(result.good());
  }
  auto const check = [&](char const* name, auto const& member) {
    CAPTURE(name);
    Results<T> all_wrong = right, one_wrong = right;
    auto& all = member(all_wrong);
    auto& one = member(one_wrong);
    using Element = std::remove_reference_t<decltype(*all.data())>;
    Eigen::Index largest = 0;
    auto const size = [&](Eigen::Index i) { return std::abs(static_cast<double>(one.data()[i])); };
    for (Eigen::Index i = 0; i < all.size(); ++i) {
      all.data()[i] = static_cast<Element>(1.03 * static_cast<double>(all.data()[i]));
      if (std::isfinite(size(i)) && size(i) > size(largest)) largest = i;
    }
    one.data()[largest] = static_cast<Element>(1.03 * static_cast<double>(one.data()[largest]));
    CHECK_FALSE(good(verified(inputs, call, all_wrong), name));
    CHECK_FALSE(good(verified(inputs, call, one_wrong), name));
    one.data()[largest] = std::numeric_limits<Element>::quiet_NaN();
    CHECK_FALSE(good(verified(inputs, call, one_wrong), name));
  };
  check(
      "out", [](Results<T> & r) -> auto& { return r.out; });
  check(
      "lse", [](Results<T> & r) -> auto& { return r.lse; });
  check(
      "dq", [](Results<T> & r) -> auto& { return *r.dq; });
  check(
      "dk", [](Results<T> & r) -> auto& { return *r.dk; });
  check(
      "dv", [](Results<T> & r) -> auto& { return *r.dv; });
  check(
      "dbias", [](Results<T> & r) -> auto& { return *r.dbias; });
  check(
      "dsinks", [](Results<T> & r) -> auto& { return *r.dsinks; });
}

}  // namespace

TEST_CASE("an error of 3 percent is detected in every result of every element type", "[verify]") {
  SECTION("double") { check_planted_errors<double>(annulus::DataType::float64); }
  SECTION("float") { check_planted_errors<float>(annulus::DataType::float32); }
  SECTION("half") { check_planted_errors<Eigen::half>(annulus::DataType::float16); }
  SECTION("bfloat16") { check_planted_errors<Eigen::bfloat16>(annulus::DataType::bfloat16); }
}

TEST_CASE("bounds are finite, positive, and near the unit roundoff of the type", "[verify]") {
  for (auto const& [type, unit] : {std::pair{annulus::DataType::float64, 0x1p-52},
                                   {annulus::DataType::float32, 0x1p-24},
                                   {annulus::DataType::float16, 0x1p-11},
                                   {annulus::DataType::bfloat16, 0x1p-8}}) {
    Call const call = call_of(type);
    Inputs<double> const inputs = random_inputs<double>(call, 6);
    Results<double> const reference = reference_results(inputs, call);
    Results<double> const bounds = rounding_bounds(inputs, call, reference);
    double const sums = type == annulus::DataType::float64 ? 0x1p-52 : 0x1p-24;
    double const limit = 1000 * (unit + 100 * sums);
    for_each_tensor<double>(bounds, [&](auto const& tensor) {
      if (tensor.data() == bounds.lse_remainder.data()) return;  // it has none
      for (Eigen::Index i = 0; i < tensor.size(); ++i) {
        REQUIRE(tensor.data()[i] > 0);
        REQUIRE(tensor.data()[i] < limit);
      }
    });
  }
}
