// plan_of counts the memory of a call: the buffers of the plan that RingAttention makes for the same call and backend,
// and the tensors that the caller passes and gets.

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

/// Bytes of a tensor.
Index bytes_of(auto const& tensor) {
  return tensor.size() * Index{sizeof(typename std::remove_cvref_t<decltype(tensor)>::Scalar)};
}

/// Bytes of all tensors of Inputs or Results that are set.
template <class T, class Tensors>
Index bytes_in(Tensors const& tensors) {
  Index bytes = 0;
  for_each_tensor<T>(tensors, [&](auto const& tensor) { bytes += bytes_of(tensor); });
  return bytes;
}

}  // namespace

TEST_CASE("the plan of a call counts the tensors that each rank passes and gets", "[plan]") {
  using T = Eigen::bfloat16;
  Call call;
  call.shape = {.dtype = annulus::DataType::bfloat16,
                .attention = {.batch = 2, .query_heads = 4, .kv_heads = 2, .head_dim = 16, .value_dim = 8},
                .queries = 31,
                .keys = 49,
                .bias = {1, 4},
                .mask = {2, 1},
                .sinks = 3,
                .joint_keys = 5,
                .document_ids = true,
                .bias_gradient = true};
  constexpr int ranks = 3;
  for (annulus::Rank rank = 0; rank < ranks; ++rank) {
    Rows const rows = Share(call, rank, ranks).rows();
    call.shape.backward = false;
    annulus::RingPlan const forward = plan_of(call, Pass::forward, ranks);
    Index const inputs = bytes_in<T>(make_inputs<T>(call, rows));
    Results<T> const results = make_results<T>(call, rows);
    Index const saved = bytes_of(results.out) + bytes_of(results.lse) + bytes_of(results.lse_remainder);
    CHECK(forward.operand_bytes(rank) == inputs);
    CHECK(forward.result_bytes(rank) == saved);
    CHECK(forward.memory_bytes(rank) == inputs + saved + forward.peak_buffer_bytes(rank));
    call.shape.backward = true;
    annulus::RingPlan const backward = plan_of(call, Pass::backward, ranks);
    Results<T> const gradients = make_results<T>(call, rows);
    CHECK(backward.operand_bytes(rank) == inputs + bytes_of(results.out) + saved);
    CHECK(backward.result_bytes(rank) == bytes_in<T>(gradients) - saved);
  }
}

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
