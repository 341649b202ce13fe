#include <algorithm>
#include <annulus/nki/print/python_checks.hpp>
#include <annulus/nki/print/python_lines.hpp>
#include <annulus/nki/print/to_python.hpp>
#include <cmath>
#include <utility>

#include "embedded_texts.hpp"
#include "nki_parts.hpp"

namespace annulus_command {

namespace {

using annulus::Index;
using annulus::nki::ElementType;

std::string dtype(ElementType type) { return "nl." + std::string(name_of(type)); }

bool is_striped(annulus::Options const& options) { return options.sharding == annulus::Sharding(annulus::Striped{}); }

/// Boundaries of the documents, from 0 to the end of the sequence.
std::vector<std::string> boundaries(NkiProblem const& problem) {
  std::vector<std::string> all;
  for (Index begin : problem.documents) all.push_back(python(begin));
  all.push_back(python(problem.call.shape.keys));
  return all;
}

/// The text of a function with the name, parameters, layouts and results of nkilib's, which calls a printed kernel.
class NkilibText {
 public:
  NkilibText(NkiOptions const& options, NkiProblem const& problem, NkiKernel const& kernel)
      : options_(options),
        problem_(problem),
        spec_(problem.spec),
        kernel_(kernel),
        function_(nkilib_function(options, problem, kernel)),
        mask_(mask_input_of(kernel.program())) {}

  std::string text() && {
    std::string text = "# " + function_.name +
                       ", which has the names, parameters and layouts of nkilib's: at the end of " +
                       "this file, after\n# the kernel that it calls.\n#\n" +
                       annulus::nki::to_python(kernel_.program(), options_.spelling(), nki_notes(problem_, kernel_),
                                               annulus::nki::GroupOrder::any);
    if (!mask_.empty()) {
      if (spec_.ranks == 1) text += "\n\nimport nki.collectives as ncc\n";
      text += "\n\n" + std::string(nki_nkilib_masks_text);
    }
    if (!forward()) text += "\n\n" + std::string(nki_nkilib_layouts_text);
    head();
    checks();
    if (!mask_.empty()) table();
    if (forward())
      call("return ", {"q", "k", "v"});
    else
      backward();
    return text + lines_.text();
  }

 private:
  bool forward() const { return kernel_.pass == annulus::Pass::forward; }
  bool packed() const { return mask_ == "mask_ranges"; }

  void head() {
    lines_.blank();
    lines_.blank();
    lines_.statement("@nki.jit");
    std::vector<std::string> parameters;
    for (NkiTensor const& tensor : function_.inputs)
      if (!tensor.optional) parameters.push_back(tensor.name);
    for (NkiConstant const& constant : function_.constants) {
      if (constant.name == "segment_cu_seqlens") add_bounds(parameters);
      parameters.push_back(constant.name + "=" + constant.fallback);
    }
    if (forward()) add_bounds(parameters);
    lines_.call("def " + function_.name, parameters, ":");
    lines_.open_block();
    lines_.comment("The function of nkilib of this name, for the values that it asserts.");
    for (NkiTensor const& tensor : function_.inputs) lines_.comment("  " + described(tensor));
    lines_.comment("Returns:");
    for (NkiTensor const& tensor : function_.outputs) lines_.comment("  " + described(tensor));
  }

  static void add_bounds(std::vector<std::string>& parameters) {
    parameters.insert(parameters.end(), {"bound_min=None", "bound_max=None"});
  }

  static std::string described(NkiTensor const& tensor) {
    std::string shape;
    for (Index extent : tensor.shape) shape += (shape.empty() ? "" : ", ") + python(extent);
    return tensor.name + ": " + std::string(name_of(tensor.type)) + " [" + shape + "]";
  }

  void fall_back(std::string const& name, std::string const& value) {
    lines_.open_block("if " + name + " == None:");
    lines_.statement(name + " = " + value);
    lines_.close_block();
  }

  void require(std::string const& condition, std::string const& message) {
    lines_.statement("assert " + condition + ", \"" + message + "\"");
  }

  void checks() {
    for (NkiTensor const& tensor : function_.inputs)
      if (!tensor.optional) annulus::nki::print_detail::check_shape(lines_, tensor.name, tensor.shape);
    for (NkiConstant const& constant : function_.constants) {
      std::string const only = constant.name + ": this kernel is for " + constant.value;
      if (constant.name == "replica_groups") {
        groups();
      } else if (constant.name == "softmax_scale") {
        fall_back("softmax_scale", annulus::nki::text_of(1 / std::sqrt(static_cast<double>(spec_.shape.head_dim))));
        std::string const scale = annulus::nki::text_of(spec_.softmax_scale);
        lines_.statement("difference = softmax_scale - (" + scale + ")");
        // Callers compute 1 / sqrt(dim) in several ways.
        require("max(difference, -difference) <= " + annulus::nki::text_of(std::abs(spec_.softmax_scale) * 0x1p-22),
                "softmax_scale: this kernel is for another");
      } else if (constant.name == "segment_cu_seqlens" && constant.value != "None") {
        lines_.call("assert segment_cu_seqlens == ", boundaries(problem_), ", \"the documents of another kernel\"");
      } else {
        require(constant.name + " == " + constant.value, only);
      }
    }
    if (packed() && !forward() && !options_.run_time_documents) {
      require("(bound_min == None) == (bound_max == None)", "only one of bound_min and bound_max is given");
    } else {
      for (std::string const bound : {"bound_min", "bound_max"})
        require(bound + (packed() ? " != None" : " == None"),
                bound + (packed() ? ": this kernel needs both bounds" : ": this kernel has no documents"));
    }
    for (NkiTensor const& tensor : function_.inputs) {
      if (!tensor.optional) continue;
      lines_.open_block("if " + tensor.name + " != None:");
      annulus::nki::print_detail::check_shape(lines_, tensor.name, tensor.shape);
      lines_.close_block();
    }
  }

  void groups() {
    if (problem_.groups() == 1) {
      std::vector<std::string> ranks;
      for (int rank = 0; rank < spec_.ranks; ++rank) ranks.push_back(python(Index{rank}));
      if (spec_.ranks == 1) ranks.front() += ",";
      lines_.open_block("if replica_groups == None:");
      lines_.call("replica_groups = (", ranks, ",)");
      lines_.close_block();
    }
    // Where a table depends on the positions of ranks, neighbour_stride() checks more. Groups of one rank may be many.
    if (spec_.ranks == 1)
      return require("len(replica_groups[0]) == 1", "replica_groups: this kernel is for groups of 1");
    annulus::nki::print_detail::check_number_of_groups(lines_, problem_.groups());
    annulus::nki::print_detail::check_groups(lines_, spec_.ranks);
  }

  void table() {
    std::vector<std::string> arguments{spec_.ranks > 1 ? "replica_groups" : "None", python(Index{spec_.ranks}),
                                       python(Index{problem_.groups()})};
    std::string const rows = python(spec_.local_queries);
    std::string const rotate = python(!forward() && spec_.travels == annulus::nki::RotatingSide::queries);
    if (packed())
      arguments.insert(
          arguments.end(),
          {python(spec_.shape.batch), rows, python(problem_.call.options.mask.causal), rotate, "bound_min", "bound_max",
           python(Index{forward() ? spec_.shape.query_heads : 1}), forward() ? "None" : "segment_cu_seqlens"});
    else
      arguments.insert(arguments.end(), {rows, python(is_striped(problem_.call.options)), rotate});
    lines_.call("table = " + std::string(packed() ? "document_ranges" : "causal_offsets"), arguments);
  }

  /// A call of the printed kernel with its tensors, but the table, in order.
  void call(std::string const& before, std::vector<std::string> const& tensors) {
    annulus::nki::Program const& program = kernel_.program();
    std::vector<std::string> arguments;
    auto next = tensors.begin();
    for (int input : program.with_role(annulus::nki::Role::input))
      arguments.push_back(program.buffer(input).name == mask_ ? "table" : *next++);
    if (program.ranks > 1) arguments.push_back("replica_groups");
    if (!program.mask_fingerprint.empty()) arguments.push_back("\"" + program.mask_fingerprint + "\"");
    lines_.call(before + program.name, arguments);
  }

  void transpose(std::string const& to, std::string const& from, Index heads, Index rows, Index columns,
                 ElementType type) {
    Index const batch = spec_.shape.batch;
    lines_.call(to + " = nl.ndarray",
                {"(" + python(batch) + ", " + python(heads) + ", " + python(columns) + ", " + python(rows) + ")",
                 "dtype=" + dtype(type), "buffer=nl.shared_hbm", "name=\"" + to + "\""});
    lines_.call("transposed", {to, from, python(batch * heads), python(rows), python(columns), dtype(type), "core",
                               python(Index{spec_.cores})});
  }

  /// What follows reads what both cores wrote.
  void meet(std::initializer_list<char const*> tensors) {
    if (spec_.cores > 1)
      for (std::string const tensor : tensors) lines_.statement("nisa.core_barrier(data=" + tensor + ", cores=(0, 1))");
  }

  void backward() {
    annulus::AttentionShape const& shape = spec_.shape;
    Index const queries = spec_.local_queries, keys = spec_.local_keys;
    lines_.statement("core = nl.program_id(0)");
    transpose("v_by_token", "v_ref", shape.kv_heads, shape.value_dim, keys, spec_.type);
    transpose("o_by_token", "o_ref", shape.query_heads, shape.value_dim, queries, spec_.output_type);
    transpose("dy_by_token", "dy_ref", shape.query_heads, shape.value_dim, queries, spec_.type);
    meet({"v_by_token", "o_by_token", "dy_by_token"});
    call("dq, dk, dv = ", {"q_ref", "k_ref", "v_by_token", "dy_by_token", "o_by_token", "lse_ref"});
    meet({"dq", "dk", "dv"});
    transpose("out_dq", "dq", shape.query_heads, queries, shape.head_dim, ElementType::float32);
    transpose("out_dk", "dk", shape.kv_heads, keys, shape.head_dim, ElementType::float32);
    transpose("out_dv", "dv", shape.kv_heads, keys, shape.value_dim, ElementType::float32);
    lines_.statement("return out_dq, out_dk, out_dv");
  }

  NkiOptions const& options_;
  NkiProblem const& problem_;
  annulus::nki::KernelSpec const& spec_;
  NkiKernel const& kernel_;
  NkiFunction function_;
  std::string mask_;  ///< input of the printed kernel
  annulus::nki::print_detail::PythonLines lines_;
};

}  // namespace

void require_nkilib(NkiOptions const& options) {
  auto const refuse = [](std::string const& option, std::string const& accepted) {
    throw InputError(option + " is given with --like nkilib; accepted: " + accepted);
  };
  annulus::Options const& attention = options.attend.attention;
  annulus::Mask const& mask = attention.mask;
  bool const striped = is_striped(attention);
  std::string const no_parameter = "the masks of nkilib, --causal and --documents";
  if (options.emit.empty()) throw InputError("--like applies only to the kernels that --emit writes; accepted: both");
  if (mask.window.bounded()) refuse("--window", no_parameter);
  if (mask.sink_tokens > 0) refuse("--sink-tokens", no_parameter);
  if (mask.chunk > 0) refuse("--chunk", no_parameter);
  if (attention.query_offset.value_or(0) != 0) refuse("--query-offset", "queries at the positions of their keys");
  if (options.keys_per_rank && options.keys_per_rank != options.tokens_per_rank)
    refuse("--keys-per-rank", "as many keys as --tokens-per-rank");
  if (attention.logit_softcap > 0) refuse("--softcap", "no soft cap, for which nkilib has no parameter");
  if (!options.bias.empty()) refuse("--bias", "no bias, for which nkilib has no parameter");
  if (!options.sinks.empty()) refuse("--sinks", "no sink logits, for which nkilib has no parameter");
  if (options.output_type.value_or(options.type) != options.type)
    refuse("--output-dtype", "that of --dtype, which nkilib's o has");
  if (options.keys_stationary == true) refuse("--keys-stationary", "none: its report has no place in nkilib's results");
  if (options.masked_row == annulus::nki::MaskedRow::minus_infinity) refuse("--masked-row -inf", "zero, as in nkilib");
  if (!striped && attention.sharding != annulus::Sharding(annulus::Contiguous{}))
    refuse("--sharding", "contiguous or striped");
  if (striped && !mask.causal && options.documents.empty())
    refuse("--sharding striped", "with it --causal or --documents, without which it changes nothing");
  if (!options.documents.empty() && !striped)
    refuse("--documents", "with it --sharding striped, where documents are the same rows of all ranks");
  for (Index begin : options.documents)
    if (begin % options.ranks() != 0)
      refuse("--documents with a document from " + std::to_string(begin) + " on",
             "positions that are multiples of the " + std::to_string(options.ranks()) + " ranks");
}

NkiFunction nkilib_function(NkiOptions const& options, NkiProblem const& problem, NkiKernel const& kernel) {
  annulus::nki::KernelSpec const& spec = problem.spec;
  annulus::AttentionShape const& shape = spec.shape;
  Index const batch = shape.batch, queries = spec.local_queries, keys = spec.local_keys;
  std::string const striped = python(is_striped(problem.call.options));
  std::string const causal = python(problem.call.options.mask.causal);
  bool const packed = mask_input_of(kernel.program()) == "mask_ranges";
  std::string documents = "None";
  if (packed && !options.run_time_documents) {
    documents.clear();
    for (std::string const& boundary : boundaries(problem)) documents += (documents.empty() ? "(" : ", ") + boundary;
    documents += ")";
  }
  NkiConstant const groups{"replica_groups", "REPLICA_GROUPS", "None"};
  NkiConstant const workers{"num_workers", python(Index{spec.ranks}), "1"};
  NkiConstant const scale{"softmax_scale", "SCALE", "None"};
  auto const by_dim = [&](std::string const& name, std::string const& operand, Index heads, Index dim, Index rows,
                          ElementType type, bool first = true) -> NkiTensor {
    return {name, operand, type, first ? std::vector{batch, heads, dim, rows} : std::vector{batch, heads, rows, dim},
            first};
  };
  NkiFunction function;
  if (kernel.pass == annulus::Pass::forward) {
    function.name = "ring_attention_spmd_fwd";
    function.inputs = {by_dim("q", "q", shape.query_heads, shape.head_dim, queries, spec.type, !spec.queries_by_token),
                       by_dim("k", "k", shape.kv_heads, shape.head_dim, keys, spec.type, !spec.keys_by_token),
                       by_dim("v", "v", shape.kv_heads, shape.value_dim, keys, spec.type, false)};
    function.outputs = {by_dim("o", "output", shape.query_heads, shape.value_dim, queries, spec.output_type, false)};
    if (spec.training) function.outputs.push_back({"lse", "lse", spec.lse_type, spec.lse_shape()});
    function.constants = {groups,
                          workers,
                          scale,
                          {"use_causal_mask", causal, "False"},
                          {"striped_input", striped, "False"},
                          {"training", python(spec.training), "False"},
                          {"lse_dtype", spec.training ? dtype(spec.lse_type) : "nl.float32", "nl.float32"},
                          {"tp_q", python(spec.queries_by_token), "False"},
                          {"tp_k", python(spec.keys_by_token), "False"}};
  } else {
    function.name = "ring_attention_spmd_bwd";
    Index const dim = shape.head_dim, value_dim = shape.value_dim;
    function.inputs = {by_dim("q_ref", "q", shape.query_heads, dim, queries, spec.type),
                       by_dim("k_ref", "k", shape.kv_heads, dim, keys, spec.type),
                       by_dim("v_ref", "v", shape.kv_heads, value_dim, keys, spec.type),
                       by_dim("o_ref", "output", shape.query_heads, value_dim, queries, spec.output_type),
                       by_dim("dy_ref", "dout", shape.query_heads, value_dim, queries, spec.type),
                       {"lse_ref", "lse", ElementType::float32, spec.lse_shape()}};
    function.outputs = {by_dim("out_dq", "dq", shape.query_heads, dim, queries, ElementType::float32),
                        by_dim("out_dk", "dk", shape.kv_heads, dim, keys, ElementType::float32),
                        by_dim("out_dv", "dv", shape.kv_heads, value_dim, keys, ElementType::float32)};
    function.constants = {{"use_causal_mask", causal, "False"},
                          {"mixed_precision", "True", "True"},
                          scale,
                          workers,
                          {"lnc_size", python(Index{spec.cores}), "1"},
                          groups,
                          {"striped_attention", striped, "False"},
                          {"segment_cu_seqlens", documents, "None"}};
  }
  if (packed)
    for (char const* name : {"bound_min", "bound_max"})
      function.inputs.push_back({name, name, ElementType::float32,
                                 kernel.pass == annulus::Pass::forward
                                     ? std::vector{batch * shape.query_heads, queries, Index{1}}
                                     : std::vector{batch, queries},
                                 false, true});
  return function;
}

std::string nkilib_text(NkiOptions const& options, NkiProblem const& problem, NkiKernel const& kernel) {
  return NkilibText(options, problem, kernel).text();
}

std::string nkilib_readme(NkiOptions const& options, NkiProblem const& problem, NkiKernel const& kernel) {
  NkiFunction const function = nkilib_function(options, problem, kernel);
  std::string text = "## `" + function.name +
                     "`\n\nThe function of nkilib with its parameters, layouts and results, in " +
                     "the kernel's file. Other values than\nthese are refused when it is compiled.\n";
  auto const table = [&](char const* what, std::vector<NkiTensor> const& tensors) {
    text += std::string("\n| ") + what + " | element type | shape | axes |\n|---|---|---|---|\n";
    for (NkiTensor const& tensor : tensors) {
      std::string shape;
      for (Index extent : tensor.shape) shape += (shape.empty() ? "" : ", ") + python(extent);
      text += "| `" + tensor.name + "` | " + std::string(name_of(tensor.type)) + " | [" + shape + "] | " +
              (tensor.operand == "lse"    ? "[batch, heads, 128, columns]: row c * 128 + p at (p, c); 0 in masked rows"
               : tensor.shape.size() == 4 ? tensor.dim_first ? "[batch, heads, dim, rows]" : "[batch, heads, rows, dim]"
               : tensor.shape.size() == 3 ? "[batch * heads, rows, 1], equal for all heads"
                                          : "[batch, rows]") +
              " |\n";
    }
  };
  table("tensor", function.inputs);
  text += "\n| argument | value |\n|---|---|\n";
  for (auto const& [name, value, fallback] : function.constants) {
    std::string const scale = annulus::nki::text_of(problem.spec.softmax_scale);
    text += "| `" + name + "` | ";
    if (name == "replica_groups")
      text += problem.groups() == 1
                  ? "`None`, or one group of all ranks in order |\n"
                  : python(Index{problem.groups()}) + " groups of " + python(Index{problem.spec.ranks}) +
                        " ranks at equal distances, such as (0, 1), (2, 3) or (0, 2), (1, 3) |\n";
    else
      text += "`" + (name == "softmax_scale" ? scale : value) + "` |\n";
  }
  table("result", function.outputs);
  if (std::ranges::any_of(function.inputs, &NkiTensor::optional))
    text +=
        "\nRow i sees the rows bound_min(i) <= j < bound_max(i) of the keys of each rank, and what the causal mask "
        "allows.\n";
  return text + "\n";
}

}  // namespace annulus_command
