// The functions of annulus::cpu that are no templates (core/definitions.hpp).

#define ANNULUS_CPU_DEFINES
#include "annulus/annulus.hpp"
#include "annulus/schedule/check_plan.hpp"
#include "annulus/schedule/print_actions.hpp"
