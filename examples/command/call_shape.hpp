#pragma once
// Shape and options of a call, known to all ranks before they receive their shards.

#include <Eigen/Core>
#include <annulus/attention/options.hpp>
#include <annulus/core/scalar.hpp>
#include <annulus/core/shape.hpp>
#include <annulus/schedule/ring_plan.hpp>
#include <annulus/tensor/axis_order.hpp>
#include <array>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace annulus_command {

/// Global extents and element type of a call. Trivially copyable, so that rank 0 can send it to all ranks.
struct CallShape {
  annulus::DataType dtype = annulus::DataType::float32;
  annulus::AttentionShape attention{};
  annulus::Index queries = 0;
  annulus::Index keys = 0;
  std::array<annulus::Index, 2> bias{};  ///< batch and head extents; 0: not given
  std::array<annulus::Index, 2> mask{};
  annulus::Index sinks = 0;        ///< sink logits per query head; 0: not given
  bool sinks_on_one_axis = false;  ///< the file of sink logits is [query_heads]
  bool segments = false;           ///< document ids are given
  bool backward = false;
  bool bias_gradient = false;
};
static_assert(std::is_trivially_copyable_v<CallShape>);

/// A call of attention: shape, options and backend, equal on all ranks.
struct Call {
  CallShape shape;
  annulus::Options options;
  annulus::AxisOrder axes = annulus::AxisOrder::bshd;
  std::string backend = "cpu";
  int threads = 0;  ///< per rank; 0: the backend chooses
};

/// Calls function(std::type_identity<T>{}) with the C++ type of the elements.
template <class Function>
decltype(auto) with_scalar(annulus::DataType type, Function&& function) {
  switch (type) {
    case annulus::DataType::float64:
      return function(std::type_identity<double>{});
    case annulus::DataType::float32:
      return function(std::type_identity<float>{});
    case annulus::DataType::float16:
      return function(std::type_identity<Eigen::half>{});
    case annulus::DataType::bfloat16:
      return function(std::type_identity<Eigen::bfloat16>{});
  }
  throw std::logic_error("not a value of DataType");
}

/// The plan that the library makes for one pass of this call. Throws the library's errors for a bad problem.
inline annulus::RingPlan plan_of(Call const& call, annulus::Pass pass, int ranks) {
  CallShape const& shape = call.shape;
  annulus::Options const& options = call.options;
  int const accumulator_bytes = shape.dtype == annulus::DataType::float64 ? 8 : 4;
  annulus::PlanRequest request{.pass = pass,
                               .shape = shape.attention,
                               .query_lengths = options.sharding.lengths(annulus::Side::query, ranks, shape.queries),
                               .key_lengths = options.sharding.lengths(annulus::Side::key, ranks, shape.keys),
                               .sharding = options.sharding,
                               .mask = options.mask,
                               .query_offset = options.query_offset,
                               .rotation = options.rotation,
                               .element_bytes = annulus::size_of(shape.dtype),
                               .accumulator_bytes = accumulator_bytes,
                               .lse_bytes = accumulator_bytes,
                               .sinks = shape.sinks,
                               .segments = shape.segments,
                               .elementwise = shape.mask[0] > 0,
                               .bound_to_queries = shape.mask[0] > 0 || shape.bias[0] > 0};
  if (shape.bias_gradient && pass == annulus::Pass::backward)
    request.bias_gradient_elements = shape.bias[0] * shape.bias[1] * shape.keys;
  return annulus::RingPlan(std::move(request));
}

}  // namespace annulus_command
