// Decode kernels, compiled once for annulus::cuda.

#include "annulus/backend/cuda/decode/split_keys.cuh"

namespace annulus::cuda::detail {

#define ANNULUS_FOR_ELEMENTS(T)                                  \
  template DecodeShape decode_shape<T>(DecodeStep<T> const&);    \
  template void split_keys<T>(cudaStream_t, DecodeStep<T> const&, PartialResults<SumOfElement<T>> const&);
ANNULUS_FOR_ELEMENTS(float)
ANNULUS_FOR_ELEMENTS(double)
ANNULUS_FOR_ELEMENTS(__half)
ANNULUS_FOR_ELEMENTS(__nv_bfloat16)
#undef ANNULUS_FOR_ELEMENTS

#define ANNULUS_FOR_SUMS(A) \
  template void merge_splits<A>(cudaStream_t, StepExtents const&, PartialResults<A> const&, State<A> const&);
ANNULUS_FOR_SUMS(float)
ANNULUS_FOR_SUMS(double)
#undef ANNULUS_FOR_SUMS

}  // namespace annulus::cuda::detail
