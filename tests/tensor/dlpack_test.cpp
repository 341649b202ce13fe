// Views of DLPack tensors, and tensors that are handed out through DLPack.

#include "annulus/tensor/dlpack.hpp"

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "annulus/annulus.hpp"
#include "support/dlpack.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

static_assert(DLPackTensor<DLTensor> && !DLPackManagedTensor<DLTensor>);
static_assert(DLPackManagedTensor<DLManagedTensor> && DLPackManagedTensor<DLManagedTensorVersioned>);
static_assert(!DLPackTensor<DLManagedTensor>);

/// A tensor of the caller that counts how many of it have elements.
template <class T, std::size_t N>
class CountedTensor {
 public:
  explicit CountedTensor(std::array<Index, N> const& extents)
      : extents_(extents), elements_(new T[static_cast<std::size_t>(TensorView<T, N>(nullptr, extents).size())]()) {
    ++alive;
  }
  CountedTensor(CountedTensor&&) = default;
  ~CountedTensor() {
    if (elements_) --alive;
  }

  TensorView<T, N> view() const { return {elements_.get(), extents_}; }

  static inline int alive = 0;

 private:
  std::array<Index, N> extents_;
  std::unique_ptr<T[]> elements_;
};

}  // namespace

template <class T, std::size_t N>
struct annulus::TensorTraits<CountedTensor<T, N>> {
  using scalar = T;
  using memory_space = HostMemory;
  static constexpr std::size_t rank = N;

  static auto view(CountedTensor<T, N> const& x) { return x.view(); }
};

namespace {

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

namespace {

/// Hands out a tensor of N axes with elements of type T as M, and reads it back.
template <class M, class T, std::size_t N>
void go_round(std::array<Index, N> const& extents, int code) {
  CountedTensor<T, N> tensor(extents);
  TensorView<T, N> const before = tensor.view();
  M* const managed = to_dlpack<M>(std::move(tensor));
  DLTensor const& out = managed->dl_tensor;
  CHECK(out.device.device_type == kDLCPU);
  CHECK(out.device.device_id == 0);
  CHECK(out.ndim == static_cast<int>(N));
  CHECK(int{out.dtype.code} == code);
  CHECK(int{out.dtype.bits} == 8 * int{sizeof(T)});
  CHECK(out.dtype.lanes == 1);
  CHECK(out.byte_offset == 0);
  CHECK(std::equal(before.strides().begin(), before.strides().end(), out.strides));
  CHECK(out.data == (before.size() > 0 ? before.data() : nullptr));
  auto const back = dlpack_view<T, N>(*managed);
  CHECK(back.extents() == extents);
  CHECK(back.size() == before.size());
  CHECK(CountedTensor<T, N>::alive == 1);
  managed->deleter(managed);
  CHECK(CountedTensor<T, N>::alive == 0);
}

template <class T>
void go_round_in_all_ranks(int code) {
  go_round<DLManagedTensor, T, 1>({5}, code);
  go_round<DLManagedTensorVersioned, T, 2>({3, 2}, code);
  go_round<DLManagedTensor, T, 3>({3, 1, 2}, code);
  go_round<DLManagedTensorVersioned, T, 4>({2, 3, 4, 5}, code);
  go_round<DLManagedTensor, T, 5>({2, 1, 2, 1, 3}, code);
  go_round<DLManagedTensorVersioned, T, 3>({2, 0, 3}, code);
}

}  // namespace

TEST_CASE("tensors are handed out with their memory, which the deleter frees", "[tensor]") {
  go_round_in_all_ranks<float>(2);
  go_round_in_all_ranks<double>(2);
  go_round_in_all_ranks<Eigen::half>(2);
  go_round_in_all_ranks<Eigen::bfloat16>(4);
  go_round_in_all_ranks<std::int32_t>(0);
  go_round_in_all_ranks<std::uint8_t>(1);
  go_round_in_all_ranks<bool>(6);
}

TEST_CASE("Eigen tensors are handed out without a copy, in their storage order", "[tensor]") {
  Eigen::Tensor<float, 3> column_major(2, 3, 4);
  for (Index i = 0; i < column_major.size(); ++i) column_major.data()[i] = static_cast<float>(i);
  float const* const elements = column_major.data();
  auto* const managed = to_dlpack<DLManagedTensorVersioned>(std::move(column_major));
  CHECK(managed->version.major == 1);
  CHECK(managed->version.minor == 2);
  CHECK(managed->flags == 0);
  auto const view = dlpack_view<float, 3>(*managed);
  CHECK(view.data() == elements);
  CHECK(view.strides() == std::array<Index, 3>{1, 2, 6});
  CHECK(view(1, 2, 3) == 23);
  managed->deleter(managed);
}

TEST_CASE("views are handed out with their strides, and read-only ones say so", "[tensor]") {
  Sample sample;
  auto const view = dlpack_view<float>(sample.tensor).slice(1, 1, 2);
  auto* const writable = to_dlpack<DLManagedTensorVersioned>(view);
  CHECK(writable->flags == 0);
  dlpack_view<float> (*writable)(1, 1, 1, 3) = -1;
  CHECK(sample.elements[24 + 8 + 12 + 3] == -1);
  writable->deleter(writable);

  auto* const read_only = to_dlpack<DLManagedTensorVersioned>(TensorView<float const, 4>(view));
  CHECK(read_only->flags == 1);
  CHECK(dlpack_view<float const>(*read_only)(1, 1, 1, 3) == -1);
  check_thrown(attempt([&] { dlpack_view<float>(*read_only, "q"); }), "UnsupportedError", "q is read-only");
  read_only->version.major = 2;
  check_thrown(attempt([&] { dlpack_view<float const>(*read_only, "q"); }), "UnsupportedError",
               "q is of DLPack 2; accepted: 1");
  read_only->deleter(read_only);

  TensorView<float, 1> const nowhere(nullptr, {2});
  check_thrown(attempt([&] { static_cast<void>(to_dlpack<DLManagedTensor>(nowhere)); }), "ShapeError",
               "the tensor for DLPack of extents [2] has no data");
}
