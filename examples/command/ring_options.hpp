#pragma once
// Options shared by the subcommands: sharding, mask, rotation, axis order, timeout and logits.

#include <CLI/CLI.hpp>
#include <annulus/attention/options.hpp>
#include <annulus/tensor/axis_order.hpp>
#include <array>
#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

#include "choice_option.hpp"
#include "number_check.hpp"

namespace annulus_command {

/// Largest accepted number of ranks; a plan has an entry for each pair of ranks.
inline constexpr int most_ranks = 1024;

inline Choices<annulus::Sharding> const shardings{
    {"contiguous", annulus::Contiguous{}}, {"striped", annulus::Striped{}}, {"zigzag", annulus::Zigzag{}}};

inline Choices<annulus::Rotation> const rotations{
    {"auto", annulus::Rotation::automatic}, {"keys", annulus::Rotation::keys}, {"queries", annulus::Rotation::queries}};

/// Element types; types narrower than f64 accumulate in f32.
inline Choices<annulus::DataType> const data_types{{"f64", annulus::DataType::float64},
                                                   {"f32", annulus::DataType::float32},
                                                   {"bf16", annulus::DataType::bfloat16},
                                                   {"f16", annulus::DataType::float16}};

inline Choices<annulus::AxisOrder> const axis_orders{
    {"bshd", annulus::AxisOrder::bshd}, {"bhsd", annulus::AxisOrder::bhsd}, {"bhds", annulus::AxisOrder::bhds}};

namespace detail {

/// Placeholder for block-striped sharding until --block is known.
inline annulus::Sharding const block_striped = annulus::Striped{.block = 2};

/// "L,R" as two whole numbers; false if the text is anything else.
inline bool parse_window(std::string_view text, std::array<annulus::Index, 2>& sides) {
  std::size_t const comma = text.find(',');
  return comma != std::string_view::npos && is_whole_number(text.substr(0, comma), sides[0]) &&
         is_whole_number(text.substr(comma + 1), sides[1]);
}

inline CLI::Validator window_check() {
  return CLI::Validator(
      [](std::string const& text) {
        std::array<annulus::Index, 2> sides{};
        if (parse_window(text, sides)) return std::string();
        return "'" + excerpt(text) + "' is given; accepted: L,R, two whole numbers, negative for unbounded";
      },
      "");
}

}  // namespace detail

inline CLI::Option* add_ranks(CLI::App& app, int& ranks, std::string const& description) {
  return app.add_option("--ranks", ranks, description)->check(whole_number(1, most_ranks))->type_name("N");
}

/// Largest block of block-striped sharding, in positions.
inline constexpr annulus::Index largest_block = annulus::Index{1} << 30;

/// Adds --sharding, including block-striped, and --block. sharding_of combines the two.
inline void add_sharding(CLI::App& app, annulus::Sharding& sharding, std::optional<annulus::Index>& block) {
  Choices<annulus::Sharding> all = shardings;
  all.emplace_back("block-striped", detail::block_striped);
  add_choice(app, "--sharding", sharding, all, "which rank owns which position")->default_str("contiguous");
  app.add_option("--block", block, "block size of block-striped sharding, in positions")
      ->check(whole_number(annulus::Index{1}, largest_block))
      ->type_name("N");
}

/// The sharding with its block size. Throws InputError if only one of --block and block-striped sharding is given.
inline annulus::Sharding sharding_of(annulus::Sharding const& sharding, std::optional<annulus::Index> block) {
  bool const block_striped = sharding == detail::block_striped;
  if (block_striped != block.has_value())
    throw InputError(block_striped ? "--sharding block-striped requires a block size; accepted: --block N with it"
                                   : "--block is given for another sharding; accepted: --sharding block-striped");
  return block_striped ? annulus::Sharding(annulus::Striped{.block = *block}) : sharding;
}

inline CLI::Option* add_rotation(CLI::App& app, annulus::Rotation& rotation) {
  return add_choice(app, "--rotation", rotation, rotations, "which side rotates; auto: the one that sends fewer bytes")
      ->default_str("auto");
}

inline CLI::Option* add_axes(CLI::App& app, annulus::AxisOrder& axes) {
  return add_choice(app, "--axes", axes, axis_orders, "order of the axes batch, sequence, heads, dim in the files")
      ->default_str("bshd");
}

/// Adds --timeout; without the option `timeout` keeps its default of ten minutes.
inline CLI::Option* add_timeout(CLI::App& app, std::chrono::milliseconds& timeout) {
  auto const take = [&timeout](double seconds) { timeout = milliseconds_of_seconds(seconds); };
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

/// Adds --causal, --window, --sink-tokens, --chunk and --query-offset.
inline void add_mask_options(CLI::App& app, annulus::Mask& mask, annulus::Index& query_offset) {
  constexpr annulus::Index most = std::numeric_limits<annulus::Index>::max();
  add_switch(app, "--causal", mask.causal, "a query sees keys up to its own position");
  auto const take_window = [&mask](std::string const& text) {
    std::array<annulus::Index, 2> sides{};
    detail::parse_window(text, sides);
    mask.window = {.left = sides[0], .right = sides[1]};
  };
  CLI::Option* const window =
      app.add_option_function<std::string>("--window", take_window,
                                           "keys up to L before and R after the query; negative: unbounded")
          ->check(detail::window_check())
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
  app.add_option("--query-offset", query_offset, "position of the first query, e.g. the number of cached keys")
      ->check(whole_number(std::numeric_limits<annulus::Index>::min(), most))
      ->type_name("N")
      ->capture_default_str();
}

}  // namespace annulus_command
