#pragma once
// Element types of operands, and the wider accumulator type of sums over them.

#include <Eigen/Core>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace annulus {

/// Element type of q, k, v and dout.
template <class T>
concept Scalar = std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, Eigen::half> ||
    std::same_as<T, Eigen::bfloat16>;

/// Type of the running state, lse, and gradients in flight: double for double, else float.
template <Scalar T>
using Accumulator = std::conditional_t<std::same_as<T, double>, double, float>;

/// Element type as a run-time value.
enum class DataType : std::uint8_t {
  float64,   ///< double
  float32,   ///< float
  float16,   ///< Eigen::half
  bfloat16,  ///< Eigen::bfloat16
};

/// The DataType of an element type.
template <Scalar T>
inline constexpr DataType data_type = std::same_as<T, double>        ? DataType::float64
                                      : std::same_as<T, float>       ? DataType::float32
                                      : std::same_as<T, Eigen::half> ? DataType::float16
                                                                     : DataType::bfloat16;

constexpr std::string_view name_of(DataType type) {
  switch (type) {
    case DataType::float64:
      return "float64";
    case DataType::float32:
      return "float32";
    case DataType::float16:
      return "float16";
    case DataType::bfloat16:
      return "bfloat16";
  }
  return "unknown";
}

/// Bytes of one element.
constexpr int size_of(DataType type) { return type == DataType::float64 ? 8 : type == DataType::float32 ? 4 : 2; }

}  // namespace annulus

namespace annulus::detail {

/// The value of T nearest to `value`, ties to even. A cast of a double to 16 bits converts to float first and so rounds
/// twice. Here an inexact float gets an odd last bit, by which the second rounding tells it from a tie. Boldo and
/// Melquiond, "When double rounding is odd", IMACS 2005.
template <Scalar T, class From>
T round_once(From value) {
  if constexpr (sizeof(T) == 2 && std::same_as<From, double>) {
    auto const near = static_cast<float>(value);
    if (static_cast<double>(near) == value || std::isnan(value)) return static_cast<T>(near);
    auto const bits = std::bit_cast<std::uint32_t>(near);
    bool const away = std::abs(static_cast<double>(near)) > std::abs(value);
    return static_cast<T>(std::bit_cast<float>((bits - (away ? 1 : 0)) | 1));
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace annulus::detail
