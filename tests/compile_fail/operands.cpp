// Tensors that no pass takes. Without a macro, the calls beside them compile.
//
// expect LAZY_EXPRESSION: lazy Eigen expression
// expect LAZY_DOUT: lazy Eigen expression
// expect NO_TENSOR: this operand is no tensor
// expect INTEGER_TENSOR: elements of float, double, Eigen::half or Eigen::bfloat16
// expect MIXED_TYPES: the same element type
// expect THREE_AXES: have four axes
// expect OTHER_SPACE: another memory space than the communicator and the backend
// expect CONST_OUTPUT: TensorView<(const float|float const)
// expect CONST_MAP_OUTPUT: TensorView<(const float|float const)
// expect NARROW_GRADIENTS: gradients have the element type of q or that of lse
// expect BIAS_OF_OTHER_TYPE: (bias|OptionalView)
// expect AXIS_ORDER_OF_VECTOR: an axis order needs a tensor with four axes

#include <annulus/annulus.hpp>
#include <vector>

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Lse = Eigen::Tensor<float, 3, Eigen::RowMajor>;

struct DeviceMemory {};

template <>
struct annulus::TensorTraits<DeviceMemory> {  // a tensor elsewhere
  using scalar = float;
  using memory_space = DeviceMemory;
  static constexpr std::size_t rank = 4;
  static annulus::TensorView<float, 4, DeviceMemory> view(DeviceMemory const&) { return {}; }
  template <class U, std::size_t N>
  static Eigen::Tensor<U, static_cast<int>(N)> make(std::array<annulus::Index, N> const&) {
    return {};
  }
};

void calls(Tensor const& q, Tensor const& k, Tensor const& v, Tensor const& dout) {
  annulus::SelfRing ring;
  annulus::ReferenceBackend backend;
  annulus::RingAttention attention(ring, backend);
  auto const forward = attention.forward(q, k, v);
  auto const gradients = attention.backward(dout, forward, q, k, v);
  Tensor const scaled = q * 2.0f;
  attention.forward(scaled, annulus::bhsd(k), annulus::TensorView<float const, 4>(v.data(), {1, 1, 1, 1}));
  Tensor output;
  Lse lse;
  attention.forward_into(q, k, v, output, lse, {.bias = output});
  annulus::GradientViews<float, annulus::HostMemory> const views;
  attention.backward_into(dout, output, lse, q, k, v, views);

#ifdef LAZY_EXPRESSION
  attention.forward(q * 2.0f, k, v);
#endif
#ifdef LAZY_DOUT
  attention.backward(dout + dout, forward, q, k, v);
#endif
#ifdef NO_TENSOR
  attention.forward(q, std::vector<float>(), v);
#endif
#ifdef INTEGER_TENSOR
  attention.forward(Eigen::Tensor<int, 4>(), Eigen::Tensor<int, 4>(), Eigen::Tensor<int, 4>());
#endif
#ifdef MIXED_TYPES
  attention.forward(q, Eigen::Tensor<double, 4>(), v);
#endif
#ifdef THREE_AXES
  attention.forward(q, k, Lse());
#endif
#ifdef OTHER_SPACE
  attention.forward(q, DeviceMemory(), v);
#endif
#ifdef CONST_OUTPUT
  Tensor const constant;
  attention.forward_into(q, k, v, constant, lse);
#endif
#ifdef CONST_MAP_OUTPUT
  Eigen::TensorMap<Tensor const> map(q.data(), q.dimensions());
  attention.forward_into(q, k, v, map, lse);
#endif
#ifdef NARROW_GRADIENTS
  annulus::GradientViews<Eigen::half, annulus::HostMemory> const narrow;
  attention.backward_into(dout, output, lse, q, k, v, narrow);
#endif
#ifdef BIAS_OF_OTHER_TYPE
  attention.forward(q, k, v, {.bias = Eigen::Tensor<double, 4>()});
#endif
#ifdef AXIS_ORDER_OF_VECTOR
  attention.forward(annulus::bhsd(Eigen::Tensor<float, 1>()), k, v);
#endif
}
