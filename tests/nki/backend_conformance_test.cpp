// The Trainium backend, on simulated NeuronCores, goes through the cases of every backend.

#include "annulus/backend/nki/nki.hpp"
#include "conformance/backend_suite.hpp"

using namespace annulus_test;

TEST_CASE("NkiBackend is a backend", "[backend][nki]") { backend_suite(HostImplementation<annulus::NkiBackend>{}); }
