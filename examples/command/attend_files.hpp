#pragma once
// The input files of `annulus attend`: read, checked against each other, and turned into tensors.

#include <algorithm>
#include <cstdint>
#include <optional>

#include "attend_options.hpp"
#include "call_shape.hpp"
#include "call_tensors.hpp"
#include "npy.hpp"

namespace annulus_command {

/// The files as they are. Those that were not given are empty.
struct AttendFiles {
  NpyArray q, k, v;
  std::optional<NpyArray> dout{}, bias{}, mask{}, q_segments{}, kv_segments{}, sinks{};
};

/// Throws InputError for a file that cannot be read, or holds elements that mean nothing there.
AttendFiles read_files(AttendOptions const& options);

/// What the files say together. Throws InputError, with the name of the file, where they do not fit each other.
CallShape shape_of(AttendFiles const& files, AttendOptions const& options);

namespace detail {

template <class T, int Axes>
Tensor<T, Axes> tensor_of(NpyArray const& array, std::array<annulus::Index, Axes> const& extents) {
  std::vector<T> const values = array.to<T>();
  Tensor<T, Axes> tensor(extents);
  std::copy(values.begin(), values.end(), tensor.data());
  return tensor;
}

template <int Axes>
std::array<annulus::Index, Axes> extents_of(NpyArray const& array) {
  std::array<annulus::Index, Axes> extents{};
  std::copy(array.shape.begin(), array.shape.end(), extents.begin());
  return extents;
}

Tensor<bool, 4> mask_of(NpyArray const& array);
Tensor<std::int32_t, 2> segments_of(NpyArray const& array);

}  // namespace detail

/// The files as tensors, converted to T; each file's bytes are given up as soon as its tensor is made.
template <annulus::Scalar T>
Inputs<T> inputs_of(AttendFiles&& files, CallShape const& shape) {
  auto const four = [](NpyArray&& array) {
    NpyArray const taken = std::move(array);
    return detail::tensor_of<T, 4>(taken, detail::extents_of<4>(taken));
  };
  Inputs<T> inputs{four(std::move(files.q)), four(std::move(files.k)), four(std::move(files.v))};
  if (files.dout) inputs.dout = four(std::move(*files.dout));
  if (files.bias) inputs.bias = four(std::move(*files.bias));
  if (files.mask) inputs.mask = detail::mask_of(*files.mask);
  if (files.q_segments) inputs.query_segments = detail::segments_of(*files.q_segments);
  if (files.kv_segments) inputs.key_segments = detail::segments_of(*files.kv_segments);
  if (files.sinks)
    inputs.sinks =
        detail::tensor_of<annulus::Accumulator<T>, 2>(*files.sinks, {shape.attention.query_heads, shape.sinks});
  return inputs;
}

}  // namespace annulus_command
