// DeviceTensor: copies to and from host tensors, and views of DLPack tensors on a GPU.

#include "annulus/tensor/cuda/device_tensor.hpp"

#include "annulus/tensor/dlpack.hpp"
#include "annulus/tensor/eigen.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

Tensor numbered(Index a, Index b, Index c, Index d) {
  Tensor tensor(a, b, c, d);
  for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<float>(i);
  return tensor;
}

}  // namespace

TEST_CASE("tensors are copied to a GPU and back, whatever their strides", "[cuda][tensor]") {
  Tensor const x = numbered(2, 3, 4, 5);
  DeviceTensor<float> const dense = to_device(x), permuted = to_device(bhsd(x));
  CHECK(dense.extents() == std::array<Index, 4>{2, 3, 4, 5});
  CHECK(permuted.extents() == std::array<Index, 4>{2, 4, 3, 5});
  Eigen::Tensor<float, 4> column_major(2, 3, 4, 5);
  to_host(dense, column_major);
  Tensor back(2, 3, 4, 5);
  to_host(permuted, bhsd(back));
  for (Index a = 0; a < 2; ++a)
    for (Index b = 0; b < 3; ++b)
      for (Index c = 0; c < 4; ++c)
        for (Index d = 0; d < 5; ++d) {
          CHECK(column_major(a, b, c, d) == x(a, b, c, d));
          CHECK(back(a, b, c, d) == x(a, b, c, d));
        }
}

TEST_CASE("tensors on a GPU may be empty, and are made of their extents", "[cuda][tensor]") {
  DeviceTensor<float> const none = to_device(numbered(1, 0, 2, 4));
  CHECK(none.size() == 0);
  Tensor host(1, 0, 2, 4);
  to_host(none, host);
  CHECK(make_like<double, 3>(none, {2, 3, 4}).size() == 24);
  check_refused({
      {"negative extent", "ShapeError", "[-1, 2]*must not be negative", [] { DeviceTensor<float, 2>(-1, 2); }},
      {"other extents", "ShapeError", "[1, 1, 2, 4]*accepted: [1, 0, 2, 4]",
       [&] {
         Tensor other(1, 1, 2, 4);
         to_host(none, other);
       }},
  });
}

TEST_CASE("DLPack tensors are seen on the device that the memory space is of", "[cuda][tensor]") {
  struct {
    void* data;
    struct {
      int device_type, device_id;
    } device;
    int ndim;
    struct {
      int code, bits, lanes;
    } dtype;
    std::int64_t* shape;
    std::int64_t* strides;
    std::uint64_t byte_offset;
  } tensor{};
  DeviceTensor<float, 1> owner(4);
  std::int64_t extent = 4;
  tensor.data = owner.data();
  tensor.device.device_type = 2;
  tensor.ndim = 1;
  tensor.dtype = {2, 32, 1};
  tensor.shape = &extent;
  CHECK((dlpack_view<float, 1, CudaMemory>(tensor).data()) == owner.data());
  check_thrown(attempt([&] { dlpack_view<float, 1>(tensor); }), "UnsupportedError", "type 2; accepted: [1, 3]");
  tensor.device.device_type = 1;
  check_thrown(attempt([&] { dlpack_view<float, 1, CudaMemory>(tensor); }), "UnsupportedError",
               "type 1; accepted: [2, 13]");
}
