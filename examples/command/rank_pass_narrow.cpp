// Instantiations of attend_on_rank for the 16-bit element types.

#include "rank_pass_definition.hpp"

namespace annulus_command {

template Results<Eigen::half> attend_on_rank(AnyRing&, Call const&, Inputs<Eigen::half> const&, Timeline&);
template Results<Eigen::bfloat16> attend_on_rank(AnyRing&, Call const&, Inputs<Eigen::bfloat16> const&, Timeline&);

}  // namespace annulus_command
