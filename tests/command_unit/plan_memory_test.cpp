// plan_of counts the buffers of the plan that RingAttention makes for the same call and backend.

#include <annulus/attention/ring_attention.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/backend/reference/reference.hpp>
#include <annulus/comm/self.hpp>

#include "command/attend_on_ranks.hpp"
#include "support/catch.hpp"

using namespace annulus_command;
using annulus::Index;
using annulus::Pass;

namespace {

/// Bytes of the buffers of a backward pass that is run.
template <class B>
Index bytes_in_call(Call const& call) {
  using T = Eigen::bfloat16;
  Inputs<T> inputs = make_inputs<T>(call, {call.shape.queries, call.shape.keys});
  for_each_tensor<T>(inputs, [](auto& tensor) { tensor.setZero(); });
  annulus::SelfRing self;
  B backend;
  annulus::RingAttention attention(self, backend, call.options);
  annulus::Operands<T> const operands{.bias = *inputs.bias, .bias_gradient = true};
  auto const forward = attention.forward(inputs.q, inputs.k, inputs.v, operands);
  attention.backward(*inputs.dout, forward, inputs.q, inputs.k, inputs.v, operands);
  return attention.plan(Pass::backward)->peak_buffer_bytes(0);
}

}  // namespace

TEST_CASE("the plan of a call counts the buffers that the call has, for dbias, too", "[plan]") {
  Index const heads = GENERATE(1, 4);
  Call call;
  call.shape = {.dtype = annulus::DataType::bfloat16,
                .attention = {.batch = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 8},
                .queries = 32,
                .keys = 48,
                .bias = {2, heads},
                .backward = true,
                .bias_gradient = true};
  call.backend = "cpu";
  Index const on_cpu = plan_of(call, Pass::backward, 1).peak_buffer_bytes(0);
  CHECK(on_cpu == bytes_in_call<annulus::CpuBackend>(call));
  call.backend = "reference";
  Index const on_reference = plan_of(call, Pass::backward, 1).peak_buffer_bytes(0);
  CHECK(on_reference == bytes_in_call<annulus::ReferenceBackend>(call));
  // Both write the gradient of a bias at once, unless heads share it: that is summed in float on both.
  CHECK(on_reference == on_cpu);
}
