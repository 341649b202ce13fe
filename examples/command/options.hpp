#pragma once
// Command-line options: their kinds, with messages that say what is accepted, and those that subcommands share.

#include <CLI/CLI.hpp>
#include <annulus/attention/options.hpp>
#include <annulus/core/scalar.hpp>
#include <annulus/tensor/tensor_like.hpp>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "errors.hpp"

namespace annulus_command {

/// True if all of the text is one whole number that Value holds.
template <class Value>
bool is_whole_number(std::string_view text, Value& value) {
  auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// The number that is all of the text; empty unless there is one and it is finite.
inline std::optional<double> finite_value(std::string const& text) {
  char* end = nullptr;
  double const value = std::strtod(text.c_str(), &end);
  bool const whole = !text.empty() && end == text.c_str() + text.size();
  return whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

/// Accepts texts for which accepts(text) is true; the message for others ends with `accepted`.
template <class Accepts>
CLI::Validator accepting(Accepts accepts, std::string const& accepted) {
  return CLI::Validator(
      [accepts, accepted](std::string const& text) {
        return accepts(text) ? std::string() : "'" + excerpt(text) + "' is given; accepted: " + accepted;
      },
      "");
}

/// Accepts whole numbers from `least` to `most`.
template <class Value>
CLI::Validator whole_number(Value least, Value most) {
  auto const accepts = [least, most](std::string const& text) {
    Value value{};
    return is_whole_number(text, value) && value >= least && value <= most;
  };
  return accepting(accepts, "a whole number, " + std::to_string(least) + " to " + std::to_string(most));
}

inline CLI::Validator finite_number() {
  return accepting([](std::string const& text) { return finite_value(text).has_value(); }, "a finite number");
}

/// Accepts seconds that a rank waits for another, 0.001 to 1e9, so that adding them to a time cannot overflow.
inline CLI::Validator seconds_to_wait() {
  auto const accepts = [](std::string const& text) {
    auto const value = finite_value(text);
    return value && *value >= 0.001 && *value <= 1e9;
  };
  return accepting(accepts, "seconds, 0.001 to 1000000000, fractions too");
}

/// Accepted words and the value of each.
template <class Value>
using Choices = std::vector<std::pair<std::string, Value>>;

/// The name of an element type if `word` is its short name, else `word`.
inline std::string without_short_name(std::string const& word) {
  for (auto const& [brief, name] :
       Choices<char const*>{{"f64", "float64"}, {"f32", "float32"}, {"bf16", "bfloat16"}, {"f16", "float16"}})
    if (word == brief) return name;
  return word;
}

/// Adds an option whose word sets `target`; without the option `target` keeps its default.
template <class Target, class Value>
CLI::Option* add_choice(CLI::App& app, std::string const& name, Target& target, Choices<Value> const& choices,
                        std::string const& description) {
  std::string accepted;
  for (auto const& [word, meaning] : choices) accepted += (accepted.empty() ? "" : "|") + word;
  auto const take = [&target, choices](std::string const& given) {
    for (auto const& [word, meaning] : choices)
      if (word == without_short_name(given)) target = meaning;
  };
  auto const check = [choices, accepted](std::string const& given) {
    for (auto const& [word, meaning] : choices)
      if (word == without_short_name(given)) return std::string();
    return "'" + excerpt(given) + "' is not known; accepted: " + accepted;
  };
  return app.add_option_function<std::string>(name, take, description)
      ->check(CLI::Validator(check, ""))
      ->type_name(accepted);
}

/// Adds a switch that sets `target`; a value (--name=5) is refused.
inline CLI::Option* add_switch(CLI::App& app, std::string const& name, bool& target, std::string const& description) {
  return app.add_flag(name, target, description)->disable_flag_override();
}

/// Adds an option that sets `path`; without the option `path` keeps its value. An empty name is refused.
inline CLI::Option* add_file(CLI::App& app, char const* name, std::filesystem::path& path, char const* description,
                             char const* kind = "file") {
  auto const take = [&path](std::string const& text) { path = text; };
  auto const check = [kind](std::string const& text) {
    return text.empty() ? std::string("an empty name is given; accepted: the name of a ") + kind : std::string();
  };
  return app.add_option_function<std::string>(name, take, description)
      ->check(CLI::Validator(check, ""))
      ->type_name("FILE");
}

/// Adds an option for a number from 1 to `most`.
template <class Value>
CLI::Option* add_extent(CLI::App& app, char const* name, Value& value, annulus::Index most, char const* description) {
  return app.add_option(name, value, description)->check(whole_number(annulus::Index{1}, most))->type_name("N");
}

/// How ranks exchange rows, and which ranks there are.
enum class Comm {
  simulated,  ///< threads
  mpi,        ///< processes
  peer,       ///< threads, with copies between GPUs
  nccl,       ///< threads, one a GPU, over NCCL
};

inline Choices<Comm> const comms{
    {"sim", Comm::simulated}, {"mpi", Comm::mpi}, {"peer", Comm::peer}, {"nccl", Comm::nccl}};

inline std::string name_of(Comm comm) {
  for (auto const& [name, value] : comms)
    if (value == comm) return name;
  return {};
}

/// The backend that computes on GPUs.
inline constexpr std::string_view gpu_backend = "cuda";

/// The communicator that was asked for; by default simulated ranks, or those of GPUs.
inline Comm comm_of(std::optional<Comm> asked, std::string_view backend) {
  return asked.value_or(backend == gpu_backend ? Comm::peer : Comm::simulated);
}

/// Throws InputError unless the communicator moves the memory in which the backend computes.
inline void require_comm(Comm comm, std::string_view backend) {
  bool const of_gpus = comm == Comm::peer || comm == Comm::nccl;
  if (of_gpus == (backend == gpu_backend)) return;
  throw InputError("--backend " + std::string(backend) + " with --comm " + name_of(comm) +
                   (of_gpus ? ", which moves memory of GPUs; accepted: --backend cuda"
                            : ", which moves host memory; accepted: --comm peer|nccl"));
}

/// Largest accepted number of ranks; a plan has an entry for each pair of ranks.
inline constexpr int most_ranks = 1024;

inline Choices<annulus::Sharding> const shardings{
    {"contiguous", annulus::Contiguous{}}, {"striped", annulus::Striped{}}, {"zigzag", annulus::Zigzag{}}};

inline Choices<annulus::Rotation> const rotations{
    {"auto", annulus::Rotation::automatic}, {"keys", annulus::Rotation::keys}, {"queries", annulus::Rotation::queries}};

inline Choices<annulus::Schedule> const schedules{{"ring", annulus::Schedule::ring},
                                                  {"both-directions", annulus::Schedule::both_directions},
                                                  {"two-levels", annulus::Schedule::two_levels},
                                                  {"tiles", annulus::Schedule::tiles},
                                                  {"all-gather", annulus::Schedule::all_gather},
                                                  {"auto", annulus::Schedule::automatic},
                                                  {"double-ring", annulus::Schedule::double_ring}};

/// Element types; types narrower than float64 accumulate in float32.
inline Choices<annulus::DataType> const data_types{{"float64", annulus::DataType::float64},
                                                   {"float32", annulus::DataType::float32},
                                                   {"bfloat16", annulus::DataType::bfloat16},
                                                   {"float16", annulus::DataType::float16}};

inline Choices<annulus::AxisOrder> const axis_orders{
    {"bshd", annulus::AxisOrder::bshd}, {"bhsd", annulus::AxisOrder::bhsd}, {"bhds", annulus::AxisOrder::bhds}};

namespace detail {

/// Placeholders for block-striped sharding until --block is known, and for balanced sharding until the sequence is.
inline annulus::Sharding const block_striped = annulus::Striped{.block = 2}, balanced = annulus::ExplicitMap{};

/// "L,R" as two whole numbers; empty if the text is anything else.
inline std::optional<annulus::Window> window_of(std::string_view text) {
  std::size_t const comma = text.find(',');
  annulus::Index left = 0, right = 0;
  if (comma == std::string_view::npos || !is_whole_number(text.substr(0, comma), left) ||
      !is_whole_number(text.substr(comma + 1), right))
    return std::nullopt;
  return annulus::Window{.left = left, .right = right};
}

}  // namespace detail

inline CLI::Option* add_ranks(CLI::App& app, int& ranks, std::string const& description) {
  return app.add_option("--ranks", ranks, description)->check(whole_number(1, most_ranks))->type_name("N");
}

/// Largest block of a sharding, in positions.
inline constexpr annulus::Index largest_block = annulus::Index{1} << 30;

/// Adds --sharding, including block-striped and balanced, and --block. sharding_of (packed_documents.hpp) combines
/// them.
inline void add_sharding(CLI::App& app, annulus::Sharding& sharding, std::optional<annulus::Index>& block) {
  Choices<annulus::Sharding> all = shardings;
  all.emplace_back("block-striped", detail::block_striped);
  all.emplace_back("balanced", detail::balanced);
  add_choice(app, "--sharding", sharding, all, "which rank owns which position")->default_str("contiguous");
  add_extent(app, "--block", block, largest_block, "block size of block-striped and balanced sharding, in positions");
}

/// Throws InputError for block-striped sharding without a block size, and for --block with a sharding that has none.
inline void require_block(annulus::Sharding const& sharding, std::optional<annulus::Index> block) {
  bool const block_striped = sharding == detail::block_striped;
  if (block_striped && !block)
    throw InputError("--sharding block-striped requires a block size; accepted: --block N with it");
  if (block && !block_striped && !(sharding == detail::balanced))
    throw InputError("--block is given for another sharding; accepted: --sharding block-striped|balanced");
}

inline CLI::Option* add_rotation(CLI::App& app, annulus::Rotation& rotation) {
  return add_choice(app, "--rotation", rotation, rotations, "which side rotates; auto: the one that sends fewer bytes")
      ->default_str("auto");
}

/// Adds --schedule and --schedule-group.
inline void add_schedule(CLI::App& app, annulus::Schedule& schedule, int& group) {
  CLI::Option* const option =
      add_choice(
          app, "--schedule", schedule, schedules,
          "how rows travel: one way around the ring; half of the kv heads each way; heads for rows inside groups of "
          "ranks and a ring between them; tiles of "
          "a group's queries and a ring's keys; the keys of all ranks to every rank; around the ring of a group, then "
          "to the next group; or "
          "auto: the one that sends the fewest bytes")
          ->default_str("ring");
  app.add_option("--schedule-group", group,
                 "consecutive ranks of a group of the schedule; a double ring needs it, or takes those of a node with "
                 "--comm mpi")
      ->check(whole_number(1, most_ranks))
      ->type_name("N")
      ->default_str("as many as send the fewest bytes")
      ->needs(option);
}

/// Throws InputError for a double ring without the ranks of a group, where no communicator says which ranks are near.
inline void require_group(annulus::Schedule schedule, int group) {
  if (schedule == annulus::Schedule::double_ring && group == 0)
    throw InputError(
        "--schedule double-ring requires the ranks of a group; accepted: --schedule-group N with it, the number of "
        "consecutive ranks that are near each other, such as those of a node, which divides the ranks");
}

inline CLI::Option* add_wire(CLI::App& app, annulus::Wire& wire) {
  Choices<annulus::Wire> const wires{
      {"stored", annulus::Wire::as_stored}, {"bfloat16", annulus::Wire::bfloat16}, {"float16", annulus::Wire::half}};
  return add_choice(
             app, "--wire", wire, wires,
             "type in which float32 and float64 operands travel; with bfloat16 or float16 they are rounded to it on "
             "every rank")
      ->default_str("stored");
}

/// Adds --comm.
inline CLI::Option* add_comm(CLI::App& app, std::optional<Comm>& comm) {
  return add_choice(app, "--comm", comm, comms,
                    "simulated ranks; the processes of mpirun; or, with --backend cuda, GPUs of this machine: with "
                    "copies between them (the default there), any number of ranks a GPU, or over NCCL, one rank a GPU")
      ->default_str("sim");
}

inline CLI::Option* add_axes(CLI::App& app, annulus::AxisOrder& axes) {
  return add_choice(app, "--axes", axes, axis_orders, "order of the axes batch, sequence, heads, dim in the files")
      ->default_str("bshd");
}

/// Adds --timeout; without the option `timeout` keeps its default of ten minutes.
inline CLI::Option* add_timeout(CLI::App& app, std::chrono::milliseconds& timeout) {
  auto const take = [&timeout](double seconds) { timeout = std::chrono::milliseconds(std::llround(seconds * 1000)); };
  return app
      .add_option_function<double>("--timeout", take, "how long one rank waits for another before the call fails")
      ->check(seconds_to_wait())
      ->type_name("SECONDS")
      ->default_str("600");
}

/// Adds --scale and --softcap.
inline void add_logit_options(CLI::App& app, annulus::Options& attention) {
  app.add_option("--scale", attention.softmax_scale, "factor of q.k")
      ->check(finite_number())
      ->type_name("X")
      ->default_str("1 / sqrt(head_dim)");
  app.add_option("--softcap", attention.logit_softcap, "X * tanh(logit / X); 0: none")
      ->check(finite_number())
      ->type_name("X")
      ->capture_default_str();
}

/// Adds --reproducible and --reproducible-leaf.
inline void add_reproducible(CLI::App& app, bool& reproducible, annulus::Index& leaf) {
  add_switch(app, "--reproducible", reproducible,
             "the same bits for any number of ranks, with shardings whose pieces are whole leaves");
  app.add_option("--reproducible-leaf", leaf, "positions of a leaf of --reproducible")
      ->check(whole_number(annulus::Index{1}, std::numeric_limits<annulus::Index>::max()))
      ->type_name("N")
      ->capture_default_str()
      ->needs("--reproducible");
}

/// Adds --causal, --window, --sink-tokens, --chunk and --query-offset.
inline void add_mask_options(CLI::App& app, annulus::Mask& mask, std::optional<annulus::Index>& query_offset) {
  constexpr annulus::Index most = std::numeric_limits<annulus::Index>::max();
  add_switch(app, "--causal", mask.causal, "a query sees keys up to its own position");
  auto const take_window = [&mask](std::string const& text) { mask.window = detail::window_of(text).value(); };
  auto const is_window = [](std::string const& text) { return detail::window_of(text).has_value(); };
  CLI::Option* const window =
      app.add_option_function<std::string>("--window", take_window,
                                           "keys up to L before and R after the query; negative: unbounded")
          ->check(accepting(is_window, "L,R, two whole numbers, negative for unbounded"))
          ->type_name("L,R");
  app.add_option("--sink-tokens", mask.sink_tokens, "the first N keys stay visible outside of the window")
      ->check(whole_number(annulus::Index{0}, most))
      ->type_name("N")
      ->capture_default_str()
      ->needs(window);
  app.add_option("--chunk", mask.chunk, "queries see keys of their own chunk of N positions; 0: no chunks")
      ->check(whole_number(annulus::Index{0}, most))
      ->type_name("N")
      ->capture_default_str();
  app.add_option(
         "--query-offset", query_offset,
         "position of the first query, e.g. the number of cached keys; default 0; required if queries and keys differ "
         "in number and the mask depends on positions")
      ->check(whole_number(std::numeric_limits<annulus::Index>::min(), most))
      ->type_name("N");
}

}  // namespace annulus_command
