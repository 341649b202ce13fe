#pragma once
// A call of attention: its shape and options, known to all ranks, and its tensors, either global or the shard of one
// rank, with scatter and gather between the two.

#include <Eigen/Core>
#include <annulus/attention/options.hpp>
#include <annulus/core/index.hpp>
#include <annulus/core/scalar.hpp>
#include <annulus/mask/documents.hpp>
#include <annulus/schedule/best_plan.hpp>
#include <annulus/sharding/scatter_gather.hpp>
#include <annulus/tensor/eigen.hpp>
#include <annulus/tensor/tensor_like.hpp>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

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
  annulus::Index joint_keys = 0;   ///< keys that all ranks hold
  bool document_ids = false;       ///< document ids are given
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
  int threads = 0;                 ///< per rank; 0: the backend chooses
  annulus::Documents documents{};  ///< of every batch item, for plans
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

/// True if the backend of this name is an annulus::ClosingBackend; false if it is unknown.
bool backend_writes_bias_gradients(std::string_view name);

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
                               .rules = annulus::rules_of(options),
                               .rotation = options.rotation,
                               .schedule = options.schedule,
                               .ranks_per_group = options.ranks_per_group,
                               .wire = options.wire,
                               .element_bytes = annulus::size_of(shape.dtype),
                               .accumulator_bytes = accumulator_bytes,
                               .lse_bytes = accumulator_bytes,
                               .gradient_bytes = annulus::size_of(shape.dtype),
                               .bias = {shape.bias[0], shape.bias[1]},
                               .mask = {shape.mask[0], shape.mask[1]},
                               .sinks = shape.sinks,
                               .joint_keys = shape.joint_keys,
                               .document_ids = shape.document_ids,
                               .elementwise = shape.mask[0] > 0,
                               .bound_to_queries = shape.mask[0] > 0 || shape.bias[0] > 0,
                               .documents = call.documents};
  if (shape.bias_gradient) annulus::add_bias_gradient(request, backend_writes_bias_gradients(call.backend));
  return annulus::best_plan(request, options.rates);
}

template <class T, int Axes>
using Tensor = Eigen::Tensor<T, Axes, Eigen::RowMajor>;

/// Operands of a call. q, k, v, dout and joint keys are stored in its axis order.
template <annulus::Scalar T>
struct Inputs {
  Tensor<T, 4> q, k, v;
  std::optional<Tensor<T, 4>> dout{};
  std::optional<Tensor<T, 4>> bias{};     ///< [batch|1, query_heads|1, queries, global keys]
  std::optional<Tensor<bool, 4>> mask{};  ///< same shape as bias
  std::optional<Tensor<std::int32_t, 2>> query_documents{}, key_documents{};  ///< document ids, [batch, rows]
  std::optional<Tensor<annulus::Accumulator<T>, 2>> sinks{};                  ///< [query_heads, n], on every rank
  std::optional<Tensor<T, 4>> joint_keys{}, joint_values{};                   ///< on every rank
};

/// Results of a call. Those with the extents of operands are stored in its axis order. Gradients are set if dout is
/// given.
template <annulus::Scalar T>
struct Results {
  Tensor<T, 4> out;
  Tensor<annulus::Accumulator<T>, 3> lse, lse_remainder;  ///< [batch, query_heads, queries]
  std::optional<Tensor<T, 4>> dq{}, dk{}, dv{};
  std::optional<Tensor<T, 4>> dbias{};
  std::optional<Tensor<annulus::Accumulator<T>, 2>> dsinks{};    ///< equal on all ranks
  std::optional<Tensor<T, 4>> d_joint_keys{}, d_joint_values{};  ///< equal on all ranks
};

/// Calls function(tensor of a, same tensor of b, axis of positions, side) for each sharded tensor that is set.
template <annulus::Scalar T, class A, class B, class Function>
void for_each_sharded(A& a, B& b, annulus::AxisOrder axes, Function&& function) {
  using annulus::Side;
  std::size_t const sequence = annulus::places_of(axes)[annulus::axis::sequence];
  auto const optional = [&](auto& first, auto& second, std::size_t axis, Side side) {
    if (first) function(*first, *second, axis, side);
  };
  if constexpr (std::is_same_v<std::remove_const_t<A>, Inputs<T>>) {
    function(a.q, b.q, sequence, Side::query);
    function(a.k, b.k, sequence, Side::key);
    function(a.v, b.v, sequence, Side::key);
    optional(a.dout, b.dout, sequence, Side::query);
    optional(a.bias, b.bias, 2, Side::query);
    optional(a.mask, b.mask, 2, Side::query);
    optional(a.query_documents, b.query_documents, 1, Side::query);
    optional(a.key_documents, b.key_documents, 1, Side::key);
  } else {
    function(a.out, b.out, sequence, Side::query);
    function(a.lse, b.lse, 2, Side::query);
    function(a.lse_remainder, b.lse_remainder, 2, Side::query);
    optional(a.dq, b.dq, sequence, Side::query);
    optional(a.dk, b.dk, sequence, Side::key);
    optional(a.dv, b.dv, sequence, Side::key);
    optional(a.dbias, b.dbias, 2, Side::query);
  }
}

/// Calls function(tensor) for each tensor that is set, in a fixed order.
template <annulus::Scalar T, class Tensors, class Function>
void for_each_tensor(Tensors& tensors, Function&& function) {
  for_each_sharded<T>(tensors, tensors, annulus::AxisOrder::bshd,
                      [&](auto& tensor, auto&, std::size_t, annulus::Side) { function(tensor); });
  if constexpr (std::is_same_v<std::remove_const_t<Tensors>, Inputs<T>>) {
    if (tensors.sinks) function(*tensors.sinks);
    if (tensors.joint_keys) function(*tensors.joint_keys), function(*tensors.joint_values);
  } else {
    if (tensors.dsinks) function(*tensors.dsinks);
    if (tensors.d_joint_keys) function(*tensors.d_joint_keys), function(*tensors.d_joint_values);
  }
}

/// Numbers of query and key rows, of one rank or of all ranks.
struct Rows {
  annulus::Index queries, keys;
};

/// A tensor of extents [batch, sequence, heads, dim], stored in the order `axes`; elements unspecified.
template <annulus::Scalar T>
Tensor<T, 4> make_in_axes(annulus::AxisOrder axes, std::array<annulus::Index, 4> const& extents) {
  auto const e = annulus::stored_extents(axes, extents);
  return Tensor<T, 4>(e[0], e[1], e[2], e[3]);
}

/// Copy of a tensor [batch, sequence, heads, dim], stored in the order `axes`.
template <annulus::Scalar T>
Tensor<T, 4> copied_to_axes(annulus::AxisOrder axes, Tensor<T, 4> const& tensor) {
  annulus::TensorView<T const, 4> const from = annulus::view_of(tensor);
  Tensor<T, 4> stored = make_in_axes<T>(axes, from.extents());
  annulus::detail::copy_elements(from, annulus::view_of(with_axes(stored, axes)));
  return stored;
}

/// Inputs with these numbers of rows; elements unspecified.
template <annulus::Scalar T>
Inputs<T> make_inputs(Call const& call, Rows rows) {
  CallShape const& shape = call.shape;
  auto const& [batch, query_heads, kv_heads, head_dim, value_dim] = shape.attention;
  auto const make = [&](annulus::Index length, annulus::Index heads, annulus::Index dim) {
    return make_in_axes<T>(call.axes, {shape.attention.batch, length, heads, dim});
  };
  Inputs<T> inputs{make(rows.queries, query_heads, head_dim), make(rows.keys, kv_heads, head_dim),
                   make(rows.keys, kv_heads, value_dim)};
  if (shape.backward) inputs.dout = make(rows.queries, query_heads, value_dim);
  if (shape.bias[0] > 0) inputs.bias.emplace(shape.bias[0], shape.bias[1], rows.queries, shape.keys);
  if (shape.mask[0] > 0) inputs.mask.emplace(shape.mask[0], shape.mask[1], rows.queries, shape.keys);
  if (shape.document_ids) {
    inputs.query_documents.emplace(batch, rows.queries);
    inputs.key_documents.emplace(batch, rows.keys);
  }
  if (shape.sinks > 0) inputs.sinks.emplace(query_heads, shape.sinks);
  if (shape.joint_keys > 0) {
    inputs.joint_keys = make(shape.joint_keys, kv_heads, head_dim);
    inputs.joint_values = make(shape.joint_keys, kv_heads, value_dim);
  }
  return inputs;
}

/// Results with these numbers of rows; elements unspecified.
template <annulus::Scalar T>
Results<T> make_results(Call const& call, Rows rows) {
  CallShape const& shape = call.shape;
  auto const& [batch, query_heads, kv_heads, head_dim, value_dim] = shape.attention;
  auto const make = [&](annulus::Index length, annulus::Index heads, annulus::Index dim) {
    return make_in_axes<T>(call.axes, {shape.attention.batch, length, heads, dim});
  };
  Results<T> results{make(rows.queries, query_heads, value_dim),
                     {batch, query_heads, rows.queries},
                     {batch, query_heads, rows.queries}};
  if (!shape.backward) return results;
  results.dq = make(rows.queries, query_heads, head_dim);
  results.dk = make(rows.keys, kv_heads, head_dim);
  results.dv = make(rows.keys, kv_heads, value_dim);
  if (shape.bias_gradient) results.dbias.emplace(shape.bias[0], shape.bias[1], rows.queries, shape.keys);
  if (shape.sinks > 0) results.dsinks.emplace(query_heads, shape.sinks);
  if (shape.joint_keys > 0) {
    results.d_joint_keys = make(shape.joint_keys, kv_heads, head_dim);
    results.d_joint_values = make(shape.joint_keys, kv_heads, value_dim);
  }
  return results;
}

template <class A>
using Matrix = Eigen::Matrix<A, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Rows [begin, begin + count) of one head as a matrix [count, dim], converted to A.
template <class A, class T>
Matrix<A> head_rows(Tensor<T, 4> const& tensor, annulus::AxisOrder axes, annulus::Index batch, annulus::Index head,
                    annulus::Index begin, annulus::Index count) {
  auto const from = annulus::view_of(with_axes(tensor, axes));
  Matrix<A> rows(count, from.extent(annulus::axis::dim));
  for (Eigen::Index i = 0; i < count; ++i)
    for (Eigen::Index e = 0; e < rows.cols(); ++e) rows(i, e) = static_cast<A>(from(batch, begin + i, head, e));
  return rows;
}

/// Adds `rows` to the rows of one head from `begin` on.
template <class A>
void add_head_rows(Tensor<A, 4>& tensor, annulus::AxisOrder axes, annulus::Index batch, annulus::Index head,
                   annulus::Index begin, std::type_identity_t<Matrix<A>> const& rows) {
  auto const to = annulus::view_of(with_axes(tensor, axes));
  for (Eigen::Index i = 0; i < rows.rows(); ++i)
    for (Eigen::Index e = 0; e < rows.cols(); ++e) to(batch, begin + i, head, e) += rows(i, e);
}

/// The segments of queries and keys that one rank owns.
class Share {
 public:
  Share(Call const& call, annulus::Rank rank, int ranks)
      : query_(segments(call, annulus::Side::query, rank, ranks, call.shape.queries)),
        key_(segments(call, annulus::Side::key, rank, ranks, call.shape.keys)) {}

  Rows rows() const { return {annulus::rows_of(query_), annulus::rows_of(key_)}; }
  std::span<annulus::Segment const> of(annulus::Side side) const {
    return side == annulus::Side::query ? query_ : key_;
  }

 private:
  static std::vector<annulus::Segment> segments(Call const& call, annulus::Side side, annulus::Rank rank, int ranks,
                                                annulus::Index length) {
    annulus::Sharding const& sharding = call.options.sharding;
    return sharding.segments(side, rank, sharding.lengths(side, ranks, length));
  }

  std::vector<annulus::Segment> query_, key_;
};

/// Copies the rows of one rank out of the global inputs; sink logits and joint keys are copied whole.
template <annulus::Scalar T>
Inputs<T> scatter(Inputs<T> const& global, Call const& call, Share const& share) {
  Inputs<T> local = make_inputs<T>(call, share.rows());
  for_each_sharded<T>(global, local, call.axes, [&](auto const& from, auto& to, std::size_t axis, annulus::Side side) {
    annulus::scatter_into(annulus::view_of(from), share.of(side), annulus::view_of(to), axis);
  });
  local.sinks = global.sinks;
  local.joint_keys = global.joint_keys;
  local.joint_values = global.joint_values;
  return local;
}

/// Copies the results of one rank into the global ones. Ranks write disjoint elements, so calls may be concurrent;
/// `with_sums`: also copies the gradients that are equal on all ranks.
template <annulus::Scalar T>
void gather(Results<T> const& local, Call const& call, Share const& share, bool with_sums, Results<T>& global) {
  for_each_sharded<T>(local, global, call.axes, [&](auto const& from, auto& to, std::size_t axis, annulus::Side side) {
    annulus::gather_into(annulus::view_of(from), share.of(side), annulus::view_of(to), axis);
  });
  if (!with_sums) return;
  global.dsinks = local.dsinks;
  global.d_joint_keys = local.d_joint_keys;
  global.d_joint_values = local.d_joint_values;
}

}  // namespace annulus_command
