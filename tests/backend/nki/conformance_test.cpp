// Backend conformance suite, run on the Trainium backend on simulated NeuronCores.

#include "annulus/backend/nki.hpp"
#include "conformance/backend_suite.hpp"

using namespace annulus_test;

TEST_CASE("NkiBackend is a backend", "[backend][nki]") { backend_suite(HostImplementation<annulus::NkiBackend>{}); }
