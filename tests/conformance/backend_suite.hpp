#pragma once
// Test suite that every backend must pass. One line adds an implementation (see backend_implementations.hpp):
//   TEST_CASE("MyBackend is a backend") { backend_suite(HostImplementation<MyBackend>{}); }

#include "conformance/backend_elementwise_cases.hpp"
#include "conformance/backend_implementations.hpp"
#include "conformance/backend_ring_cases.hpp"
#include "conformance/backend_state_cases.hpp"
#include "conformance/backend_step_cases.hpp"
#include "support/catch.hpp"

namespace annulus_test {

template <class Implementation>
void backend_suite(Implementation const& implementation) {
  using namespace backend_cases;
  static_assert(annulus::Backend<typename Implementation::Backend>);
  SECTION("buffers") { allocations(implementation); }
  SECTION("what is supported") { support_answers(implementation); }
  SECTION("copy, convert, add, clear") { elementwise_operations(implementation); }
  SECTION("states, float") { state_operations<float>(implementation); }
  SECTION("states, double") { state_operations<double>(implementation); }
  SECTION("states, bfloat16") { state_operations<Eigen::bfloat16>(implementation); }
  SECTION("steps, float") { step_operations<float>(implementation); }
  SECTION("steps, double") { step_operations<double>(implementation); }
  SECTION("whole problems, float") { CHECK(whole_problems<float>(implementation, 530'000, 100) > 0); }
  SECTION("whole problems, double") {
    // Some devices have no doubles: they refuse all problems.
    bool const some = static_cast<bool>(implementation.make(15).supports(every_problem().at("float64")));
    CHECK((whole_problems<double>(implementation, 540'000, 50) > 0) == some);
  }
  SECTION("buffers and bits of repeated calls") { planned_buffers<float>(implementation, 550'000, 40); }
}

}  // namespace annulus_test
