#pragma once
// __half, with the conversions of Eigen::half.

#include <Eigen/Core>

struct __half {
  Eigen::half value;
};
inline float __half2float(__half number) { return static_cast<float>(number.value); }
inline __half __float2half_rn(float number) { return {static_cast<Eigen::half>(number)}; }
