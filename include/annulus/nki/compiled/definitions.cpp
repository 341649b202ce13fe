// The functions of annulus::nki that are no templates (nki/definitions.hpp).

#define ANNULUS_NKI_DEFINES
#include "annulus/nki/cost/trace.hpp"
#include "annulus/nki/kernels/backward_kernel.hpp"
#include "annulus/nki/kernels/forward_kernel.hpp"
#include "annulus/nki/print/to_python.hpp"
#include "annulus/nki/program/listing.hpp"
#include "annulus/nki/simulate/simulate.hpp"
