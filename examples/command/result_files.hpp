#pragma once
// Result files of `annulus attend`.

#include <filesystem>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attend_options.hpp"
#include "call_tensors.hpp"
#include "npy.hpp"
#include "output_folder.hpp"
#include "trace_file.hpp"

namespace annulus_command {

/// The result files, prepared before anything is computed so that a bad folder or file ends the command at once.
class ResultFiles {
 public:
  ResultFiles(AttendOptions const& options, CallShape const& shape)
      : folder_(options.out_dir, names(shape), inputs(options)), sinks_on_one_axis_(shape.sinks_on_one_axis) {
    if (options.trace.empty()) return;
    OutputFolder::require_free(options.trace, inputs(options));
    std::error_code error;
    for (std::string const& name : names(shape))
      if (std::filesystem::weakly_canonical(options.trace, error) ==
          std::filesystem::weakly_canonical(folder_ / name, error))
        throw InputError(options.trace.string() + ": is the name of a result; accepted: another name for --trace");
    trace_.emplace(options.trace);
  }

  /// Writes all files under temporary names first, so that a full disk leaves none of them. An older out.npy is removed
  /// before any other file is replaced and the new one is renamed last: if it exists, all results of one run do. Lists
  /// the files on stdout. Throws std::runtime_error if a file cannot be written.
  template <annulus::Scalar T>
  void write(Results<T> const& results, std::vector<std::vector<Span>> const& spans_of_ranks) {
    std::vector<PendingFile> pending;
    std::string list;
    auto const add = [&](char const* name, auto const& tensor) {
      auto file = pending_file<T>(folder_ / file_name(name), tensor, list);
      pending.push_back(std::move(file));
    };
    auto const optional = [&](char const* name, auto const& tensor) {
      if (tensor) add(name, *tensor);
    };
    add("lse", results.lse);
    optional("dq", results.dq);
    optional("dk", results.dk);
    optional("dv", results.dv);
    optional("dbias", results.dbias);
    if (results.dsinks && sinks_on_one_axis_)
      add("dsinks", Tensor<annulus::Accumulator<T>, 1>(
                        results.dsinks->reshape(Eigen::array<Eigen::Index, 1>{results.dsinks->size()})));
    else
      optional("dsinks", results.dsinks);
    if (trace_) {
      trace_->write(spans_of_ranks);
      pending.push_back(trace_->take());
    }
    add("out", results.out);
    commit_together(pending);
    std::cout << list;
  }

 private:
  static std::string file_name(std::string const& result) { return result + ".npy"; }

  static std::vector<std::string> names(CallShape const& shape) {
    std::vector<std::string> names{file_name("out"), file_name("lse")};
    if (shape.backward)
      for (char const* result : {"dq", "dk", "dv"}) names.push_back(file_name(result));
    if (shape.backward && shape.sinks > 0) names.push_back(file_name("dsinks"));
    if (shape.bias_gradient) names.push_back(file_name("dbias"));
    return names;
  }

  static std::vector<std::filesystem::path> inputs(AttendOptions const& options) {
    return {options.q,    options.k,          options.v,           options.dout, options.bias,
            options.mask, options.q_segments, options.kv_segments, options.sinks};
  }

  /// Elements of T = double are written as f8, all others as f4.
  template <annulus::Scalar T, class TensorType>
  static PendingFile pending_file(std::filesystem::path const& path, TensorType const& tensor, std::string& list) {
    using Written = annulus::Accumulator<T>;
    std::vector<std::size_t> shape;
    for (auto const extent : tensor.dimensions()) shape.push_back(static_cast<std::size_t>(extent));
    list += path.string() + " " + shape_text(shape) + (sizeof(Written) == 8 ? " f8\n" : " f4\n");
    auto const elements = std::span(tensor.data(), static_cast<std::size_t>(tensor.size()));
    if constexpr (std::is_same_v<std::remove_const_t<typename decltype(elements)::value_type>, Written>) {
      return pending_npy(path, shape, std::span<Written const>(elements));
    } else {
      std::vector<Written> converted(elements.size());
      for (std::size_t i = 0; i < elements.size(); ++i) converted[i] = static_cast<Written>(elements[i]);
      return pending_npy(path, shape, std::span<Written const>(converted));
    }
  }

  OutputFolder folder_;
  std::optional<TraceFile> trace_;
  bool sinks_on_one_axis_;
};

}  // namespace annulus_command
