// Instantiations of attend_on_rank for float and double.

#include "rank_pass_definition.hpp"

namespace annulus_command {

template Results<double> attend_on_rank(AnyRing&, Call const&, Inputs<double> const&, StepLog&);
template Results<float> attend_on_rank(AnyRing&, Call const&, Inputs<float> const&, StepLog&);

}  // namespace annulus_command
