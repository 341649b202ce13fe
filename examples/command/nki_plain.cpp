#include <algorithm>
#include <annulus/nki/hardware/hardware.hpp>
#include <annulus/nki/print/python_checks.hpp>
#include <annulus/nki/print/python_lines.hpp>
#include <annulus/nki/program/text.hpp>
#include <set>
#include <string_view>

#include "embedded_texts.hpp"
#include "nki_parts.hpp"

namespace annulus_command {

namespace {

using annulus::Index;
using annulus::nki::concat;
namespace print = annulus::nki::print_detail;

/// The text of a plain kernel: that of nki_folder/plain_forward.py or plain_backward.py with what the call is for. A
/// line that ends in "#: condition" remains where the condition holds, without these words; a line @name@ is replaced.
class PlainText {
 public:
  PlainText(NkiOptions const& options, NkiProblem const& problem, NkiKernel const& kernel)
      : options_(options),
        problem_(problem),
        spec_(problem.spec),
        fingerprint_(kernel.program().mask_fingerprint),
        function_(nki_function(options, problem, kernel)),
        forward_(kernel.pass == annulus::Pass::forward) {
    find_conditions();
  }

  std::string text() const { return filled(forward_ ? nki_plain_forward_text : nki_plain_backward_text); }

 private:
  NkiTensor const* tensor(std::string_view name) const {
    for (auto const* tensors : {&function_.inputs, &function_.outputs})
      for (NkiTensor const& each : *tensors)
        if (each.name == name) return &each;
    return nullptr;
  }

  /// Notes a condition if it holds, else its opposite, if that has a name.
  void note(bool holds, char const* condition, char const* opposite = nullptr) {
    if (holds)
      conditions_.emplace(condition);
    else if (opposite)
      conditions_.emplace(opposite);
  }

  void find_conditions() {
    bool const ring = spec_.ranks > 1, pair = spec_.cores > 1, mask = tensor("mask_ranges"), bias = tensor("bias");
    bool const lse = tensor("lse"), table = mask || bias;
    bool const zero = spec_.masked_row == annulus::nki::MaskedRow::zero;
    note(ring, "ring", "one_rank");
    note(pair, "pair", "alone");
    note(ring && pair, "both");  // cores of a rank, which meet
    note(ring || !forward_, "copies");
    note(mask, "mask");
    note(bias, "bias");
    note(table, "empty");  // a row may see no key
    if (table) note(ring, "owner", "no_owner");
    note(spec_.logit_softcap > 0, "softcap", "linear");
    note(tensor("sinks"), "sinks", "no_sinks");
    note(lse, "lse", "no_lse");
    note(lse && table, "marked");
    if (lse && table) note(zero, "zero", "infinity");
  }

  std::string filled(std::string_view text) const {
    constexpr std::string_view mark = "  #: ";
    std::string result;
    while (!text.empty()) {
      std::size_t const end = std::min(text.find('\n'), text.size() - 1);
      std::string_view line = text.substr(0, end);
      text.remove_prefix(end + 1);
      if (std::size_t const at = line.rfind(mark); at != std::string_view::npos) {
        if (!conditions_.contains(line.substr(at + mark.size()))) continue;
        line = line.substr(0, line.find_last_not_of(' ', at) + 1);
      }
      result += line == "@parts@"       ? filled(nki_plain_parts_text)
                : line == "@constants@" ? constants()
                : line == "@kernel@"    ? head()
                                        : std::string(line) + "\n";
    }
    return result;
  }

  std::string constants() const {
    std::string text = concat("# For ", name_of(spec_.target), ", ", versions_of(options_.spelling()), ".\n");
    auto const add = [&](std::string_view name, std::string const& value, std::string_view comment = "") {
      text += concat(name, " = ", value, comment.empty() ? "" : "  # ", comment, "\n");
    };
    auto const& shape = spec_.shape;
    add("RANKS", python(Index{spec_.ranks}), "of the ring");
    add("CORES", python(Index{spec_.cores}), "of a rank (LNC)");
    add("BATCH", python(shape.batch));
    add("QUERY_HEADS", python(shape.query_heads));
    add("KV_HEADS", python(shape.kv_heads));
    add("HEAD_DIM", python(shape.head_dim));
    add("VALUE_DIM", python(shape.value_dim));
    add("QUERIES", python(spec_.local_queries), "of each rank");
    add("KEYS", python(spec_.local_keys));
    add("TYPE", concat("nl.", name_of(spec_.type)), "of q, k, v, weights");
    add("OUTPUT_TYPE", concat("nl.", name_of(tensor("output")->type)));
    if (NkiTensor const* lse = tensor("lse")) add("LSE_TYPE", concat("nl.", name_of(lse->type)));
    add("SCALE", print::literal(static_cast<float>(spec_.softmax_scale)));
    if (spec_.logit_softcap > 0) add("SOFTCAP", print::literal(static_cast<float>(spec_.logit_softcap)));
    if (tensor("sinks")) add("SINKS", python(spec_.sinks), "sink logits of each query head");
    strides("Q", "q, in elements", spec_.queries_by_token, spec_.local_queries, text);
    strides("K", "k", spec_.keys_by_token, spec_.local_keys, text);
    std::vector<std::string> pieces;
    for (annulus::RowRange piece : problem_.mask.pieces()) pieces.push_back(print::tuple({piece.begin, piece.end}));
    add("KEY_PIECES", concat("(", annulus::nki::joined(pieces), pieces.size() == 1 ? ",)" : ")"),
        "rows of a rank's keys; a query sees one range in each");
    if (NkiTensor const* mask = tensor("mask_ranges"))
      add("MASK_BATCH", python(mask->shape[1]), "batch items with a mask of their own");
    if (NkiTensor const* bias = tensor("bias")) {
      add("BIAS_TYPE", concat("nl.", name_of(bias->type)));
      Index stride = 1;
      for (auto const& [name, axis] : {std::pair{"BIAS_KEY", 3}, {"BIAS_QUERY", 2}, {"BIAS_HEAD", 1}}) {
        Index const extent = bias->shape[static_cast<std::size_t>(axis)];
        add(name, python(extent > 1 ? stride : 0));
        stride *= extent;
      }
    }
    return text;
  }

  void strides(std::string const& name, std::string const& of, bool by_token, Index rows, std::string& text) const {
    text += concat(name, "_ROW = ", by_token ? spec_.shape.head_dim : Index{1}, "  # between rows of ", of, "\n");
    text += concat(name, "_DIM = ", by_token ? Index{1} : rows, "\n");
  }

  /// The functions of its checks, and the kernel's head with its checks.
  std::string head() const {
    print::PythonLines lines;
    bool const table = conditions_.contains("empty");
    print::define_check(lines);
    lines.blank();
    if (spec_.ranks > 1) {
      print::define_check_groups(lines, {"i", "j"}, table);
      lines.blank();
    }
    std::vector<std::string> parameters;
    for (NkiTensor const& input : function_.inputs) parameters.push_back(input.name);
    for (NkiConstant const& constant : function_.constants) parameters.push_back(constant.name);
    lines.define(function_.name, parameters, "@nki.jit");
    for (NkiTensor const& input : function_.inputs) print::check_shape(lines, input.name, input.shape);
    if (spec_.ranks > 1 && table) print::check_number_of_groups(lines, problem_.groups());
    if (spec_.ranks > 1) print::check_groups(lines, spec_.ranks);
    if (!fingerprint_.empty()) print::check_fingerprint(lines, fingerprint_);
    return lines.text().substr(1);  // the text before ends in blank lines
  }

  NkiOptions const& options_;
  NkiProblem const& problem_;
  annulus::nki::KernelSpec const& spec_;
  std::string fingerprint_;
  NkiFunction function_;
  bool forward_;
  std::set<std::string, std::less<>> conditions_;
};

}  // namespace

void require_plain(NkiOptions const& options) {
  auto const refuse_if = [](bool given, char const* option, char const* accepted) {
    if (given) throw InputError(std::string("--plain is given with ") + option + "; accepted: " + accepted);
  };
  refuse_if(options.emit.empty(), "no --emit, and only writes kernels", "both options");
  refuse_if(options.simulate, "--simulate, which runs the fast kernels",
            "either; the folder's simulate.py --model runs the plain ones");
  refuse_if(options.cost_only, "--cost-only, which costs the fast kernels", "either");
  refuse_if(!options.listing.empty(), "--listing, which writes the fast kernels", "either");
  refuse_if(!options.attend.trace.empty(), "--trace, which times the fast kernels", "either");
  refuse_if(options.like_nkilib, "--like nkilib, whose functions call the fast kernels", "either");
  refuse_if(options.keys_stationary == true, "--keys-stationary", "--plain with a running maximum alone");
  refuse_if(options.bias_gradient, "--bias-gradient", "--plain without the gradient of a bias");
  refuse_if(options.backward == NkiBackward::keys, "--backward keys", "--backward queries or none");
}

void require_plain_sums_fit(NkiOptions const& options, NkiProblem const& problem) {
  constexpr Index in_use = Index{32} << 10;  // more than the tiles that a pair of query tile and key tile needs
  annulus::nki::KernelSpec const& spec = problem.spec;
  Index const floats = sizeof(float), dims = spec.shape.head_dim + spec.shape.value_dim;
  Index key_tiles = 0;
  for (annulus::RowRange piece : problem.mask.pieces())
    key_tiles += annulus::detail::ceil_divide(piece.size(), annulus::nki::tile_rows);
  Index const forward = spec.query_heads_per_item() * spec.columns() * (spec.shape.value_dim + 2) * floats;
  Index const backward = key_tiles * dims * floats;
  Index const kept = std::max(options.wants_forward() ? forward : 0, options.wants_backward() ? backward : 0);
  Index const most = annulus::nki::hardware_of(spec.target).limits.sbuf_bytes - in_use;
  annulus::detail::check<annulus::UnsupportedError>(
      kept <= most, "nki: the kernels of --plain keep the sums of all tiles of a head in SBUF, ", kept,
      " bytes of a partition; accepted: up to ", most, ", with fewer rows on each rank, or query heads to a kv head");
}

std::string nki_plain_text(NkiOptions const& options, NkiProblem const& problem, NkiKernel const& kernel) {
  return PlainText(options, problem, kernel).text();
}

}  // namespace annulus_command
