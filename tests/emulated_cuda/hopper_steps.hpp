#pragma once
// How many steps the stand-in for the Hopper kernels has computed.

namespace annulus_test {

inline int hopper_steps = 0;

}  // namespace annulus_test
