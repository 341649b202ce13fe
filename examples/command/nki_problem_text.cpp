#include <annulus/nki/program/program.hpp>
#include <cmath>
#include <set>

#include "nki_parts.hpp"

namespace annulus_command {

namespace {

using annulus::Index;
using annulus::Side;
using annulus::nki::Role;

std::string python_string(std::string_view text) { return "\"" + std::string(text) + "\""; }

/// (a, b, c), with the comma that a single item needs.
template <class Items, class Text>
std::string python_tuple(Items const& items, Text&& text_of) {
  std::string text;
  std::size_t count = 0;
  for (auto const& item : items) text += (count++ ? ", " : "") + text_of(item);
  return "(" + text + (count == 1 ? ",)" : ")");
}

template <class Items>
std::string joined(Items const& items) {
  std::string text;
  for (std::string const& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

std::string python_shape(std::vector<Index> const& shape) {
  return python_tuple(shape, [](Index extent) { return python(extent); });
}

/// The text of problem.py, line by line.
class ProblemText {
 public:
  ProblemText(NkiOptions const& options, NkiProblem const& problem, std::vector<NkiKernel> const& kernels)
      : options_(options), problem_(problem), spec_(problem.spec), kernels_(kernels) {}

  std::string text() && {
    text_ = "\"\"\"What the kernels of this folder compute, as data for check.py and the launchers.\"\"\"\n\n";
    sizes();
    attention();
    text_ += "# Runs of rows of the rank at each place of a ring: (first row, rows, first global position, step).\n";
    runs("QUERY_RUNS", Side::query, problem_.call.shape.queries);
    runs("KEY_RUNS", Side::key, problem_.call.shape.keys);
    text_ +=
        "# In the order in which they run: inputs and outputs (name, type, shape), arguments that are no tensors, the "
        "file\n# of the mask's table, and whether queries rotate.\n";
    text_ += "KERNELS = {\n";
    for (NkiKernel const& kernel : kernels_) describe(kernel);
    text_ += "}\n";
    line("COMMAND_OF_ONE_RANK", python_string(nki_command_line(options_, problem_, true)));
    return std::move(text_);
  }

 private:
  void line(std::string const& name, std::string const& value, char const* comment = nullptr) {
    text_ += name + " = " + value + (comment ? std::string("  # ") + comment : "") + "\n";
  }

  void sizes() {
    line("RANKS", python(Index{spec_.ranks}), "of a ring");
    line("GROUPS", python(Index{problem_.groups()}), "rings");
    line("REPLICA_GROUPS", "tuple(tuple(range(g * RANKS, (g + 1) * RANKS)) for g in range(GROUPS))");
    line("CORES", python(Index{spec_.cores}), "physical cores of a rank (LNC)");
    line("LAUNCH_GRID", python(options_.spelling().launch_grid), "the call names the cores: kernel[CORES](...)");
    line("TARGET", python_string(name_of(spec_.target)));
    line("BATCH", python(spec_.shape.batch));
    line("QUERY_HEADS", python(spec_.shape.query_heads));
    line("KV_HEADS", python(spec_.shape.kv_heads));
    line("HEAD_DIM", python(spec_.shape.head_dim));
    line("VALUE_DIM", python(spec_.shape.value_dim));
    line("QUERIES", python(spec_.local_queries), "of each rank");
    line("KEYS", python(spec_.local_keys));
    line("TYPE", python_string(name_of(spec_.type)), "of q, k, v and dout");
    std::set<std::string> dim_first, operands;
    for (NkiKernel const& kernel : kernels_) {
      NkiFunction const function = nki_function(options_, problem_, kernel);
      for (auto const* tensors : {&function.inputs, &function.outputs})
        for (NkiTensor const& tensor : *tensors) {
          if (tensor.dim_first) dim_first.insert(python_string(tensor.name));
          if (tensor.name != tensor.operand)
            operands.insert(python_string(tensor.name) + ": " + python_string(tensor.operand));
        }
    }
    line("DIM_FIRST", "[" + joined(dim_first) + "]", "tensors with axes [batch, heads, dim, rows]");
    line("OPERANDS", "{" + joined(operands) + "}", "what the tensors are that have other names");
  }

  void attention() {
    annulus::Mask const& mask = problem_.call.options.mask;
    auto const side = [](Index reach) { return reach < annulus::unbounded ? reach : Index{-1}; };
    line("SCALE", annulus::nki::text_of(spec_.softmax_scale));
    line("SOFTCAP", annulus::nki::text_of(spec_.logit_softcap), "0: none");
    line("SINKS", python(spec_.sinks), "sink logits of each query head");
    annulus::nki::BiasSpec const& bias = spec_.bias;
    auto const& all = problem_.call.shape;
    line("BIAS",
         bias.given ? python_shape({bias.by_head ? spec_.shape.batch : 1, bias.by_head ? spec_.shape.query_heads : 1,
                                    bias.by_query ? all.queries : 1, bias.by_key ? all.keys : 1})
                    : "None",
         "[batch, query heads, queries, keys] of a ring's bias; None: there is none");
    line("BIAS_TYPE", python_string(name_of(bias.type)));
    line("LSE_OF_MASKED_ROW", spec_.masked_row == annulus::nki::MaskedRow::zero ? "0.0" : "float(\"-inf\")");
    text_ += "MASK = {\n";
    auto const entry = [&](char const* name, std::string const& value) {
      text_ += "    " + python_string(name) + ": " + value + ",\n";
    };
    entry("causal", python(mask.causal));
    entry("window", mask.window.bounded()
                        ? python_shape({side(mask.window.reach_left()), side(mask.window.reach_right())})
                        : "None");
    entry("sink_tokens", python(mask.sink_tokens));
    entry("chunk", python(mask.chunk));
    entry("query_offset", python(problem_.call.options.query_offset.value_or(0)));
    entry("documents", python_shape(problem_.documents));
    text_ += "}  # documents: global start positions\n";
    line("RUN_TIME_DOCUMENTS", python(options_.run_time_documents), "the kernels take the tables of all documents");
    auto const piece = [](annulus::RowRange rows) { return python_shape({rows.begin, rows.end}); };
    line("KEY_PIECES", python_tuple(problem_.mask.pieces(), piece),
         "rows of a rank in which each query sees one range");
    line("TILE_PIECES", python_tuple(problem_.mask.tile_pieces(), piece), "rows in which one range sees each key");
  }

  void runs(std::string const& name, Side side, Index total) {
    annulus::Sharding const& sharding = problem_.call.options.sharding;
    auto const lengths = sharding.lengths(side, spec_.ranks, total);
    text_ += name + " = (\n";
    for (int rank = 0; rank < spec_.ranks; ++rank)
      text_ += "    " +
               python_tuple(sharding.segments(side, rank, lengths),
                            [](annulus::Segment const& run) {
                              return python_shape({run.local_begin, run.length, run.global_begin, run.global_stride});
                            }) +
               ",\n";
    text_ += ")\n";
  }

  void tensors(char const* what, std::vector<NkiTensor> const& all, bool optional) {
    text_ += "        " + python_string(what) + ": (\n";
    for (NkiTensor const& tensor : all)
      if (tensor.optional == optional)
        text_ += "            (" + python_string(tensor.name) + ", " + python_string(name_of(tensor.type)) + ", " +
                 python_shape(tensor.shape) + "),\n";
    text_ += "        ),\n";
  }

  void describe(NkiKernel const& kernel) {
    NkiFunction const function = nki_function(options_, problem_, kernel);
    text_ += "    " + python_string(function.name) + ": {\n";
    tensors("inputs", function.inputs, false);
    tensors("keyword_inputs", function.inputs, true);
    tensors("outputs", function.outputs, false);
    text_ += "        \"constants\": {\n";
    for (auto const& [name, value, fallback] : function.constants)
      text_ += "            " + python_string(name) + ": " +
               (value.starts_with("nl.") ? python_string(std::string_view(value).substr(3)) : value) + ",\n";
    text_ += "        },\n";
    NkiMaskFiles const table = nki_mask_files(problem_, kernel);
    std::string pattern = table.names.empty() ? "None" : python_string(table.names.front());
    if (table.names.size() > 1) pattern.replace(pattern.rfind("rank") + 4, 1, "{}");
    text_ += "        \"mask\": " + pattern + ",\n";
    text_ += "        \"queries_rotate\": " + python(problem_.queries_rotate(kernel.pass)) + ",\n    },\n";
  }

  NkiOptions const& options_;
  NkiProblem const& problem_;
  annulus::nki::KernelSpec const& spec_;
  std::vector<NkiKernel> const& kernels_;
  std::string text_;
};

/// What the large and small constants of a program stand for; empty if it has none.
std::string meanings_of_constants(annulus::nki::Program const& program, annulus::Pass pass) {
  using annulus::nki::lowest_float;
  std::set<float> magnitudes;
  bool lowest_score = false, lowest_factor = false;
  annulus::nki::for_each_node(program.body, [&](annulus::nki::Node const& node) {
    auto const* instruction = node.as<annulus::nki::Instruction>();
    if (!instruction) return;
    annulus::nki::for_each_field(
        *instruction, [&]<class Value>(std::string_view, Value const& value, annulus::nki::Use) {
          if constexpr (std::same_as<Value, float>) {
            magnitudes.insert(std::abs(value));
            bool const factor = std::holds_alternative<annulus::nki::TensorScalar>(*instruction);
            if (value == lowest_float) (factor ? lowest_factor : lowest_score) = true;
          }
        });
  });
  std::string text;
  auto const add = [&](bool occurs, char const* meaning) {
    if (occurs) text += (text.empty() ? "" : "; ") + std::string(meaning);
  };
  add(lowest_score, "-3.4028235e+38, the lowest float, is the score of a masked pair");
  add(lowest_factor, "-inf, the lse of a row that sees no key, is twice the lowest float, -3.4028235e+38");
  bool const forward = pass == annulus::Pass::forward;
  add(forward && magnitudes.contains(1e30f), "1e+30 is the negated maximum of a row that has seen no key");
  add(forward && magnitudes.contains(5e29f), "a negated maximum from 5e+29 on is taken for that");
  add(!forward && magnitudes.contains(1e30f),
      "an lse below -1e+30 is that of a row that sees no key, whose negated lse becomes -1e+30, the sum of 1e+30 and "
      "-2e+30, so that its weights are 0");
  add(magnitudes.contains(0x1p-60f),
      "8.6736174e-19 and 1.1529215e+18 are 2^-60 and 2^60, to which sums are limited for reciprocal and logarithm");
  return text;
}

}  // namespace

std::string python(bool value) { return value ? "True" : "False"; }
std::string python(Index value) { return std::to_string(value); }

std::string nki_problem_text(NkiOptions const& options, NkiProblem const& problem,
                             std::vector<NkiKernel> const& kernels) {
  return ProblemText(options, problem, kernels).text();
}

std::vector<std::string> nki_notes(NkiProblem const& problem, NkiKernel const& kernel) {
  annulus::nki::Program const& program = kernel.program();
  std::vector<std::string> notes;
  if (kernel.pass == annulus::Pass::backward)
    notes.emplace_back(
        "Algorithm: weights P = exp(scale * S - lse) of the scores S = Q K^T; delta = rowsum(dout * output); dP = dout "
        "V^T; "
        "dS = P * (dP - delta); dV = P^T dout, dK = scale * dS^T Q, dQ = scale * dS K. Sums of the side that rotates "
        "travel "
        "with it to their owner. Weights are at most 2: an lse of other scores makes no infinity.");
  else if (program.find("beyond_range") >= 0)
    notes.emplace_back(
        "Algorithm: softmax without a maximum. The scores S^T = K Q^T have keys in the partitions, so that the weights "
        "exp(scale * S^T) multiply V and a column of ones, their sum, without a transpose. All ring steps add up; "
        "output = "
        "accumulator / sum, lse = log(sum). beyond_range is 1 for rows whose sum is not between 2^-60 and 2^60.");
  else
    notes.emplace_back(
        "Algorithm: online softmax. Of a group of keys, scores S = Q K^T and their maximum in each row "
        "(score_maximum). "
        "raised_maximum = -(scale * maximum so far) is the bias of the exponentials: probabilities exp(scale * S + "
        "raised_maximum), with their sum in row_sum. Where a group raises the maximum, correction = exp(old - new "
        "maximum) "
        "multiplies running_sum, and running_accumulator before the group's weighted_values are added. At the end "
        "output = running_accumulator / running_sum, lse = log(running_sum) - running_negated_maximum.");
  if (std::string const constants = meanings_of_constants(program, kernel.pass); !constants.empty())
    notes.push_back("Constants: " + constants + ".");
  auto const& shape = problem.spec.shape;
  if (program.cores == 2)
    notes.push_back("core: of a pair, 0 or 1. The items of the kernel are its " + python(shape.batch * shape.kv_heads) +
                    " pairs of batch item and kv head; a core takes every other one, and of a last odd one every other "
                    "128 rows.");
  if (program.ranks > 1)
    notes.emplace_back("Buffers in HBM whose names end in _a and _b hold what even and odd ring steps use.");
  return notes;
}

}  // namespace annulus_command
