#pragma once
// Wire type: the element type in which operands travel.

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace annulus {

/// Element type of q, k, v and dout on their way between ranks.
enum class Wire : std::uint8_t {
  as_stored,  ///< their own
  bfloat16,   ///< float and double operands are rounded to bfloat16
  half,       ///< they are rounded to half: larger values than 65504 become infinite
};

constexpr std::string_view name_of(Wire wire) {
  constexpr std::string_view names[] = {"as_stored", "bfloat16", "half"};
  return names[static_cast<std::size_t>(wire)];
}

}  // namespace annulus
