#include <charconv>
#include <map>
#include <string>
#include <string_view>

#include "nki_parts.hpp"
#include "options.hpp"

namespace annulus_command {

namespace {

using annulus::Index;
using annulus::nki::Buffer;
using annulus::nki::ElementType;
using annulus::nki::Program;
using annulus::nki::Role;

/// The shortest text that reads back as this value.
std::string digits(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

/// A side of a window, -1 if unbounded.
std::string window_side(Index reach) { return std::to_string(reach < annulus::unbounded ? reach : Index{-1}); }

std::string number(Index value) { return std::to_string(value); }

/// Description of an operand: its axes and its content.
struct Meaning {
  std::string axes, text;
};

/// The README, in Markdown. Depends only on the options.
class Readme {
 public:
  Readme(NkiOptions const& options, NkiProblem const& problem, std::vector<NkiKernel> const& kernels)
      : options_(options), problem_(problem), spec_(problem.spec), kernels_(kernels) {}

  std::string text() && {
    files();
    sequence();
    for (NkiKernel const& kernel : kernels_)
      if (problem_.like_nkilib)
        text_ += nkilib_readme(options_, problem_, kernel);
      else
        call(kernel);
    environment();
    checked();
    line("## How these files were made", "");
    line("```sh", nki_command_line(options_, problem_) + " --emit .", "```");
    return std::move(text_);
  }

 private:
  template <class... Lines>
  void line(Lines const&... lines) {
    ((text_ += lines, text_ += '\n'), ...);
  }

  void files() {
    line("# Ring attention kernels for " + std::string(name_of(spec_.target)), "");
    line("For " + versions_of(options_.spelling()) + ".", "");
    line("```sh", "pip install -r requirements.txt",
         "torchrun --nproc_per_node " + number(problem_.world()) + " run_torch.py  # PyTorch/XLA or torch-neuronx",
         "python run_jax.py",
         "python simulate.py --model  # NumPy alone: the model of NKI's instructions in nki_model/",
         spec_.ranks == 1 ? "python simulate.py  # the vendor's simulator, no device"
                          : "python simulate.py  # prints the command for a folder that the vendor's simulator runs",
         "```", "");
    line("Each runs the kernels on random operands, then compares with dense attention in double (`check.py`). The",
         "launchers have run on that model, not on a device.", "");
    line("| file | what it is |", "|---|---|",
         "| `problem.py` | shapes, mask, positions of each rank's rows and tensors of each kernel, as data |",
         "| `check.py` | operands, reference and errors; `python check.py` compares `results/` again |");
    for (NkiKernel const& kernel : kernels_) {
      std::string const function = nki_function(options_, problem_, kernel).name;
      line("| `" + function + ".py` | the " + kernel.title() + " kernel" +
           (kernel.program().find("beyond_range") >= 0 ? " with stationary keys, which runs first"
            : options_.plain                           ? " in plain loops, for a reader"
                                                       : "") +
           ", the function `" + function + "` |");
      NkiMaskFiles const mask = nki_mask_files(problem_, kernel);
      std::string const is = "| float32, the input `" + mask.input + "` of the " + kernel.title() + " kernel, for";
      if (mask.written && mask.names.size() == 1)
        line("| `" + mask.names.front() + "` " + is +
             " all ranks of a ring: the first axis is the place of the rank in its ring |");
      else if (mask.written)
        line("| `" + mask.names.front() + "` to `" + mask.names.back() + "` " + is + " one place in a ring each |");
    }
    line("");
  }

  void sequence() {
    auto const& shape = spec_.shape;
    line("## Distribution of the sequence", "");
    line(number(spec_.ranks) + (spec_.ranks == 1 ? " rank" : " ranks in a ring") +
             (spec_.groups > 1 ? ", " + number(spec_.groups) + " such rings" : "") + "; each rank holds " +
             number(spec_.local_queries) + " queries and " + number(spec_.local_keys) + " keys of",
         number(problem_.call.shape.queries) + " queries and " + number(problem_.call.shape.keys) + " keys. Batch " +
             number(shape.batch) + ", " + number(shape.query_heads) + " query heads, " + number(shape.kv_heads) +
             " key and value heads (query head h reads",
         "head h / " + number(shape.group()) + "), head_dim " + number(shape.head_dim) + ", value_dim " +
             number(shape.value_dim) + ".",
         "");
    std::string const sharding = problem_.call.options.sharding.name();
    std::string const rows = number(spec_.local_queries), ranks = number(spec_.ranks);
    line("Sharding: " + sharding + ". Positions of query row i at place r in a ring of " + ranks +
             " (keys likewise, with their own number of rows):",
         "");
    if (sharding == "contiguous")
      line("- position r * " + rows + " + i");
    else if (sharding == "striped")
      line("- position i * " + ranks + " + r");
    else
      for (int rank = 0; rank < spec_.ranks; ++rank) line("- place " + number(rank) + ": " + segments(rank));
    line("");
    if (Index const offset = problem_.call.options.query_offset.value_or(0); offset != 0)
      line("The mask counts query 0 as position " + number(offset) + ".", "");
  }

  std::string segments(int rank) const {
    annulus::Sharding const& sharding = problem_.call.options.sharding;
    auto const lengths = sharding.lengths(annulus::Side::query, spec_.ranks, problem_.call.shape.queries);
    std::string text;
    for (annulus::Segment const& segment : sharding.segments(annulus::Side::query, rank, lengths))
      text += (text.empty() ? "rows " : "; rows ") + number(segment.local_begin) + " to " +
              number(segment.local_begin + segment.length - 1) + " are positions " + number(segment.global_begin) +
              " to " + number(segment.global_begin + (segment.length - 1) * segment.global_stride);
    return text;
  }

  void call(NkiKernel const& kernel) {
    Program const& program = kernel.program();
    line("## `" + program.name + "`", "");
    table("argument", kernel, Role::input);
    if (program.ranks > 1)
      line("| `replica_groups` | tuple of tuples | | rank ids: rings of " + number(program.ranks) +
           " consecutive ranks, the first a multiple of " + number(program.ranks) + " |");
    if (!program.mask_fingerprint.empty())
      line("| `mask_fingerprint` | string | | \"" + program.mask_fingerprint +
           "\": names the mask of the table; the kernel refuses another |");
    line("");
    table("result", kernel, Role::output);
    line("", "The call on rank `rank`:", "", "```python");
    std::string const mask = mask_input_of(program);
    if (!mask.empty() && nki_mask_files(problem_, kernel).written) line("import numpy", "");
    line("from " + program.name + " import " + program.name, "");
    if (!mask.empty()) mask_lines(kernel);
    if (program.ranks > 1) line("replica_groups = " + replica_groups());
    std::string results, arguments;
    for (int buffer : program.with_role(Role::output))
      results += (results.empty() ? "" : ", ") + program.buffer(buffer).name;
    for (int buffer : program.with_role(Role::input))
      arguments += (arguments.empty() ? "" : ", ") + program.buffer(buffer).name;
    if (program.ranks > 1) arguments += ", replica_groups";
    if (!program.mask_fingerprint.empty()) arguments += ", \"" + program.mask_fingerprint + "\"";
    line(results + " = " + program.name +
         (spec_.cores > 1 && options_.spelling().launch_grid ? "[" + number(spec_.cores) + "](" : "(") + arguments +
         ")");
    line("```", "");
    if (program.find("beyond_range") >= 0)
      line("If `beyond_range` is 1 anywhere on any rank, all ranks call `ring_attention_fwd` with the same tensors and",
           "use its results: this kernel subtracts no maximum, and those rows need one. Otherwise its results are as",
           "accurate, but lse is that of weights rounded to bfloat16, within 2^-8. The launchers do so.", "");
    if (kernel.pass == annulus::Pass::backward && spec_.sinks > 0)
      line("The gradient of a sink logit is not returned: it is minus the sum over the rows of exp(sink - lse) times",
           "rowsum(dout * output).", "");
  }

  void table(char const* what, NkiKernel const& kernel, Role role) {
    Program const& program = kernel.program();
    NkiMaskFiles const mask = nki_mask_files(problem_, kernel);
    line(std::string("| ") + what + " | element type | shape | what it is |", "|---|---|---|---|");
    for (int index : program.with_role(role)) {
      Buffer const& buffer = program.buffer(index);
      std::string shape;
      for (Index extent : buffer.shape) shape += (shape.empty() ? "" : ", ") + number(extent);
      Meaning meaning = meaning_of(buffer.name, problem_.queries_rotate(kernel.pass));
      if (buffer.name == mask.input && mask.written) meaning.text += "; from the file";
      if (buffer.name == "lse" && role == Role::input && spec_.lse_type != buffer.type)
        meaning.text += "; the forward kernel returns " + std::string(name_of(spec_.lse_type)) + ": convert it";
      line("| `" + buffer.name + "` | " + std::string(name_of(buffer.type)) + " | [" + shape + "] | " + meaning.axes +
           (meaning.axes.empty() ? "" : ": ") + meaning.text + " |");
    }
  }

  Meaning meaning_of(std::string const& name, bool queries_rotate) const {
    std::string const by_token = "[batch, heads, rows, dim]", by_dim = "[batch, heads, dim, rows]";
    std::string const lse = "[batch, query heads, 128, columns]";
    std::string const masked = spec_.masked_row == annulus::nki::MaskedRow::zero ? "0" : "-inf";
    std::string const other = queries_rotate ? "owner of queries" : "owner of keys";
    std::string const run = " (rows at equally spaced positions)";
    std::map<std::string, Meaning> const known{
        {"q", {spec_.queries_by_token ? by_token : by_dim, "queries of this rank, not scaled"}},
        {"k", {spec_.keys_by_token ? by_token : by_dim, "keys of this rank"}},
        {"v", {by_token, "values of this rank"}},
        {"dout", {by_token, "gradient of the output"}},
        {"output", {by_token, "the output; 0 in fully masked rows"}},
        {"lse",
         {lse, "log-sum-exp of row c * 128 + p at (p, c), natural logarithm; " + masked +
                   " in fully masked rows, 0 beyond the last row"}},
        {"bias",
         {"[ranks of all rings, batch * query heads or 1, queries or 1, keys or 1]",
          "added to the logits after the soft cap, for each " + other + ": " +
              (queries_rotate ? "its queries with the keys of this rank" : "the queries of this rank with its keys") +
              "; head h of batch item b is head b * " + number(spec_.shape.query_heads) +
              " + h; -2^127 hides a pair, and all values must be finite"}},
        {"dbias",
         {"[ranks of all rings, batch * query heads, queries, keys]",
          "gradient of the bias for each head, query and key; the first axis is that of `bias`, and entries of ranks "
          "of "
          "other rings are 0. The gradient of an element of the bias is the sum over all heads, queries and keys that "
          "it is added to"}},
        {"sinks", {"[batch, query heads, n]", "extra logits of the softmax denominator, the same for each batch item"}},
        {"dq", {by_token, "gradient of q"}},
        {"dk", {by_token, "gradient of k"}},
        {"dv", {by_token, "gradient of v"}},
        {"mask_offsets",
         {"[ranks of all rings, query runs * key runs * 2]",
          "lo and hi of the band of visible keys, for each " + other + ", run of query rows and run of key rows" + run +
              ": row i sees the key rows i + lo <= j < i + hi of the run"}},
        {"mask_ranges",
         {"[ranks of all rings, batch or 1, key runs, begin or end, rows]",
          "the range of key rows that each query row sees, for each " + other + " and run of key rows" + run}},
        {"mask_key_ranges",
         {"[ranks of all rings, batch or 1, query runs, begin or end, key rows]",
          "the range of query rows of this rank that see each key row, for each owner of keys and run of query rows" +
              run}},
        {"beyond_range",
         {lse, "1 in rows whose sum of weights is not between 2^-60 and 2^60, or that see no key; 0 in all others"}}};
    auto const found = known.find(name);
    return found == known.end() ? Meaning{} : found->second;
  }

  void mask_lines(NkiKernel const& kernel) {
    NkiMaskFiles const mask = nki_mask_files(problem_, kernel);
    std::string const place = "rank % " + number(spec_.ranks);
    if (!mask.written) {
      line("# " + mask.input + ": " + std::to_string(mask.bytes) +
               " bytes for all ranks, too large to be written to files. In C++ each rank",
           "# makes its own: annulus::nki::sharded_mask(mask, sharding, ranks, queries, keys)." +
               std::string(mask.input == "mask_offsets"  ? "offsets"
                           : mask.input == "mask_ranges" ? "ranges"
                                                         : "key_ranges") +
               "(" + place + ", " + number(problem_.groups()) +
               (problem_.queries_rotate(kernel.pass) ? ", true)" : ")"));
    } else if (mask.names.size() == 1) {
      line(mask.input + " = numpy.load(\"" + mask.names.front() + "\")[" + place + "]");
    } else {
      std::string const first = mask.names.front();
      std::string const stem = first.substr(0, first.rfind("rank") + 4);
      line(mask.input + " = numpy.load(\"" + stem + "%d.npy\" % (" + place + "))");
    }
  }

  std::string replica_groups() const {
    if (spec_.groups > 4 || spec_.ranks > 16)
      return "tuple(tuple(range(g * " + number(spec_.ranks) + ", (g + 1) * " + number(spec_.ranks) +
             ")) for g in range(" + number(spec_.groups) + "))";
    std::string groups;
    for (int group = 0; group < spec_.groups; ++group) {
      groups += "(";
      for (int rank = 0; rank < spec_.ranks; ++rank)
        groups += (rank > 0 ? ", " : "") + number(Index{group} * spec_.ranks + rank);
      groups += group + 1 < spec_.groups || spec_.groups == 1 ? "), " : ")";
    }
    if (spec_.groups == 1) groups.pop_back();
    return "(" + groups + ")";
  }

  void environment() {
    line("## Environment", "");
    line("- `NEURON_LOGICAL_NC_CONFIG=" + number(spec_.cores) + "`, and `-lnc " + number(spec_.cores) +
             "` where the compiler is called by hand: both must agree with the call above",
         "- `NEURON_PLATFORM_TARGET_OVERRIDE=" + std::string(name_of(spec_.target)) +
             "` where the kernel is compiled without such a device",
         std::string("- a rank is a logical core: ") +
             (spec_.cores == 2 ? "two physical cores, which run the kernel together" : "one physical core"),
         "- stochastic rounding off (`NEURON_RT_STOCHASTIC_ROUNDING_EN`), if results are to be compared with the "
         "simulator's",
         "");
    if (std::string const warning = nki_ring_warning(spec_); !warning.empty()) line("Warning: " + warning + ".", "");
  }

  void checked() {
    line("## What was checked, and what needs a device", "");
    if (options_.plain)
      line("These kernels are texts for a reader. Of the limits of the hardware only the size of SBUF was checked.",
           "`python simulate.py --model` executes them, and refuses what the vendor's documentation excludes. The same",
           "command line without `--plain` writes the fast kernels, for which the following holds.", "");
    line("Before these files were written, every instruction was checked against the limits that the vendor documents",
         std::string("for ") + std::string(name_of(spec_.target)) +
             ": capacity, partitions, access patterns, memories of each engine, element types, matmul shapes,",
         "reads of what was never written, races between the two cores, the order of collectives. `annulus nki "
         "--simulate`",
         "with the options below runs the same programs on a simulated ring and compares with attention in double.",
         "");
    line(
        "Not known without a device: whether the compiler takes a kernel of this length and places its tiles as asked;",
        "the order in which the runtime links the ranks of a ring (the kernels ask for it at run time, and work with "
        "any);",
        "whether a permute waits for what the partner core still reads (the kernels have barriers there); how exact "
        "the",
        "device's exp, log and tanh are; and every time: the cost model's are estimates.", "");
  }

  NkiOptions const& options_;
  NkiProblem const& problem_;
  annulus::nki::KernelSpec const& spec_;
  std::vector<NkiKernel> const& kernels_;
  std::string text_;
};

}  // namespace

std::string nki_command_line(NkiOptions const& options, NkiProblem const& problem, bool one_rank) {
  annulus::nki::KernelSpec const& spec = problem.spec;
  annulus::Options const& attention = options.attend.attention;
  annulus::Mask const& mask = attention.mask;
  std::string line = "annulus nki";
  auto const add = [&](char const* option, std::string_view value) {
    line.append(" ").append(option).append(" ").append(value);
  };
  auto const number = [&](char const* option, Index value) { add(option, std::to_string(value)); };
  number("--ranks", one_rank ? 1 : spec.ranks);
  number("--tokens-per-rank", spec.local_queries);
  if (spec.local_keys != spec.local_queries) number("--keys-per-rank", spec.local_keys);
  number("--batch", spec.shape.batch);
  number("--query-heads", spec.shape.query_heads);
  number("--kv-heads", spec.shape.kv_heads);
  number("--head-dim", spec.shape.head_dim);
  number("--value-dim", spec.shape.value_dim);
  add("--dtype", name_of(spec.type));
  add("--output-dtype", name_of(spec.output_type));
  if (spec.training) add("--lse-dtype", name_of(spec.lse_type));
  for (auto const& [name, sharding] : shardings)
    if (sharding == attention.sharding) add("--sharding", name);
  if (mask.causal) line += " --causal";
  if (mask.window.bounded())
    add("--window", window_side(mask.window.reach_left()) + "," + window_side(mask.window.reach_right()));
  if (mask.sink_tokens > 0) number("--sink-tokens", mask.sink_tokens);
  if (mask.chunk > 0) number("--chunk", mask.chunk);
  CallShape const& lengths = problem.call.shape;
  if (Index const offset = attention.query_offset.value_or(0); offset != 0 || lengths.queries != lengths.keys)
    number("--query-offset", offset);
  if (attention.softmax_scale) add("--scale", digits(*attention.softmax_scale));
  if (attention.logit_softcap > 0) add("--softcap", digits(attention.logit_softcap));
  if (spec.sinks > 0) number("--sinks", spec.sinks);
  if (annulus::nki::BiasSpec const& bias = spec.bias; bias.given) {
    std::string axes;
    for (auto const& [varies, axis] :
         {std::pair{bias.by_head, "heads"}, {bias.by_query, "queries"}, {bias.by_key, "keys"}})
      if (varies) axes += (axes.empty() ? "" : ",") + std::string(axis);
    add("--bias", axes);
    add("--bias-dtype", name_of(bias.type));
    if (bias.gradient) line += " --bias-gradient";
  }
  if (!problem.documents.empty()) {
    std::string starts;
    for (Index start : problem.documents)
      if (!one_rank || start < spec.local_queries) starts += (starts.empty() ? "" : ",") + std::to_string(start);
    add("--documents", starts);
  }
  if (options.keys_stationary) line += *options.keys_stationary ? " --keys-stationary" : " --no-keys-stationary";
  if (options.run_time_documents) line += " --run-time-documents";
  if (spec.queries_by_token) line += " --tp-q";
  if (spec.keys_by_token) line += " --tp-k";
  if (!spec.training) line += " --no-training";
  if (options.plain) line += " --plain";
  if (options.like_nkilib)
    add("--like", "nkilib");
  else if (spec.training && spec.masked_row == annulus::nki::MaskedRow::zero)
    add("--masked-row", "zero");
  number("--lnc", spec.cores);
  add("--target", name_of(spec.target));
  add("--nki-version", options.spelling().version);
  if (spec.groups > 1 && !one_rank) number("--groups", spec.groups);
  if (options.only != NkiOnly::forward)
    add("--backward", options.rotating_side() == NkiBackward::none   ? "none"
                      : options.rotating_side() == NkiBackward::keys ? "keys"
                                                                     : "queries");
  if (options.only != NkiOnly::both) add("--only", options.only == NkiOnly::forward ? "fwd" : "bwd");
  return line;
}

std::string nki_readme(NkiOptions const& options, NkiProblem const& problem, std::vector<NkiKernel> const& kernels) {
  return Readme(options, problem, kernels).text();
}

}  // namespace annulus_command
