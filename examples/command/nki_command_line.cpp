#include <charconv>

#include "nki_readme.hpp"
#include "ring_options.hpp"

namespace annulus_command {

namespace {

using annulus::Index;
using annulus::nki::ElementType;

char const* word(ElementType type) {
  return type == ElementType::bfloat16 ? "bf16" : type == ElementType::float16 ? "f16" : "f32";
}

/// The shortest text that reads back as this value.
std::string digits(double value) {
  char text[32];
  return std::string(text, std::to_chars(text, text + sizeof text, value).ptr);
}

/// A side of a window, -1 if unbounded.
std::string side(Index reach) { return std::to_string(reach < annulus::unbounded ? reach : Index{-1}); }

}  // namespace

std::string nki_command_line(NkiOptions const& options, NkiProblem const& problem) {
  annulus::nki::KernelSpec const& spec = problem.spec;
  annulus::Options const& attention = options.attend.attention;
  annulus::Mask const& mask = attention.mask;
  std::string line = "annulus nki";
  auto const add = [&](char const* option, std::string const& value) {
    line += std::string(" ") + option + " " + value;
  };
  auto const number = [&](char const* option, Index value) { add(option, std::to_string(value)); };
  number("--ranks", spec.ranks);
  number("--tokens", spec.local_queries);
  if (spec.local_keys != spec.local_queries) number("--keys", spec.local_keys);
  number("--batch", spec.shape.batch);
  number("--query-heads", spec.shape.query_heads);
  number("--kv-heads", spec.shape.kv_heads);
  number("--head-dim", spec.shape.head_dim);
  number("--value-dim", spec.shape.value_dim);
  add("--dtype", word(spec.type));
  add("--output-dtype", word(spec.output_type));
  if (spec.training) add("--lse-dtype", word(spec.lse_type));
  for (auto const& [name, sharding] : shardings)
    if (sharding == attention.sharding) add("--sharding", name);
  if (mask.causal) line += " --causal";
  if (mask.window.bounded()) add("--window", side(mask.window.reach_left()) + "," + side(mask.window.reach_right()));
  if (mask.sink_tokens > 0) number("--sink-tokens", mask.sink_tokens);
  if (mask.chunk > 0) number("--chunk", mask.chunk);
  if (attention.query_offset != 0) number("--query-offset", attention.query_offset);
  if (attention.softmax_scale) add("--scale", digits(*attention.softmax_scale));
  if (attention.logit_softcap > 0) add("--softcap", digits(attention.logit_softcap));
  if (spec.sinks > 0) number("--sinks", spec.sinks);
  if (!problem.documents.empty()) {
    std::string starts;
    for (Index start : problem.documents) starts += (starts.empty() ? "" : ",") + std::to_string(start);
    add("--documents", starts);
  }
  if (spec.queries_by_token) line += " --tp-q";
  if (spec.keys_by_token) line += " --tp-k";
  if (!spec.training) line += " --no-training";
  if (spec.training && spec.masked_row == annulus::nki::MaskedRow::zero) add("--dead-row", "zero");
  number("--lnc", spec.cores);
  add("--target", std::string(name_of(spec.target)));
  add("--nki-version", std::string(options.spelling().version));
  if (spec.groups > 1) number("--groups", spec.groups);
  if (options.only != NkiOnly::forward)
    add("--backward", options.travels() == NkiBackward::none   ? "none"
                      : options.travels() == NkiBackward::keys ? "keys"
                                                               : "queries");
  if (options.only != NkiOnly::both) add("--only", options.only == NkiOnly::forward ? "fwd" : "bwd");
  return line;
}

}  // namespace annulus_command
