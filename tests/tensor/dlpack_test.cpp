// Views of DLPack tensors, with structures as dlpack.h has them.

#include "annulus/tensor/dlpack.hpp"

#include <array>
#include <cstdint>
#include <vector>

#include "annulus/annulus.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

enum DeviceType : std::int32_t { kDLCPU = 1, kDLCUDA = 2 };
struct DLTensor {
  void* data;
  struct {
    DeviceType device_type;
    std::int32_t device_id;
  } device;
  std::int32_t ndim;
  struct {
    std::uint8_t code, bits;
    std::uint16_t lanes;
  } dtype;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
static_assert(DLPackTensor<DLTensor>);

/// A float tensor [2, 3, 2, 4] of which each test changes something.
struct Sample {
  std::vector<float> elements = std::vector<float>(49);
  std::array<std::int64_t, 4> shape{2, 3, 2, 4}, strides{24, 4, 12, 1};
  DLTensor tensor{elements.data(), {kDLCPU, 0}, 4, {2, 32, 1}, shape.data(), strides.data(), 0};

  Sample() {
    for (std::size_t i = 0; i < elements.size(); ++i) elements[i] = static_cast<float>(i);
  }
};

}  // namespace

TEST_CASE("DLPack tensors are seen in place", "[tensor]") {
  Sample sample;
  auto const strided = dlpack_view<float>(sample.tensor);
  CHECK(strided.extents() == std::array<Index, 4>{2, 3, 2, 4});
  CHECK(strided(1, 2, 1, 3) == 24 + 8 + 12 + 3);
  CHECK(strided.data() == sample.elements.data());

  sample.tensor.byte_offset = 4;
  CHECK(dlpack_view<float const>(sample.tensor)(0, 0, 0, 0) == 1);
  sample.tensor.strides = nullptr;
  CHECK(dlpack_view<float>(sample.tensor)(1, 2, 1, 3) == 1 + 47);

  std::int64_t none = 0;
  DLTensor const empty{nullptr, {kDLCPU, 0}, 1, {0, 32, 1}, &none, nullptr, 0};
  CHECK(dlpack_view<std::int32_t, 1>(empty).size() == 0);
}

TEST_CASE("DLPack tensors are operands", "[tensor]") {
  Sample sample;
  for (float& element : sample.elements) element = element / 49;
  auto const x = dlpack_view<float>(sample.tensor);
  Eigen::Tensor<float, 4, Eigen::RowMajor> copy(2, 3, 2, 4);
  detail::copy_elements(TensorView<float const, 4>(x), view_of(copy));
  SelfRing ring;
  ReferenceBackend backend;
  RingAttention attention(ring, backend, {.mask = causal()});
  auto const seen = attention.forward(x, x, x), copied = attention.forward(copy, copy, copy);
  CHECK(std::vector(seen.lse.data(), seen.lse.data() + seen.lse.size()) ==
        std::vector(copied.lse.data(), copied.lse.data() + copied.lse.size()));
}

TEST_CASE("DLPack tensors of another type, rank or device are refused", "[tensor]") {
  std::vector<Refusal<DLTensor&>> const table{
      {"axes", "ShapeError", "q has 3 axes; accepted: 4", [](DLTensor& t) { t.ndim = 3; }},
      {"bits", "UnsupportedError", "q has elements float64; accepted: float32", [](DLTensor& t) { t.dtype.bits = 64; }},
      {"code", "UnsupportedError", "q has elements bfloat16; accepted: float32",
       [](DLTensor& t) {
         t.dtype = {4, 16, 1};
       }},
      {"unknown code", "UnsupportedError", "q has elements type code 11 of 8; accepted: float32",
       [](DLTensor& t) {
         t.dtype = {11, 8, 1};
       }},
      {"lanes", "UnsupportedError", "q has elements float32 x 4; accepted: float32",
       [](DLTensor& t) { t.dtype.lanes = 4; }},
      {"device", "UnsupportedError", "q is on a device of type 2; accepted: [1, 3]",
       [](DLTensor& t) { t.device.device_type = kDLCUDA; }},
      {"no data", "ShapeError", "q of extents [2, 3, 2, 4] has no data", [](DLTensor& t) { t.data = nullptr; }},
  };
  check_refused(table, [](auto const& spoil) {
    Sample sample;
    spoil(sample.tensor);
    return std::vector{attempt([&] { dlpack_view<float>(sample.tensor, "q"); })};
  });
}
