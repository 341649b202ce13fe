#pragma once
// __nv_bfloat16, with the conversions of Eigen::bfloat16.

#include <Eigen/Core>

struct __nv_bfloat16 {
  Eigen::bfloat16 value;
};
inline float __bfloat162float(__nv_bfloat16 number) { return static_cast<float>(number.value); }
inline __nv_bfloat16 __float2bfloat16_rn(float number) { return {static_cast<Eigen::bfloat16>(number)}; }
