#include "nki.hpp"

#include <CLI/CLI.hpp>
#include <annulus/attention/validate.hpp>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <utility>

#include "errors.hpp"
#include "nki_parts.hpp"
#include "options.hpp"
#include "packed_documents.hpp"

namespace annulus_command {

namespace {

using annulus::Index;
using annulus::nki::ElementType;
using annulus::nki::MaskedRow;
using annulus::nki::Target;

constexpr Index most_tokens = Index{1} << 20;
constexpr Index most_whole_tokens = most_tokens * most_ranks;
constexpr Index most_heads = Index{1} << 16;
constexpr Index most_dim = Index{1} << 16;  // the library has a lower limit and reports it
constexpr Index most_sinks = 1024;
constexpr int most_groups = 1024;

/// The versions, by their names in the table of spellings.
Choices<annulus::nki::Version> nki_versions() {
  using annulus::nki::Version;
  Choices<Version> versions;
  for (Version version : {Version::nki_0_3, Version::nki_0_4, Version::nki_0_5, Version::nki_0_6, Version::nki_0_7})
    versions.emplace_back(annulus::nki::spelling_of(version).version, version);
  return versions;
}

Choices<ElementType> const element_types{
    {"bfloat16", ElementType::bfloat16}, {"float16", ElementType::float16}, {"float32", ElementType::float32}};

void add_actions(CLI::App& app, NkiOptions& options) {
  add_file(app, "--emit", options.emit, "write the kernels, their masks and a README into this folder")
      ->type_name("DIR");
  add_choice(app, "--like", options.like_nkilib, Choices<bool>{{"nkilib", true}},
             "functions with the names, parameters and layouts of nkilib's ring_attention_spmd_fwd and _bwd")
      ->default_str("as the kernels are");
  add_switch(
      app, "--plain", options.plain,
      "emit the kernels for a reader: FlashAttention in plain loops, without a pipeline, with the same arguments "
      "and results");
  CLI::Option* const simulate =
      add_switch(app, "--simulate", options.simulate, "simulate the kernels and compare with the reference backend");
  add_switch(app, "--cost-only", options.cost_only,
             "build, validate and cost the kernels without running them; print what the time depends on")
      ->excludes(simulate);
  add_file(app, "--listing", options.listing, "write the tile programs as readable text");
  add_file(app, "--trace", options.attend.trace, "write the modelled timeline, for chrome://tracing and Perfetto");
}

void add_inputs(CLI::App& app, NkiOptions& options) {
  AttendOptions& attend = options.attend;
  CLI::Option* const q = add_file(app, "--q", attend.q, "global queries, four axes in the order of --axes");
  CLI::Option* const k = add_file(app, "--k", attend.k, "global keys");
  CLI::Option* const v = add_file(app, "--v", attend.v, "global values");
  q->needs(k)->needs(v);
  k->needs(q);
  v->needs(q);
  add_file(app, "--dout", attend.dout, "gradient of the output")->needs(q);
  add_axes(app, attend.axes)->needs(q);
  add_file(app, "--out-dir", attend.out_dir, "write the results as attend does")->type_name("DIR");
  add_extent(app, "--tokens-per-rank", options.tokens_per_rank, most_tokens, "queries of each rank")->excludes(q);
  add_extent(app, "--keys-per-rank", options.keys_per_rank, most_tokens, "keys of each rank")
      ->excludes(q)
      ->default_str("as many as --tokens-per-rank");
  add_extent(app, "--tokens", options.tokens, most_whole_tokens,
             "queries of all ranks: --tokens-per-rank times --ranks")
      ->excludes(q);
  add_extent(app, "--keys", options.keys, most_whole_tokens, "keys of all ranks: --keys-per-rank times --ranks")
      ->excludes(q);
  add_extent(app, "--batch", options.batch, most_heads, "batch")->excludes(q)->capture_default_str();
  add_extent(app, "--query-heads", options.query_heads, most_heads, "query heads")->excludes(q)->capture_default_str();
  add_extent(app, "--kv-heads", options.kv_heads, most_heads, "key and value heads")
      ->excludes(q)
      ->default_str("as many as --query-heads");
  add_extent(app, "--head-dim", options.head_dim, most_dim, "dim of q and k")->excludes(q)->capture_default_str();
  add_extent(app, "--value-dim", options.value_dim, most_dim, "dim of v")
      ->excludes(q)
      ->default_str("that of --head-dim");
  app.add_option("--seed", options.seed, "seed of the random input")
      ->check(whole_number(std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max()))
      ->type_name("N")
      ->excludes(q)
      ->default_str("0");
  app.add_option("--ring-order", options.ring_order, "simulate a ring whose neighbours are shuffled by this seed")
      ->check(whole_number(std::uint64_t{0}, std::numeric_limits<std::uint64_t>::max()))
      ->type_name("SEED")
      ->default_str("rank order");
}

void add_attention(CLI::App& app, NkiOptions& options) {
  add_mask_options(app, options.attend.attention.mask, options.attend.attention.query_offset);
  add_logit_options(app, options.attend.attention);
  app.add_option("--sinks", options.sinks, "sink logits: their number per query head, or a file as for attend")
      ->check(accepting([](std::string const& text) { return !text.empty(); }, "a number, or the name of a file"))
      ->type_name("N|FILE");
  CLI::Option* const bias =
      app.add_option("--bias", options.bias,
                     "a bias of the logits: the axes along which it varies, of heads, queries and keys, separated by "
                     "commas, or a file as for attend; below -1e30 it hides a pair")
          ->check(accepting([](std::string const& text) { return !text.empty(); }, "axes, or the name of a file"))
          ->type_name("AXES|FILE");
  add_choice(app, "--bias-dtype", options.bias_type,
             Choices<ElementType>{{"float32", ElementType::float32}, {"bfloat16", ElementType::bfloat16}},
             "element type of the bias")
      ->needs(bias)
      ->default_str("float32");
  add_switch(app, "--bias-gradient", options.bias_gradient,
             "the backward kernel also returns the gradient of the bias, of each head and pair")
      ->needs(bias);
  add_switch(app, "--run-time-documents", options.run_time_documents,
             "the documents are an argument: the kernels take the tables of all documents")
      ->needs(add_documents(app, options.documents));
}

void add_kernel(CLI::App& app, NkiOptions& options) {
  app.add_option("--ranks", options.attend.ranks, "ranks of the ring")
      ->check(whole_number(1, most_ranks))
      ->type_name("N")
      ->default_str(std::to_string(default_simulated_ranks));
  app.add_option("--groups", options.groups, "number of rings, each of consecutive ranks")
      ->check(whole_number(1, most_groups))
      ->type_name("N")
      ->default_str("1");
  add_choice(app, "--sharding", options.attend.attention.sharding, shardings, "which rank owns which position")
      ->default_str("contiguous");
  add_choice(app, "--dtype", options.type, element_types, "element type of q, k, v and dout")->default_str("bfloat16");
  add_choice(app, "--output-dtype", options.output_type, element_types, "element type of the output")
      ->default_str("that of --dtype");
  add_choice(app, "--lse-dtype", options.lse_type, element_types, "element type of lse")->default_str("float32");
  add_switch(app, "--tp-q", options.queries_by_token,
             "q is [batch, heads, rows, dim] instead of [batch, heads, dim, rows]");
  add_switch(app, "--tp-k", options.keys_by_token, "the same for k");
  auto const add_pair = [&](std::string const& name, auto&& take, char const* description, char const* without) {
    auto const add = [&](std::string const& flag, bool given, char const* text) {
      return app
          .add_flag_callback(
              flag, [take, given] { take(given); }, text)
          ->disable_flag_override();
    };
    add("--no-" + name, false, without)->excludes(add("--" + name, true, description));
  };
  add_pair(
      "keys-stationary", [&](bool given) { options.keys_stationary = given; },
      "also a forward kernel that subtracts no maximum, after which the other one runs only if a row needs it "
      "(default: for bfloat16 and masks that allow it)",
      "no such kernel");
  add_pair(
      "training", [&](bool given) { options.training = given; }, "the forward kernel also returns lse (default)",
      "it does not");
  auto const add_masked_row = [&](char const* name) {
    return add_choice(app, name, options.masked_row,
                      Choices<MaskedRow>{{"-inf", MaskedRow::minus_infinity}, {"zero", MaskedRow::zero}},
                      "lse of a fully masked row")
        ->default_str("-inf");
  };
  add_masked_row("--masked-row");
  add_masked_row("--dead-row")->group("");  // the old name, hidden
  add_choice(app, "--lnc", options.cores, Choices<int>{{"1", 1}, {"2", 2}}, "physical cores that share a rank")
      ->default_str("2");
  add_choice(app, "--target", options.target, Choices<Target>{{"trn2", Target::trn2}, {"trn3", Target::trn3}},
             "Trainium generation")
      ->default_str("trn2");
  add_choice(app, "--nki-version", options.version, nki_versions(), "oldest NKI that must accept the kernels")
      ->default_str("0.3");
  add_choice(
      app, "--backward", options.backward,
      Choices<NkiBackward>{{"none", NkiBackward::none}, {"queries", NkiBackward::queries}, {"keys", NkiBackward::keys}},
      "backward kernel: the side that rotates")
      ->default_str("queries; without training none");
  add_choice(app, "--only", options.only, Choices<NkiOnly>{{"fwd", NkiOnly::forward}, {"bwd", NkiOnly::backward}},
             "build only this kernel")
      ->default_str("both");
}

/// Throws InputError if the length of the whole sequence is given without that of a rank, which was its meaning in
/// earlier versions, or is not that of all ranks.
void require_whole(std::string const& option, std::optional<Index> whole, std::string const& option_per_rank,
                   std::optional<Index> per_rank, int ranks) {
  if (!whole) return;
  std::string const given = option + ' ' + std::to_string(*whole);
  if (!per_rank)
    throw InputError(given + " meant the length of each rank, and will mean that of the whole sequence; accepted: " +
                     option_per_rank + ' ' + std::to_string(*whole) + ", which is what it meant");
  if (*whole != *per_rank * ranks)
    throw InputError(given + " is given with " + option_per_rank + ' ' + std::to_string(*per_rank) + " on " +
                     std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") + "; accepted: " + option + ' ' +
                     std::to_string(*per_rank * ranks) + ", the length of the whole sequence, or none");
}

}  // namespace

std::optional<Index> NkiOptions::sinks_per_head() const {
  Index count = 0;
  if (!is_whole_number(sinks, count)) return std::nullopt;
  return count;
}

std::optional<annulus::nki::BiasSpec> NkiOptions::bias_axes() const {
  annulus::nki::BiasSpec spec{.given = true,
                              .by_head = false,
                              .by_query = false,
                              .by_key = false,
                              .gradient = bias_gradient,
                              .type = bias_type};
  std::istringstream words(bias);
  for (std::string word; std::getline(words, word, ',');) {
    bool* const varies = word == "heads"     ? &spec.by_head
                         : word == "queries" ? &spec.by_query
                         : word == "keys"    ? &spec.by_key
                                             : nullptr;
    if (!varies || std::exchange(*varies, true)) return std::nullopt;
  }
  return bias.empty() || bias.ends_with(',') ? std::nullopt : std::optional(spec);
}

CLI::App& add_nki(CLI::App& app, NkiOptions& options) {
  CLI::App& nki = *app.add_subcommand("nki", "ring attention as Trainium kernels: print, simulate, cost");
  add_actions(nki, options);
  add_inputs(nki, options);
  add_attention(nki, options);
  add_kernel(nki, options);
  return nki;
}

void require_consistent(NkiOptions const& options) {
  auto const refuse = [](std::string const& message) { throw InputError(message); };
  annulus::Options const& attention = options.attend.attention;
  auto const within = [](double magnitude) { return magnitude == 0 || (magnitude >= 0x1p-20 && magnitude <= 0x1p20); };
  if (double const scale = attention.softmax_scale.value_or(1); !within(std::abs(scale)))
    refuse("--scale " + annulus::nki::text_of(scale) + "; accepted: 0, or a magnitude from 2^-20 to 2^20");
  if (!within(attention.logit_softcap))
    refuse("--softcap " + annulus::nki::text_of(attention.logit_softcap) + "; accepted: 0 (none), or 2^-20 to 2^20");
  annulus::validate_rules(annulus::rules_of(attention));
  auto const needs_simulate = [&](bool given, char const* option) {
    if (given && !options.simulate) refuse(std::string(option) + " applies only to --simulate; accepted: both options");
  };
  if (options.emit.empty() && !options.simulate && !options.cost_only)
    refuse("no action is given; accepted: --emit DIR, --simulate or --cost-only, --emit with either of them");
  require_whole("--tokens", options.tokens, "--tokens-per-rank", options.tokens_per_rank, options.ranks());
  require_whole("--keys", options.keys, "--keys-per-rank", options.keys_per_rank, options.ranks());
  if (!options.reads_files() && !options.tokens_per_rank)
    refuse("no sequence length is given; accepted: --tokens-per-rank, or --q, --k and --v");
  needs_simulate(!options.attend.out_dir.empty(), "--out-dir");
  needs_simulate(options.seed.has_value(), "--seed");
  needs_simulate(options.ring_order.has_value(), "--ring-order");
  if (options.groups > 1 && options.ranks() == 1)
    refuse("--groups " + std::to_string(options.groups) +
           " is given with --ranks 1, which is no ring; accepted: --ranks 2 or more");
  if (!options.training && (options.wants_backward() || options.only == NkiOnly::backward))
    refuse("--no-training keeps no lse, which a backward kernel needs; accepted: --backward none");
  if (!options.training)
    for (auto const& [given, option] :
         {std::pair{options.lse_type.has_value(), "--lse-dtype"}, {options.masked_row.has_value(), "--masked-row"}})
      if (given) refuse(std::string(option) + " is given with --no-training, which keeps no lse; accepted: either");
  if (options.only == NkiOnly::forward && options.backward && options.rotating_side() != NkiBackward::none)
    refuse("--backward queries|keys is given with --only fwd, which builds no backward kernel; accepted: either");
  if (options.version && options.emit.empty())
    refuse("--nki-version applies only to the kernels that --emit writes; accepted: both options");
  if (options.keys_stationary == true && options.only == NkiOnly::backward)
    refuse("--keys-stationary is given with --only bwd, which builds no forward kernel; accepted: either");
  if (options.only == NkiOnly::backward && !options.wants_backward())
    refuse("--only bwd is given with --backward none; accepted: --backward queries|keys");
  if (options.bias_gradient && !options.wants_backward())
    refuse("--bias-gradient is given without a backward kernel; accepted: --backward queries|keys, and no --only fwd");
  bool const asks_for_backward =
      options.only == NkiOnly::backward || options.bias_gradient || (options.backward && options.wants_backward());
  if (options.simulate && options.reads_files() && options.attend.dout.empty() && asks_for_backward)
    refuse("simulating the backward kernel on files requires --dout; accepted: --dout" +
           std::string(options.bias_gradient ? "" : ", or --only fwd"));
  if (!options.attend.dout.empty() && !options.wants_backward())
    refuse("--dout is given without a backward kernel; accepted: --backward queries|keys, and no --only fwd");
  if (!options.sinks.empty()) {
    auto const count = options.sinks_per_head();
    if (count && (*count < 0 || *count > most_sinks))
      refuse("--sinks " + std::to_string(*count) + "; accepted: a whole number, 0 to " + std::to_string(most_sinks) +
             ", or a file");
    if (!count && !options.reads_files())
      refuse("--sinks names the file '" + excerpt(options.sinks) +
             "', but --q is not given; accepted: a number of sink logits, or files for all");
    if (count && *count > 0 && options.reads_files())
      refuse("--sinks is a number, but --q, --k and --v are files; accepted: a file of sink logits");
  }
  if (!options.bias.empty()) {
    if (!options.bias_axes() && !options.reads_files())
      refuse(
          "--bias '" + excerpt(options.bias) +
          "' names no axes, and --q is not given; accepted: heads, queries and keys, each once, separated by commas, "
          "or files for all");
    if (options.bias_axes() && options.reads_files())
      refuse("--bias names axes, but --q, --k and --v are files; accepted: a file of the bias");
  }
  if (options.plain) require_plain(options);
  if (options.like_nkilib) require_nkilib(options);
  if (!options.documents.empty() && options.attend.attention.query_offset.value_or(0) != 0)
    refuse("--documents is given with --query-offset; accepted: queries at the positions of their keys");
}

}  // namespace annulus_command
