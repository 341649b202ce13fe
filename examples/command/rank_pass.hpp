#pragma once
// Forward and backward pass of one rank over its shard.

#include "any_ring.hpp"
#include "call_tensors.hpp"
#include "tracing.hpp"

namespace annulus_command {

/// Forward and, where dout is given, backward. Collective over the ring. Defined for the four element types.
template <annulus::Scalar T>
Results<T> attend_on_rank(AnyRing& ring, Call const& call, Inputs<T> const& own, StepLog& log);

extern template Results<double> attend_on_rank(AnyRing&, Call const&, Inputs<double> const&, StepLog&);
extern template Results<float> attend_on_rank(AnyRing&, Call const&, Inputs<float> const&, StepLog&);
extern template Results<Eigen::half> attend_on_rank(AnyRing&, Call const&, Inputs<Eigen::half> const&, StepLog&);
extern template Results<Eigen::bfloat16> attend_on_rank(AnyRing&, Call const&, Inputs<Eigen::bfloat16> const&,
                                                        StepLog&);

}  // namespace annulus_command
