#pragma once
// Input files of `annulus attend`: reading, checks against each other, and conversion to tensors.

#include <algorithm>
#include <cstdint>
#include <optional>

#include "attend_options.hpp"
#include "call_shape.hpp"
#include "call_tensors.hpp"
#include "npy.hpp"

namespace annulus_command {

/// Unconverted arrays of the input files; optional files that were not given are empty.
struct AttendFiles {
  NpyArray q, k, v;
  std::optional<NpyArray> dout{}, bias{}, mask{}, q_segments{}, kv_segments{}, sinks{};
};

/// Reads the files. Throws InputError for one that cannot be read, or for integers where real numbers are needed.
AttendFiles read_files(AttendOptions const& options);

/// Shape of the call. Throws InputError, naming the file, if the shapes of the files do not match.
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

/// Converts the files to tensors; the bytes of q, k, v, dout and bias are freed as each is converted. Throws InputError
/// for a mask or document ids that cannot be converted.
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
