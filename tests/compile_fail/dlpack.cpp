// Tensors that cannot be handed out through DLPack, one macro each; without a macro, calls that compile.
//
// expect READ_ONLY: DLManagedTensor cannot say that a tensor is read-only; use DLManagedTensorVersioned
// expect NO_TYPE_CODE: DLPack has no type code for these elements

#include <annulus/tensor/dlpack.hpp>
#include <annulus/tensor/eigen.hpp>
#include <complex>

#include "support/dlpack.hpp"

using annulus::TensorView, annulus::to_dlpack;
using namespace annulus_test;

void calls(TensorView<float const, 2> read_only) {
#if defined(READ_ONLY)
  static_cast<void>(to_dlpack<DLManagedTensor>(read_only));
#elif defined(NO_TYPE_CODE)
  static_cast<void>(to_dlpack<DLManagedTensor>(TensorView<std::complex<float>, 2>()));
#else
  static_cast<void>(to_dlpack<DLManagedTensorVersioned>(read_only));
  static_cast<void>(to_dlpack<DLManagedTensor>(TensorView<float, 2>()));
#endif
}
