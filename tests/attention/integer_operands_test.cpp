#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "annulus/attention/ring_attention.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
constexpr Index batch = 2, rows = 5, heads = 2, dim = 3;

Tensor operand(int seed) {
  Tensor tensor(batch, rows, heads, dim);
  for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<float>((i * 37 + seed * 11) % 19) / 9 - 1;
  return tensor;
}

/// Output, lse, dq, dk and dv of one call with these operands.
std::vector<float> results_with(Operands<float> const& operands) {
  SelfRing ring;
  ReferenceBackend backend;
  RingAttention attention(ring, backend);
  Tensor const q = operand(0), k = operand(1), v = operand(2), dout = operand(3);
  std::vector<float> all;
  auto const add = [&](auto const& tensor) { all.insert(all.end(), tensor.data(), tensor.data() + tensor.size()); };
  auto const forward = attention.forward(q, k, v, operands);
  auto const gradients = attention.backward(dout, forward, q, k, v, operands);
  add(forward.output), add(forward.lse), add(gradients.dq), add(gradients.dk), add(gradients.dv);
  return all;
}

/// Document ids [batch, rows]: two documents, padding, and, if signed, a negative id.
template <class I, int order = Eigen::RowMajor>
Eigen::Tensor<I, 2, order> ids() {
  Eigen::Tensor<I, 2, order> all(batch, rows);
  std::array<int, 10> const values{7, 7, 0, 100, 100, 7, 100, 100, 100, -1};
  for (Index b = 0; b < batch; ++b)
    for (Index i = 0; i < rows; ++i) {
      int const id = values[static_cast<std::size_t>(b * rows + i)];
      all(b, i) = static_cast<I>(std::is_signed_v<I> || id > 0 ? id : 0);
    }
  return all;
}

template <class I>
Eigen::Tensor<I, 4, Eigen::RowMajor> mask(I visible) {
  Eigen::Tensor<I, 4, Eigen::RowMajor> all(1, heads, rows, rows);
  for (Index i = 0; i < all.size(); ++i) all.data()[i] = i % 3 == 1 ? I(0) : visible;
  return all;
}

}  // namespace

TEMPLATE_TEST_CASE("document ids of any integer type give the same bits", "[attention]", std::int8_t, std::uint8_t,
                   std::int16_t, std::uint16_t, std::uint32_t, std::int64_t, std::uint64_t) {
  auto const expected_ids = ids<std::int32_t>();
  auto const expected = results_with({.query_documents = expected_ids, .key_documents = expected_ids});
  auto const row_major = ids<TestType>();
  CHECK(results_with({.query_documents = row_major, .key_documents = row_major}) == expected);
  auto const column_major = ids<TestType, Eigen::ColMajor>();
  CHECK(results_with({.query_documents = column_major, .key_documents = expected_ids}) == expected);
}

TEMPLATE_TEST_CASE("masks of any integer type give the same bits", "[attention]", std::int8_t, std::uint8_t,
                   std::int32_t, std::int64_t, std::uint64_t) {
  auto const expected_mask = mask<bool>(true);
  auto const expected = results_with({.mask = expected_mask});
  CHECK(expected != results_with({}));
  for (TestType visible : {TestType(1), TestType(2), std::numeric_limits<TestType>::max()}) {
    auto const integers = mask<TestType>(visible);
    CHECK(results_with({.mask = integers}) == expected);
  }
}

TEST_CASE("integers are read in every call", "[attention]") {
  SelfRing ring;
  ReferenceBackend backend;
  RingAttention attention(ring, backend);
  Tensor const q = operand(0), k = operand(1), v = operand(2);
  auto changing = ids<std::int64_t>();
  auto const fixed = ids<std::int32_t>();
  Operands<float> const operands{.query_documents = changing, .key_documents = fixed};
  auto const before = attention.forward(q, k, v, operands);
  changing.setConstant(7);
  auto const after = attention.forward(q, k, v, operands);
  CHECK(before.lse(0, 0, 2) == -std::numeric_limits<float>::infinity());
  CHECK(after.lse(0, 0, 2) > -10);
}

TEST_CASE("an id beyond 32 bits is refused on all ranks", "[attention]") {
  for (Thrown const& thrown : on_ring(3)([](SimulatedRing& ring) {
         ReferenceBackend backend;
         RingAttention attention(ring, backend);
         auto wide = ids<std::int64_t>();
         if (ring.rank() == 1) wide(1, 2) = std::int64_t{1} << 31;
         attention.forward(operand(0), operand(1), operand(2), {.query_documents = wide, .key_documents = wide});
       }))
    check_thrown(thrown, "UnsupportedError", "rank 1: query_documents holds 2147483648; accepted: at most 2147483647");
}

TEST_CASE("integers of wrong extents are refused like others", "[attention]") {
  auto const wide = ids<std::int64_t>();
  Eigen::Tensor<std::int64_t, 2, Eigen::RowMajor> const fewer(batch, rows - 1);
  check_refused({{"fewer rows", "ShapeError", "query_documents has extents [2, 4]",
                  [&] { results_with({.query_documents = fewer, .key_documents = wide}); }},
                 {"of queries alone", "ShapeError", "query_documents are given without key_documents",
                  [&] { results_with({.query_documents = wide}); }}});
}
