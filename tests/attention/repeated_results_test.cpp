// Results whose elements share memory, by a stride of 0: each would overwrite the others.

#include <array>
#include <vector>

#include "attention/refused_call.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

/// The view with stride 0 on axis `a`.
template <std::size_t N>
TensorView<float, N> repeated(TensorView<float, N> const& view, std::size_t a) {
  auto strides = view.strides();
  strides[a] = 0;
  return {view.data(), view.extents(), strides};
}

void give_bias_gradient(Call& c) {
  c.pass = Pass::backward;
  c.operands.bias = c.bias_of(c.global_rows());
  c.operands.bias_gradient = true;
  c.gradients.dbias = c.bias_of(c.global_rows());
}

std::vector<BadCall> repeated_results() {
  std::string const accepted = "accepted for a result: a stride other than 0 on each axis of more than one element";
  auto const gradient = [](auto const& change) {
    return [change](Call& c) {
      c.pass = Pass::backward;
      change(c);
    };
  };
  return {
      shape("output of all heads", {"output of extents [2, 3, 4, 3] has strides [36, 12, 0, 1]", "axis 2", accepted},
            [](Call& c) { c.output = repeated(c.output, 2); }),
      shape("lse of all rows", {"lse of extents [2, 4, 3] has strides [12, 3, 0]", "axis 2", accepted},
            [](Call& c) { c.lse = repeated(c.lse, 2); }),
      shape("dq of all batch items", {"dq of extents [2, 3, 4, 4]", "axis 0", accepted},
            gradient([](Call& c) { c.gradients.dq = repeated(c.gradients.dq, 0); })),
      shape("dk of all rows", {"dk of extents [2, 3, 2, 4]", "axis 1", accepted},
            gradient([](Call& c) { c.gradients.dk = repeated(c.gradients.dk, 1); })),
      shape("dv of all dims", {"dv of extents [2, 3, 2, 3]", "axis 3", accepted},
            gradient([](Call& c) { c.gradients.dv = repeated(c.gradients.dv, 3); })),
      shape("dbias of all heads", {"dbias of extents [2, 4, 3,", "axis 1", accepted},
            [](Call& c) {
              give_bias_gradient(c);
              c.gradients.dbias = repeated(c.gradients.dbias, 1);
            }),
      shape("d_joint_keys of all heads", {"d_joint_keys of extents [2, 2, 2, 4]", "axis 2", accepted},
            gradient([](Call& c) {
              c.operands.joint_keys = c.varied<4>({Call::batch, 2, Call::kv_heads, Call::head_dim});
              c.operands.joint_values = c.varied<4>({Call::batch, 2, Call::kv_heads, Call::value_dim});
              c.gradients.d_joint_keys = repeated(c.varied<4>({Call::batch, 2, Call::kv_heads, Call::head_dim}), 2);
              c.gradients.d_joint_values = c.varied<4>({Call::batch, 2, Call::kv_heads, Call::value_dim});
            })),
      shape("dsinks of all heads", {"dsinks of extents [4, 1]", "axis 0", accepted}, gradient([](Call& c) {
              c.operands.sinks = c.tensor<float, 2>({Call::query_heads, 1});
              c.gradients.dsinks = repeated(c.varied<2>({Call::query_heads, 1}), 0);
            })),
  };
}

}  // namespace

TEST_CASE("results that repeat their elements are refused", "[attention]") {
  for (BadCall const& bad : repeated_results()) check_refused(bad);
}

TEST_CASE("axes of one element may have stride 0, in operands any axis", "[attention]") {
  auto const outcomes = outcomes_of(
      2,
      [](Call& c) {
        c.operands.bias = repeated(c.bias_of(c.global_rows()), 1);
        c.operands.sinks = c.tensor<float, 2>({Call::query_heads, 1});
        c.pass = Pass::backward;
        c.dout = repeated(c.dout, 2);
        c.gradients.dsinks = repeated(c.varied<2>({Call::query_heads, 1}), 1);
      },
      [](Rank) { return true; }, true);
  for (Outcome const& outcome : outcomes) {
    CAPTURE(outcome.text);
    CHECK(outcome.type == "nothing");
  }
}
