// Rows of each rank, and copies between a tensor of all positions and a shard.

#include <algorithm>
#include <span>
#include <type_traits>
#include <vector>

#include "annulus/attention/validate.hpp"
#include "annulus/bindings/c/errors.hpp"
#include "annulus/bindings/c/options.hpp"
#include "annulus/bindings/c/tensors.hpp"
#include "annulus/mask/documents.hpp"
#include "annulus/schedule/balanced_sharding.hpp"
#include "annulus/sharding/scatter_gather.hpp"

using namespace annulus;
using namespace annulus::bindings;

namespace {

Side side_of(annulus_side side) {
  detail::check<UnsupportedError>(side == ANNULUS_QUERIES || side == ANNULUS_KEYS, "side is ", static_cast<int>(side),
                                  "; accepted: 0 queries, 1 keys");
  return side == ANNULUS_QUERIES ? Side::query : Side::key;
}

/// Calls function(std::type_identity<T>{}) with an integer type as large as an element of the dtype.
template <class Function>
void with_bytes_of(annulus_dtype dtype, std::string_view name, Function&& function) {
  switch (dtype) {
    case ANNULUS_FLOAT64:
    case ANNULUS_INT64:
    case ANNULUS_UINT64:
      return function(std::type_identity<std::uint64_t>{});
    case ANNULUS_FLOAT32:
    case ANNULUS_INT32:
    case ANNULUS_UINT32:
      return function(std::type_identity<std::uint32_t>{});
    case ANNULUS_FLOAT16:
    case ANNULUS_BFLOAT16:
    case ANNULUS_INT16:
    case ANNULUS_UINT16:
      return function(std::type_identity<std::uint16_t>{});
    case ANNULUS_BOOL:
    case ANNULUS_INT8:
    case ANNULUS_UINT8:
      return function(std::type_identity<std::uint8_t>{});
  }
  throw UnsupportedError(detail::message_of(name, " has elements of ", bindings::name_of(dtype)));
}

/// The tensor with axes of extent 1 before its own, four in all.
annulus_tensor with_four_axes(annulus_tensor tensor, std::string_view name) {
  detail::check<ShapeError>(tensor.num_axes >= 1 && tensor.num_axes <= 4, name, " has ", tensor.num_axes,
                            " axes; accepted: 1 to 4");
  for (; tensor.num_axes < 4; ++tensor.num_axes) {
    for (int a = tensor.num_axes; a > 0; --a) {
      tensor.extents[a] = tensor.extents[a - 1];
      tensor.strides[a] = tensor.strides[a - 1];
    }
    tensor.extents[0] = 1;
    tensor.strides[0] = 0;
  }
  return tensor;
}

/// Calls copy(view of `global`, segments of the rank, view of `shard`, axis) with the elements as integers.
template <class Copy>
void with_shard(annulus_sharding const* sharding, annulus_side side, int rank, int ranks, int axis,
                annulus_tensor const* global, annulus_tensor const* shard, Copy&& copy) {
  annulus_tensor const& whole = require_given(global, "global");
  annulus_tensor const& part = require_given(shard, "shard");
  detail::check<UnsupportedError>(whole.dtype == part.dtype, "global has elements of ", bindings::name_of(whole.dtype),
                                  ", shard of ", bindings::name_of(part.dtype), "; they must be the same");
  detail::check<ShapeError>(whole.num_axes == part.num_axes, "global has ", whole.num_axes, " axes, shard has ",
                            part.num_axes, "; they must be the same");
  detail::check<ShapeError>(axis >= 0 && axis < whole.num_axes, "axis is ", axis, "; accepted: 0 to ",
                            whole.num_axes - 1);
  auto const place = static_cast<std::size_t>(axis + 4 - whole.num_axes);
  Sharding const owners = sharding_of(require_given(sharding, "sharding"));
  auto const lengths = owners.lengths(side_of(side), ranks, static_cast<Index>(whole.extents[axis]));
  auto const segments = owners.segments(side_of(side), rank, lengths);
  with_bytes_of(whole.dtype, "global", [&]<class T>(std::type_identity<T>) {
    copy(view_as<T, 4>(with_four_axes(whole, "global"), "global"), std::span<Segment const>(segments),
         view_as<T, 4>(with_four_axes(part, "shard"), "shard"), place);
  });
}

}  // namespace

annulus_tensor annulus_dense(void* data, annulus_dtype dtype, int num_axes, int64_t const* extents) {
  annulus_tensor tensor{};
  if (num_axes < 1 || num_axes > 4 || !extents) return tensor;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.num_axes = num_axes;
  Index stride = 1;
  for (int a = num_axes - 1; a >= 0; --a) {
    tensor.extents[a] = extents[a];
    tensor.strides[a] = stride;
    stride = detail::saturating_product(stride, static_cast<Index>(extents[a]));
  }
  return tensor;
}

annulus_status annulus_shard_lengths(annulus_sharding const* sharding, annulus_side side, int ranks, int64_t tokens,
                                     int64_t* lengths) {
  return guarded([&] {
    auto const found =
        sharding_of(require_given(sharding, "sharding")).lengths(side_of(side), ranks, static_cast<Index>(tokens));
    std::copy(found.begin(), found.end(), &require_given(lengths, "lengths"));
  });
}

annulus_status annulus_shard_positions(annulus_sharding const* sharding, annulus_side side, int rank, int ranks,
                                       int64_t const* lengths, int64_t* positions) {
  return guarded([&] {
    detail::check<ShapeError>(ranks >= 1, "sharding over ", ranks, " ranks; at least one is needed");
    std::vector<Index> const held(&require_given(lengths, "lengths"), lengths + ranks);
    auto const found =
        positions_of(sharding_of(require_given(sharding, "sharding")).segments(side_of(side), rank, held));
    if (!found.empty()) std::copy(found.begin(), found.end(), &require_given(positions, "positions"));
  });
}

annulus_status annulus_balanced_map(int64_t const* document_lengths, int documents, annulus_options const* options,
                                    int ranks, int64_t block, int64_t* lengths, int64_t* positions) {
  return guarded([&] {
    detail::check<ShapeError>(documents >= 0, "balanced map of ", documents, " documents; accepted: 0 or more");
    if (documents > 0) require_given(document_lengths, "document_lengths");
    std::vector<Index> const given(document_lengths, document_lengths + documents);
    Documents const packed = documents_of_lengths(given);
    Index const tokens = packed.empty() ? 0 : packed.back().end;
    AttentionRules const rules = rules_of(options_of(options));
    validate_rules(rules);
    detail::check<UnsupportedError>(!rules.block_mask, "balanced map with a block mask; accepted: the other masks");
    Sharding const sharding = balanced_sharding(packed, tokens, rules.mask, ranks, static_cast<Index>(block));
    auto const rows = sharding.lengths(Side::query, ranks, tokens);
    std::copy(rows.begin(), rows.end(), &require_given(lengths, "lengths"));
    if (tokens > 0) require_given(positions, "positions");
    for (Rank rank = 0; rank < ranks; ++rank)
      for (Index position : positions_of(sharding.segments(Side::query, rank, rows))) *positions++ = position;
  });
}

annulus_status annulus_scatter(annulus_sharding const* sharding, annulus_side side, int rank, int ranks, int axis,
                               annulus_tensor const* global, annulus_tensor const* shard) {
  return guarded([&] {
    with_shard(
        sharding, side, rank, ranks, axis, global, shard,
        [](auto whole, auto segments, auto part, std::size_t place) { scatter_into(whole, segments, part, place); });
  });
}

annulus_status annulus_gather(annulus_sharding const* sharding, annulus_side side, int rank, int ranks, int axis,
                              annulus_tensor const* shard, annulus_tensor const* global) {
  return guarded([&] {
    with_shard(
        sharding, side, rank, ranks, axis, global, shard,
        [](auto whole, auto segments, auto part, std::size_t place) { gather_into(part, segments, whole, place); });
  });
}
