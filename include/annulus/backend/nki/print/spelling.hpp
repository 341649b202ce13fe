#pragma once
// The one table of what a printed kernel spells differently from one version of NKI to the next.

#include <string_view>

namespace annulus::nki {

/// NKI 0.3, 0.4, 0.5 and 0.6 come with Neuron SDK 2.29, 2.30, 2.31 and 2.32.
enum class Version { nki_0_3, nki_0_4, nki_0_5, nki_0_6 };

struct Spelling {
  std::string_view version;  ///< the oldest that takes the text
  std::string_view sdk;
  std::string_view loop;  ///< the range of a loop that is unrolled while the kernel is built
  std::string_view program_id;
  bool tensor_scalar_reduce_command;  ///< may the start of this reduction be written out?
};

/// The oldest, nki_0_3, is what is printed unless asked otherwise: every later version takes its text too.
///
/// Versions added view methods, DMA priorities, names of collectives and loops counted at run time. Nothing printed
/// needs them: access patterns say what views say, and collectives do not belong into loops at run time. affine_range
/// and its kin, the spelling of loops once, mean range() in all of these versions and are deprecated from 0.6.
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
