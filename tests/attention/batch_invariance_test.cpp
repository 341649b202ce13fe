// A reproducible call: the results of a row depend neither on other batch items and heads, nor on its place among the
// queries of the call.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "annulus/attention/ring_attention.hpp"
#include "annulus/backend/cpu/cpu.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/tensor/eigen.hpp"
#include "support/catch.hpp"

using namespace annulus;

namespace batch_invariance_test {
namespace {

constexpr Index batch = 3, rows = 150, query_heads = 6, kv_heads = 3, dim = 24;

/// Rows [first, first + count) of some batch items and heads of one problem.
struct Part {
  Index item = 0, items = batch, first = 0, count = rows, kv_head = 0, heads = kv_heads;
};

template <class T>
using Tensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;

/// what: 0 to 3 for q, k, v, dout.
template <class T>
Tensor<T> operand(int what, Part const& part, Index first, Index count) {
  Index const group = what == 1 || what == 2 ? 1 : query_heads / kv_heads;
  Tensor<T> x(part.items, count, part.heads * group, dim);
  for (Index b = 0; b < x.dimension(0); ++b)
    for (Index i = 0; i < count; ++i)
      for (Index h = 0; h < x.dimension(2); ++h)
        for (Index d = 0; d < dim; ++d) {
          Index const row = (part.item + b) * rows + first + i, head = part.kv_head * group + h;
          auto const bits = static_cast<unsigned>(((row * 8 + head) * dim + d) * 4 + what) * 2654435761u;
          x(b, i, h, d) = static_cast<T>(static_cast<float>(bits >> 20) / 1024 - 2);
        }
  return x;
}

/// Results of a part, with all keys of its items and heads.
template <class T, class B>
auto results_of(B backend, Part const& part) {
  SelfRing alone;
  RingAttention attention(
      alone, backend,
      {.mask = sliding_window(70, 0), .query_offset = part.first, .reproducible = true, .reproducible_leaf = 32});
  Tensor<T> const q = operand<T>(0, part, part.first, part.count), k = operand<T>(1, part, 0, rows),
                  v = operand<T>(2, part, 0, rows);
  auto forward = attention.forward(q, k, v);
  auto gradients = attention.backward(operand<T>(3, part, part.first, part.count), forward, q, k, v);
  return std::pair(std::move(forward), std::move(gradients));
}

template <class X>
bool same_row(X const& x, std::array<Index, 3> const& of_x, X const& y, std::array<Index, 3> const& of_y) {
  for (Index d = 0; d < dim; ++d)
    if (std::memcmp(&x(of_x[0], of_x[1], of_x[2], d), &y(of_y[0], of_y[1], of_y[2], d), sizeof x(0, 0, 0, 0)) != 0)
      return false;
  return true;
}

/// Number of rows of the part's output, lse, lse_remainder or dq that have other bits in the whole problem.
template <class T, class B>
int different_rows(B const& backend, Part const& part) {
  auto const whole = results_of<T>(backend, {}), own = results_of<T>(backend, part);
  Index const group = query_heads / kv_heads;
  int different = 0;
  for (Index b = 0; b < part.items; ++b)
    for (Index i = 0; i < part.count; ++i)
      for (Index h = 0; h < part.heads * group; ++h) {
        Index const item = part.item + b, row = part.first + i, head = part.kv_head * group + h;
        bool const same = same_row(own.first.output, {b, i, h}, whole.first.output, {item, row, head}) &&
                          same_row(own.second.dq, {b, i, h}, whole.second.dq, {item, row, head}) &&
                          own.first.lse(b, h, i) == whole.first.lse(item, head, row) &&
                          own.first.lse_remainder(b, h, i) == whole.first.lse_remainder(item, head, row);
        different += same ? 0 : 1;
      }
  return different;
}

template <class T, class B>
void check_parts(B const& backend) {
  CHECK(different_rows<T>(backend, {.item = 1, .items = 1}) == 0);
  CHECK(different_rows<T>(backend, {.kv_head = 1, .heads = 1}) == 0);
  CHECK(different_rows<T>(backend, {.item = 2, .items = 1, .kv_head = 2, .heads = 1}) == 0);
  for (Index const first : {1, 32, 45, 149})
    for (Index const count : {Index{1}, Index{3}, rows - first})
      CHECK(different_rows<T>(backend, {.first = first, .count = std::min(count, rows - first)}) == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("reproducible rows do not depend on the rest of the call", "[reproducible]", float, double,
                   Eigen::half, Eigen::bfloat16) {
  check_parts<TestType>(CpuBackend{});
  if constexpr (sizeof(TestType) == 4) check_parts<TestType>(ReferenceBackend{});
}

}  // namespace batch_invariance_test
