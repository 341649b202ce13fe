#include "attend_files.hpp"

#include <initializer_list>
#include <limits>
#include <string>

#include "errors.hpp"

namespace annulus_command {

namespace {

using Shape = std::vector<std::size_t>;

/// Expected extent of one axis of a file; may_be_one: extent 1 is accepted too (broadcast).
struct Axis {
  char const* name;
  annulus::Index extent;
  bool may_be_one = false;

  bool fits(std::size_t seen) const { return static_cast<annulus::Index>(seen) == extent || (may_be_one && seen == 1); }
};

[[noreturn]] void fail_shape(NpyArray const& array, std::string const& accepted) {
  throw InputError(array.file + ": has shape " + excerpt(shape_text(array.shape)) + "; accepted: " + accepted);
}

void require_shape(NpyArray const& array, std::initializer_list<Axis> axes) {
  std::string accepted = "[";
  bool fits = array.shape.size() == axes.size();
  std::size_t a = 0;
  for (Axis const& axis : axes) {
    accepted += std::string(a == 0 ? "" : ", ") + (axis.may_be_one && axis.extent != 1 ? "1 or " : "") + axis.name +
                " " + std::to_string(axis.extent);
    fits = fits && axis.fits(array.shape[a]);
    ++a;
  }
  if (!fits) fail_shape(array, accepted + "]");
}

/// Extents [batch, sequence, heads, dim] of a file whose axes have the order `axes`. Throws InputError unless it has
/// four axes, each at least 1.
std::array<annulus::Index, 4> attention_extents(NpyArray const& array, annulus::AxisOrder axes) {
  char const* const names[] = {"batch", "sequence", "heads", "dim"};
  auto const places = annulus::places_of(axes);
  std::array<char const*, 4> order{};
  for (std::size_t a = 0; a < 4; ++a) order[places[a]] = names[a];
  std::string accepted = "[";
  for (char const* name : order) accepted += std::string(name == order[0] ? "" : ", ") + name;
  accepted += "], each at least 1 (--axes " + std::string(annulus::name_of(axes)) + ")";

  if (array.shape.size() != 4) fail_shape(array, accepted);
  std::array<annulus::Index, 4> extents{};
  for (std::size_t a = 0; a < 4; ++a) {
    extents[a] = static_cast<annulus::Index>(array.shape[places[a]]);
    if (extents[a] < 1) fail_shape(array, accepted);
  }
  return extents;
}

/// Throws InputError unless the file, in axis order `axes`, has the expected extents [batch, sequence, heads, dim].
void require_attention_extents(NpyArray const& array, annulus::AxisOrder axes, std::array<Axis, 4> const& expected) {
  auto const places = annulus::places_of(axes);
  std::array<Axis, 4> order{};
  for (std::size_t a = 0; a < 4; ++a) order[places[a]] = expected[a];
  require_shape(array, {order[0], order[1], order[2], order[3]});
}

void require_real(NpyArray const& array) {
  if (!is_floating(array.type))
    throw InputError(array.file + ": holds " + name_of(array.type) +
                     "; accepted: f2, f4, f8, or bfloat16 as V2 or, with --dtype bfloat16, as u2");
}

/// Checks the shape of a bias or mask; returns its batch and head extents.
std::array<annulus::Index, 2> require_pairs(NpyArray const& array, CallShape const& shape) {
  require_shape(array, {{"batch", shape.attention.batch, true},
                        {"query_heads", shape.attention.query_heads, true},
                        {"queries", shape.queries},
                        {"keys", shape.keys}});
  return {static_cast<annulus::Index>(array.shape[0]), static_cast<annulus::Index>(array.shape[1])};
}

void require_sink_logits(NpyArray const& array, CallShape& shape) {
  std::size_t const heads = static_cast<std::size_t>(shape.attention.query_heads);
  Shape const& seen = array.shape;
  bool const fits = (seen.size() == 1 || (seen.size() == 2 && seen[1] > 0)) && seen[0] == heads;
  if (!fits)
    fail_shape(array, "[query_heads " + std::to_string(heads) + "] or [query_heads " + std::to_string(heads) +
                          ", n], n at least 1");
  shape.sinks_on_one_axis = seen.size() == 1;
  shape.sinks = shape.sinks_on_one_axis ? 1 : static_cast<annulus::Index>(seen[1]);
}

/// Throws InputError if a file would be converted to another type unasked. Sink logits are added to sums, whose type is
/// double or float.
void require_type_of_q(AttendFiles const& files) {
  NpyArray const& q = files.q;
  auto const require = [&](NpyArray const& array, NpyType also_accepted) {
    if (array.type != q.type && array.type != also_accepted)
      throw InputError(array.file + ": holds " + name_of(array.type) + ", " + q.file + " holds " + name_of(q.type) +
                       "; accepted: " + name_of(q.type) +
                       (also_accepted == q.type ? "" : std::string(" or ") + name_of(also_accepted)) +
                       ", or --dtype, which converts all files");
  };
  require(files.k, q.type);
  require(files.v, q.type);
  for (std::optional<NpyArray> const* array : {&files.dout, &files.bias, &files.joint_k, &files.joint_v})
    if (*array) require(**array, q.type);
  if (files.sinks) require(*files.sinks, q.type == NpyType::float64 ? q.type : NpyType::float32);
}

annulus::DataType element_type(AttendFiles const& files, AttendOptions const& options) {
  if (options.dtype) return *options.dtype;
  require_type_of_q(files);
  NpyArray const& q = files.q;
  return q.type == NpyType::float64   ? annulus::DataType::float64
         : q.type == NpyType::float16 ? annulus::DataType::float16
                                      : annulus::DataType::float32;
}

}  // namespace

AttendFiles read_files(AttendOptions const& options) {
  bool const uint16_is_bfloat16 = options.dtype == annulus::DataType::bfloat16;
  auto const real = [&](std::filesystem::path const& path) {
    NpyArray array = read_npy(path, {.uint16_is_bfloat16 = uint16_is_bfloat16});
    require_real(array);
    return array;
  };
  AttendFiles files{.q = real(options.q), .k = real(options.k), .v = real(options.v)};
  if (!options.dout.empty()) files.dout = real(options.dout);
  if (!options.bias.empty()) files.bias = real(options.bias);
  if (!options.sinks.empty()) files.sinks = real(options.sinks);
  if (!options.joint_k.empty()) files.joint_k = real(options.joint_k);
  if (!options.joint_v.empty()) files.joint_v = real(options.joint_v);
  if (!options.mask.empty()) files.mask = read_npy(options.mask);
  if (!options.q_segments.empty()) files.q_segments = read_npy(options.q_segments);
  if (!options.kv_segments.empty()) files.kv_segments = read_npy(options.kv_segments);
  return files;
}

CallShape shape_of(AttendFiles const& files, AttendOptions const& options) {
  auto const q = attention_extents(files.q, options.axes);
  auto const k = attention_extents(files.k, options.axes);
  auto const v = attention_extents(files.v, options.axes);
  require_attention_extents(files.k, options.axes,
                            {{{"batch", q[0]}, {"sequence", k[1]}, {"heads", k[2]}, {"dim", q[3]}}});
  require_attention_extents(files.v, options.axes,
                            {{{"batch", q[0]}, {"sequence", k[1]}, {"heads", k[2]}, {"dim", v[3]}}});
  if (q[2] % k[2] != 0)
    throw InputError(files.k.file + ": has " + std::to_string(k[2]) + " heads, q has " + std::to_string(q[2]) +
                     "; accepted: a number of heads that divides the number of heads of q");

  CallShape shape{
      .dtype = element_type(files, options),
      .attention = {.batch = q[0], .query_heads = q[2], .kv_heads = k[2], .head_dim = q[3], .value_dim = v[3]},
      .queries = q[1],
      .keys = k[1],
      .document_ids = files.q_segments.has_value(),
      .backward = files.dout.has_value(),
      .bias_gradient = options.bias_gradient};
  if (files.dout)
    require_attention_extents(*files.dout, options.axes,
                              {{{"batch", q[0]}, {"sequence", q[1]}, {"heads", q[2]}, {"dim", v[3]}}});
  if (files.bias) shape.bias = require_pairs(*files.bias, shape);
  if (files.mask) shape.mask = require_pairs(*files.mask, shape);
  if (files.q_segments) require_shape(*files.q_segments, {{"batch", q[0]}, {"queries", q[1]}});
  if (files.kv_segments) require_shape(*files.kv_segments, {{"batch", q[0]}, {"keys", k[1]}});
  if (files.sinks) require_sink_logits(*files.sinks, shape);
  if (files.joint_k) {
    shape.joint_keys = attention_extents(*files.joint_k, options.axes)[1];
    std::array<Axis, 4> expected{{{"batch", q[0]}, {"joint keys", shape.joint_keys}, {"heads", k[2]}, {"dim", q[3]}}};
    require_attention_extents(*files.joint_k, options.axes, expected);
    expected[3].extent = v[3];
    require_attention_extents(*files.joint_v, options.axes, expected);
  }
  return shape;
}

namespace detail {

Tensor<bool, 4> mask_of(NpyArray const& array) {
  std::vector<char> const values = array.to_mask();
  Tensor<bool, 4> mask(extents_of<4>(array));
  std::transform(values.begin(), values.end(), mask.data(), [](char value) { return value != 0; });
  return mask;
}

Tensor<std::int32_t, 2> segments_of(NpyArray const& array) {
  using Limits = std::numeric_limits<std::int32_t>;
  std::vector<std::int64_t> const values = array.to<std::int64_t>();
  Tensor<std::int32_t, 2> segments(extents_of<2>(array));
  std::transform(values.begin(), values.end(), segments.data(), [&](std::int64_t value) {
    if (value < Limits::min() || value > Limits::max())
      throw InputError(array.file + ": holds the document id " + std::to_string(value) +
                       "; accepted: whole numbers of 32 bits");
    return static_cast<std::int32_t>(value);
  });
  return segments;
}

}  // namespace detail

annulus::Documents documents_in(AttendFiles const& files) {
  annulus::Documents documents;
  if (!files.q_segments) return documents;
  Tensor<std::int32_t, 2> const ids = detail::segments_of(*files.q_segments);
  auto const tokens = static_cast<std::size_t>(ids.dimension(1));
  for (annulus::Index b = 0; b < ids.dimension(0); ++b)
    for (annulus::PositionRange const& document :
         annulus::documents_of_ids(std::span(ids.data() + b * ids.dimension(1), tokens)))
      documents.push_back(document);
  return documents;
}

}  // namespace annulus_command
