#pragma once
// Differences between NKI versions in the text of a printed kernel.

#include <string_view>

namespace annulus::nki {

/// NKI versions; 0.3, 0.4, 0.5 and 0.6 come with Neuron SDK 2.29, 2.30, 2.31 and 2.32.
enum class Version { nki_0_3, nki_0_4, nki_0_5, nki_0_6 };

/// Spellings of one NKI version.
struct Spelling {
  std::string_view version;  ///< oldest version that accepts the text
  std::string_view sdk;
  std::string_view loop;  ///< range of a loop that is unrolled while the kernel is built
  std::string_view program_id;
  bool tensor_scalar_reduce_command;  ///< tensor_scalar_reduce accepts reduce_cmd
};

/// Spelling of a version. to_python() defaults to the oldest, nki_0_3, whose text every later version accepts.
///
/// Later versions added view methods, DMA priorities, names of collectives and run-time loops. Printed kernels need
/// none of these: access patterns replace views, and collectives must not be in run-time loops. affine_range and
/// similar older spellings of loops mean range() in all of these versions and are deprecated from 0.6.
constexpr Spelling spelling_of(Version version) {
  constexpr Spelling table[] = {
      {"0.3", "2.29", "range", "nl.program_id(0)", false},
      {"0.4", "2.30", "range", "nl.program_id(0)", true},
      {"0.5", "2.31", "range", "nl.program_id(0)", true},
      {"0.6", "2.32", "range", "nl.program_id(0)", true},
  };
  return table[static_cast<int>(version)];
}

}  // namespace annulus::nki
