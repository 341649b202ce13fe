#pragma once
// Options of the C interface as options of the C++ interface.

#include "annulus/annulus.h"
#include "annulus/attention/options.hpp"

namespace annulus::bindings {

/// Throws UnsupportedError for a value that the C++ type does not have: an unknown enumerator, a flag that is not 0 or
/// 1, an explicit map that is incomplete or given for another kind of sharding.
Sharding sharding_of(annulus_sharding const& sharding);

/// The same for all options; NULL: the defaults.
Options options_of(annulus_options const* options);

/// Throws UnsupportedError unless the flag is 0 or 1.
bool flag_of(int flag, char const* name);

}  // namespace annulus::bindings
