#pragma once
// Files of `annulus attend`: inputs, checked against each other and converted to tensors; results; the timeline.

#include <algorithm>
#include <annulus/ring/trace.hpp>
#include <cinttypes>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attend.hpp"
#include "call.hpp"
#include "fnv1a.hpp"
#include "npy.hpp"
#include "output_folder.hpp"
#include "output_stream.hpp"
#include "pending_file.hpp"
#include "timeline.hpp"

namespace annulus_command {

/// Unconverted arrays of the input files; optional files that were not given are empty.
struct AttendFiles {
  NpyArray q, k, v;
  std::optional<NpyArray> dout{}, bias{}, mask{}, q_segments{}, kv_segments{}, sinks{}, joint_k{}, joint_v{};
};

/// Reads the files. Throws InputError for one that cannot be read, or for integers where real numbers are needed.
AttendFiles read_files(AttendOptions const& options);

/// Shape of the call. Throws InputError, naming the file, if the shapes of the files do not match.
CallShape shape_of(AttendFiles const& files, AttendOptions const& options);

/// The documents of all batch items, by the ids of the queries, where given.
annulus::Documents documents_in(AttendFiles const& files);

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

/// Converts the files to tensors; the bytes of real numbers are freed as each is converted. Throws InputError
/// for a mask or document ids that cannot be converted.
template <annulus::Scalar T>
Inputs<T> inputs_of(AttendFiles&& files, CallShape const& shape) {
  auto const four = [](NpyArray&& array) {
    NpyArray const taken = std::move(array);
    return detail::tensor_of<T, 4>(taken, detail::extents_of<4>(taken));
  };
  Inputs<T> inputs{four(std::move(files.q)), four(std::move(files.k)), four(std::move(files.v))};
  if (files.dout) inputs.dout = four(std::move(*files.dout));
  if (files.joint_k) inputs.joint_keys = four(std::move(*files.joint_k));
  if (files.joint_v) inputs.joint_values = four(std::move(*files.joint_v));
  if (files.bias) inputs.bias = four(std::move(*files.bias));
  if (files.mask) inputs.mask = detail::mask_of(*files.mask);
  if (files.q_segments) inputs.query_documents = detail::segments_of(*files.q_segments);
  if (files.kv_segments) inputs.key_documents = detail::segments_of(*files.kv_segments);
  if (files.sinks)
    inputs.sinks =
        detail::tensor_of<annulus::Accumulator<T>, 2>(*files.sinks, {shape.attention.query_heads, shape.sinks});
  return inputs;
}

/// The result files, prepared before anything is computed so that a bad folder or file ends the command at once.
class ResultFiles {
 public:
  ResultFiles(AttendOptions const& options, CallShape const& shape)
      : folder_(options.out_dir, names(shape), inputs(options)),
        sinks_on_one_axis_(shape.sinks_on_one_axis),
        hash_(options.hash) {
    for (char const* result : {"dq", "dk", "dv", "dsinks", "dbias", "d_joint_k", "d_joint_v"})
      if (auto const written = names(shape); std::ranges::find(written, file_name(result)) == written.end())
        if (std::filesystem::path const path = folder_ / file_name(result); !is_input(options, path))
          outdated_.push_back(path);
    if (options.trace.empty()) return;
    OutputFolder::require_free(options.trace, inputs(options));
    for (std::string const& name : names(shape))
      if (name_one_file(options.trace, folder_ / name))
        throw InputError(options.trace.string() + ": is the name of a result; accepted: another name for --trace");
    trace_.emplace(options.trace);
  }

  /// Writes all files under temporary names first, so that a full disk leaves none of them. An older out.npy, and
  /// results that this run does not have, are removed before any other file is replaced, and the new out.npy is renamed
  /// last: if it exists, all results are those of one run. Lists the files on stdout, and the hashes if they were asked
  /// for. Throws std::runtime_error if a file cannot be written.
  template <annulus::Scalar T>
  void write(Results<T> const& results, Intervals const& intervals) {
    std::vector<PendingFile> pending;
    Printed printed;
    auto const add = [&](char const* name, auto const& tensor) {
      pending.push_back(pending_file<T>(name, tensor, printed));
    };
    auto const optional = [&](char const* name, auto const& tensor) {
      if (tensor) add(name, *tensor);
    };
    add("lse", results.lse);
    add_hash("lse_remainder", elements_of(results.lse_remainder), printed);
    optional("dq", results.dq);
    optional("dk", results.dk);
    optional("dv", results.dv);
    optional("dbias", results.dbias);
    optional("d_joint_k", results.d_joint_keys);
    optional("d_joint_v", results.d_joint_values);
    if (results.dsinks && sinks_on_one_axis_)
      add("dsinks", Tensor<annulus::Accumulator<T>, 1>(
                        results.dsinks->reshape(Eigen::array<Eigen::Index, 1>{results.dsinks->size()})));
    else
      optional("dsinks", results.dsinks);
    if (trace_) {
      annulus::write_trace(trace_->stream(), intervals);
      trace_->close();
      pending.push_back(std::move(*trace_));
    }
    add("out", results.out);
    commit_together(pending, outdated_);
    std::cout << printed.files;
    for (auto const& [name, hash] : printed.hashes) print_formatted("fnv1a64 %s %016" PRIx64 "\n", name, hash);
  }

 private:
  static std::string file_name(std::string const& result) { return result + ".npy"; }

  static std::vector<std::string> names(CallShape const& shape) {
    std::vector<std::string> names{file_name("out"), file_name("lse")};
    if (shape.backward)
      for (char const* result : {"dq", "dk", "dv"}) names.push_back(file_name(result));
    if (shape.backward && shape.sinks > 0) names.push_back(file_name("dsinks"));
    if (shape.bias_gradient) names.push_back(file_name("dbias"));
    if (shape.backward && shape.joint_keys > 0)
      for (char const* result : {"d_joint_k", "d_joint_v"}) names.push_back(file_name(result));
    return names;
  }

  static std::vector<std::filesystem::path> inputs(AttendOptions const& options) {
    return {options.q,          options.k,           options.v,     options.dout,    options.bias,   options.mask,
            options.q_segments, options.kv_segments, options.sinks, options.joint_k, options.joint_v};
  }

  /// True if `path` names one of the files that were read.
  static bool is_input(AttendOptions const& options, std::filesystem::path const& path) {
    std::error_code error;
    return std::ranges::any_of(inputs(options), [&](std::filesystem::path const& input) {
      return !input.empty() && std::filesystem::equivalent(input, path, error);
    });
  }

  /// What is printed when all files are in their places.
  struct Printed {
    std::string files;
    std::vector<std::pair<char const*, std::uint64_t>> hashes;
  };

  template <class TensorType>
  static auto elements_of(TensorType const& tensor) {
    return std::span(tensor.data(), static_cast<std::size_t>(tensor.size()));
  }

  template <class Element>
  void add_hash(char const* name, std::span<Element const> elements, Printed& printed) const {
    if (hash_) printed.hashes.emplace_back(name, fnv1a(std::as_bytes(elements)));
  }

  /// Elements of T = double are written as f8, all others as f4. The hash is that of the elements as written.
  template <annulus::Scalar T, class TensorType>
  PendingFile pending_file(char const* name, TensorType const& tensor, Printed& printed) const {
    using Written = annulus::Accumulator<T>;
    std::filesystem::path const path = folder_ / file_name(name);
    std::vector<std::size_t> shape;
    for (auto const extent : tensor.dimensions()) shape.push_back(static_cast<std::size_t>(extent));
    printed.files += path.string() + " " + shape_text(shape) + (sizeof(Written) == 8 ? " f8\n" : " f4\n");
    auto const elements = elements_of(tensor);
    std::vector<Written> converted;
    std::span<Written const> written;
    if constexpr (std::is_same_v<std::remove_const_t<typename decltype(elements)::value_type>, Written>) {
      written = elements;
    } else {
      converted.reserve(elements.size());
      for (auto const element : elements) converted.push_back(static_cast<Written>(element));
      written = converted;
    }
    add_hash(name, written, printed);
    return pending_npy(path, shape, written);
  }

  OutputFolder folder_;
  std::optional<PendingFile> trace_;             ///< opened before anything is computed
  std::vector<std::filesystem::path> outdated_;  ///< results of earlier runs that this run does not have
  bool sinks_on_one_axis_, hash_;
};

}  // namespace annulus_command
