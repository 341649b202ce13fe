// What HostOperations promises beyond the backend suite, which the reference backends run on it.

#include "annulus/backend/host_operations.hpp"

#include <array>

#include "support/catch.hpp"

using namespace annulus;

TEMPLATE_TEST_CASE("merging an empty state changes no bit", "[backend]", float, double) {
  using A = TestType;
  struct Row {
    std::array<A, 2> accumulator;
    A maximum, sum;

    RunningState<A, HostMemory> view() {
      return {{accumulator.data(), {1, 1, 1, 2}}, {&maximum, {1, 1, 1}}, {&sum, {1, 1, 1}}};
    }
    bool operator==(Row const&) const = default;
  };
  Row const full{{A(0.7), A(-0.3)}, A(0.3), A(1.1)}, none{{A(0), A(0)}, empty_row<A>, A(0)};
  for (Row const& first : {full, none})
    for (Row const& second : {full, none}) {
      if (first == full && second == full) continue;
      Row into = first, from = second;
      HostOperations().merge(into.view(), from.view());
      CHECK(into == (first == full ? first : second));
    }
}

TEST_CASE("sink logits of -inf have gradient 0, also in rows that see no key", "[backend]") {
  double const none = empty_row<double>, delta = 3;
  double dsink = 7;
  for (double lse : {empty_row<double>, 0.5}) {
    HostOperations().sink_gradients(TensorView<double const, 3>(&lse, {1, 1, 1}), TensorView<double const, 3>(),
                                    TensorView<double const, 3>(&delta, {1, 1, 1}),
                                    TensorView<double const, 2>(&none, {1, 1}), TensorView<double, 2>(&dsink, {1, 1}));
    CHECK(dsink == 0);
  }
}
