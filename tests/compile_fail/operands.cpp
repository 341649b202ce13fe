// Operands that no pass accepts, one macro each; without a macro, calls that compile.
//
// expect LAZY_EXPRESSION: lazy Eigen expression
// expect NO_TENSOR: this operand is no tensor
// expect INTEGER_TENSOR: elements of float, double, Eigen::half or Eigen::bfloat16
// expect MIXED_TYPES: the same element type
// expect OTHER_SPACE: another memory space than the communicator and the backend
// expect CONST_OUTPUT: TensorView<(const float|float const)
// expect NARROW_GRADIENTS: gradients have the element type of q or that of lse
// expect AXIS_ORDER_OF_VECTOR: an axis order needs a tensor with four axes

#include <annulus/attention/ring_attention.hpp>
#include <annulus/backend/reference/reference.hpp>
#include <annulus/comm/self.hpp>
#include <vector>

#include "compile_fail/device_tensor.hpp"

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Lse = Eigen::Tensor<float, 3, Eigen::RowMajor>;

void calls(Tensor const& q, Tensor const& k, Tensor const& v, Tensor const& dout, Tensor& output, Lse& lse) {
  annulus::SelfRing ring;
  annulus::ReferenceBackend backend;
  annulus::RingAttention attention(ring, backend);

#if defined(LAZY_EXPRESSION)
  attention.forward(q * 2.0f, k, v);
#elif defined(NO_TENSOR)
  attention.forward(q, std::vector<float>(), v);
#elif defined(INTEGER_TENSOR)
  attention.forward(Eigen::Tensor<int, 4>(), Eigen::Tensor<int, 4>(), Eigen::Tensor<int, 4>());
#elif defined(MIXED_TYPES)
  attention.forward(q, Eigen::Tensor<double, 4>(), v);
#elif defined(OTHER_SPACE)
  attention.forward(q, DeviceTensor(), v);
#elif defined(CONST_OUTPUT)
  attention.forward_into(q, k, v, dout, lse);
#elif defined(NARROW_GRADIENTS)
  annulus::GradientViews<Eigen::half, annulus::HostMemory> const narrow;
  attention.backward_into(dout, output, lse, q, k, v, narrow);
#elif defined(AXIS_ORDER_OF_VECTOR)
  attention.forward(annulus::bhsd(Eigen::Tensor<float, 1>()), k, v);
#else
  Tensor const scaled = q * 2.0f;
  auto const forward = attention.forward(scaled, annulus::bhsd(k), annulus::TensorView<float const, 4>(v.data(), {}));
  attention.backward(dout, forward, q, k, v);
  attention.forward_into(q, k, v, output, lse, {.bias = dout});
  annulus::GradientViews<float, annulus::HostMemory> const gradients;
  attention.backward_into(dout, output, lse, q, k, v, gradients);
#endif
}
