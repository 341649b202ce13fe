// Runs the backend suite on the reference backends; foreign_conformance_test.cpp does so for another memory space.

#include "annulus/backend/reference/reference.hpp"
#include "conformance/backend_suite.hpp"

using namespace annulus_test;

TEST_CASE("ReferenceBackend is a backend", "[backend]") {
  backend_suite(HostImplementation<annulus::ReferenceBackend>{});
}

TEST_CASE("DoubleReferenceBackend is a backend", "[backend]") {
  backend_suite(HostImplementation<annulus::DoubleReferenceBackend>{});
}

TEMPLATE_TEST_CASE("ReferenceBackend, 16-bit operands: steps", "[backend]", Eigen::half, Eigen::bfloat16) {
  HostImplementation<annulus::ReferenceBackend> const implementation;
  backend_cases::empty_steps<TestType>(implementation);
  backend_cases::narrow_steps<TestType>(implementation, 571'000, 60);
}

TEST_CASE("the reference backends support everything", "[backend]") {
  for (auto const& [name, problem] : backend_cases::every_problem()) {
    INFO(name);
    CHECK(static_cast<bool>(annulus::ReferenceBackend().supports(problem)));
    CHECK(static_cast<bool>(annulus::DoubleReferenceBackend().supports(problem)));
  }
}

namespace {

/// Refuses dropout, and any problem on a rank without queries.
class ChoosyBackend : public annulus::ReferenceBackend {
 public:
  annulus::Support supports(annulus::Problem const& problem) const {
    if (problem.rules.dropout.active()) return annulus::Support::no("ChoosyBackend has no dropout");
    if (problem.local_queries == 0) return annulus::Support::no("ChoosyBackend requires local queries on each rank");
    return annulus::Support::yes();
  }
};

}  // namespace

TEST_CASE("what a backend refuses on one rank is refused on all, with its reason", "[backend]") {
  HostImplementation<ChoosyBackend> const choosy;
  backend_cases::support_answers(choosy);
  std::uint64_t const solved = backend_cases::whole_problems<float>(choosy, 560'000, 60);
  CHECK(solved > 0);
  CHECK(solved < 60);
}
