#include "plan_picture.hpp"

#include <algorithm>
#include <annulus/comm/flight_record.hpp>
#include <annulus/core/error.hpp>
#include <array>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "errors.hpp"
#include "picture/diagram.hpp"
#include "picture/svg.hpp"

namespace annulus_command {

namespace {

using annulus::Index;
using annulus::Pass;
using annulus::Rank;
using annulus::RingPlan;
using annulus_picture::Anchor;
using annulus_picture::Axis;
using annulus_picture::Diagram;
using annulus_picture::fixed;
using annulus_picture::Svg;

/// Colour between white (0) and dark blue (1).
std::string shade(double share) {
  constexpr std::array dark{27, 108, 168};
  std::string colour = "rgb(";
  for (std::size_t i = 0; i < dark.size(); ++i)
    colour += (i == 0 ? "" : ",") + std::to_string(static_cast<int>(std::lround(255 + share * (dark[i] - 255))));
  return colour + ")";
}

/// The pairs that a rank computes in a step, of all pairs of the queries and keys that it works on.
double share_of_block(RingPlan const& plan, Rank rank, int step) {
  double const pairs = static_cast<double>(plan.resident_rows(rank)) *
                       static_cast<double>(plan.rotating_rows(plan.owner(rank, step)).size());
  return pairs > 0 ? static_cast<double>(plan.step(rank, step).visible_pairs) / pairs : 0;
}

/// The rules of a mask, in words.
std::string words_of(annulus::Mask const& mask) {
  std::string words = mask.causal ? "causal" : "";
  auto const add = [&](std::string const& rule) { words += (words.empty() ? "" : ", ") + rule; };
  auto const side = [](Index reach) { return reach < annulus::unbounded ? std::to_string(reach) : "unbounded"; };
  if (mask.window.bounded()) add("window " + side(mask.window.reach_left()) + ", " + side(mask.window.reach_right()));
  if (mask.sink_tokens > 0) add(std::to_string(mask.sink_tokens) + " sink tokens");
  if (mask.chunk > 0) add("chunks of " + std::to_string(mask.chunk));
  return words.empty() ? "no mask" : words;
}

/// The kind of a sharding, without the digest of an explicit map.
std::string kind_of(annulus::Sharding const& sharding) {
  std::string const name = sharding.name();
  return name.substr(0, name.find(" #"));
}

constexpr double title_size = 14;

std::string title_of(RingPlan const& plan) {
  return std::string(name_of(plan.request().pass)) + ", " + words_of(plan.request().rules.mask) + ", " +
         kind_of(plan.request().sharding) + " sharding, " + std::to_string(plan.global_queries()) + " queries, " +
         std::to_string(plan.global_keys()) + " keys, " + std::to_string(plan.ranks()) + " ranks";
}

/// An upper bound of the width of a bold title, in pixels: fonts differ, but the mean letter is narrower than 0.62 of
/// its size.
double title_width(std::string const& title) { return 0.62 * title_size * static_cast<double>(title.size()); }

/// Largest work of any rank in a step; the step takes as long as this.
Index busiest(RingPlan const& plan, int step) {
  Index most = 0;
  for (Rank rank = 0; rank < plan.ranks(); ++rank) most = std::max(most, plan.step(rank, step).multiply_adds);
  return most;
}

/// Sizes of the diagram of one plan, in pixels.
struct BalanceLayout {
  static constexpr double left = 70, title = 72, bottom = 34, gap = 24, bars = 170, right = 80;

  double cell_width, cell_height;

  explicit BalanceLayout(RingPlan const& plan)
      : cell_width(std::clamp(560.0 / plan.steps(), 9.0, 64.0)),
        cell_height(std::clamp(560.0 / plan.ranks(), 9.0, 30.0)) {}

  double cells(RingPlan const& plan) const { return cell_width * plan.steps(); }
  double width(RingPlan const& plan) const {
    return std::max(left + cells(plan) + gap + bars + right, left + title_width(title_of(plan)));
  }
  double height(RingPlan const& plan) const { return title + cell_height * plan.ranks() + bottom; }
};

void draw_plan(Svg& svg, RingPlan const& plan, double top) {
  BalanceLayout const layout(plan);
  double rounds = 0, work = 0;
  for (int step = 0; step < plan.steps(); ++step) rounds += static_cast<double>(busiest(plan, step));
  for (Rank rank = 0; rank < plan.ranks(); ++rank) work += static_cast<double>(plan.multiply_adds(rank));
  double const mean = std::max(1.0, work / plan.ranks());
  double const waiting = rounds == 0 ? 0 : 1 - mean / rounds;

  svg.text({BalanceLayout::left, top + 20}, title_of(plan), {.size = title_size, .bold = true});
  svg.text({BalanceLayout::left, top + 38},
           "Cells: pairs that the rank computes in the step, of all pairs of its queries and the keys that are there.");
  svg.text({BalanceLayout::left, top + 54}, "Busiest rank: " + fixed(plan.imbalance(), 2) +
                                                " times the mean work. Idle: " + fixed(100 * waiting, 0) +
                                                " % of all ranks' time, if each step waits for its slowest rank.");
  double const first = top + BalanceLayout::title, bars = BalanceLayout::left + layout.cells(plan) + BalanceLayout::gap;
  double const end = first + layout.cell_height * plan.ranks();
  for (Rank rank = 0; rank < plan.ranks(); ++rank) {
    double const y = first + layout.cell_height * rank;
    if (layout.cell_height >= 12 || rank % 8 == 0)
      svg.text({BalanceLayout::left - 8, y + layout.cell_height / 2 + 4}, "rank " + std::to_string(rank),
               {.anchor = Anchor::end});
    for (int step = 0; step < plan.steps(); ++step) {
      Index const multiply_adds = plan.step(rank, step).multiply_adds;
      double const share = share_of_block(plan, rank, step);
      double const x = BalanceLayout::left + layout.cell_width * step;
      svg.rectangle({x + 0.5, y + 0.5}, layout.cell_width - 1, layout.cell_height - 1,
                    multiply_adds == 0 ? "#f6d5d5" : shade(0.12 + 0.88 * share),
                    "rank " + std::to_string(rank) + ", step " + std::to_string(step) + ", keys of rank " +
                        std::to_string(plan.owner(rank, step)) + ": " + std::to_string(multiply_adds) +
                        " multiply-adds");
      if (layout.cell_width >= 40 && layout.cell_height >= 16)
        svg.text({x + layout.cell_width / 2, y + layout.cell_height / 2 + 4},
                 multiply_adds == 0 ? "idle" : fixed(100 * share, 0) + " %",
                 {.anchor = Anchor::middle, .size = 11, .colour = share > 0.55 ? "#ffffff" : "#24292f"});
    }
    double const relative = static_cast<double>(plan.multiply_adds(rank)) / mean;
    svg.rectangle({bars, y + 1.5}, BalanceLayout::bars * relative / std::max(plan.imbalance(), 1.0),
                  layout.cell_height - 3, "#1b6ca8");
    if (layout.cell_height >= 12)
      svg.text({bars + BalanceLayout::bars + 10, y + layout.cell_height / 2 + 4}, fixed(relative, 2));
  }
  double const mean_at = bars + BalanceLayout::bars / std::max(plan.imbalance(), 1.0);
  svg.line({mean_at, first}, {mean_at, end}, "#d1242f", 1.5);
  int const apart = layout.cell_width >= 24 ? 1 : 8;
  for (int step = 0; step < plan.steps(); step += apart)
    svg.text({BalanceLayout::left + layout.cell_width * (step + 0.5), end + 16}, std::to_string(step),
             {.anchor = Anchor::middle});
  svg.text({BalanceLayout::left - 8, end + 16}, "step", {.anchor = Anchor::end});
  svg.text({bars, end + 16}, "work of the rank; mean = 1 (red)");
}

/// The rank that owns each position of a side.
std::vector<Rank> owners(RingPlan const& plan, annulus::Side side) {
  bool const queries = side == annulus::Side::query;
  std::vector<Rank> owner(static_cast<std::size_t>(queries ? plan.global_queries() : plan.global_keys()));
  for (Rank rank = 0; rank < plan.ranks(); ++rank)
    for (annulus::Segment const& segment : queries ? plan.query_segments(rank) : plan.key_segments(rank))
      for (Index row = 0; row < segment.length; ++row)
        owner[static_cast<std::size_t>(segment.global_begin + row * segment.global_stride)] = rank;
  return owner;
}

/// Bytes with a binary unit.
std::string bytes_text(double bytes) {
  static constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < units.size(); ++unit) bytes /= 1024;
  return fixed(bytes, bytes < 10 && bytes != std::floor(bytes) ? 1 : 0) + ' ' + units[unit];
}

/// A number of tokens to two or three digits.
std::string tokens_text(Index tokens) {
  auto const in = [&](int bits, char const* unit) {
    double const count = std::ldexp(static_cast<double>(tokens), -bits);
    return fixed(count, count < 10 && count != std::floor(count) ? 1 : 0) + unit;
  };
  return tokens < 1024 ? std::to_string(tokens) : tokens < Index{1} << 20 ? in(10, "k") : in(20, "M");
}

/// Heads, head_dim and element type of a call.
std::string heads_text(Call const& call) {
  annulus::AttentionShape const& shape = call.shape.attention;
  auto const pair = [](Index first, Index second) {
    return std::to_string(first) + (first == second ? "" : ':' + std::to_string(second));
  };
  return "batch " + std::to_string(shape.batch) + ", " + pair(shape.query_heads, shape.kv_heads) + " heads of " +
         pair(shape.head_dim, shape.value_dim) + ", " + std::string(name_of(call.shape.dtype));
}

/// Memory of the accelerators that most sequences are trained on.
constexpr double device_bytes = 80.0 * (1 << 30);

/// Of the rank that needs most: operands, results and buffers of a pass.
struct Memory {
  Call const& call;
  Pass pass;
  int asked_ranks;  ///< fewer ranks use the plain ring

  double bytes(int ranks, Index tokens) const {
    Call part = call;
    part.shape.queries = part.shape.keys = tokens;
    if (ranks < asked_ranks) {
      part.options.schedule = annulus::Schedule::ring;
      part.options.ranks_per_group = 0;
      part.options.rates.reset();
    }
    RingPlan const plan = plan_of(part, pass, ranks);
    Index most = 0;
    for (Rank rank = 0; rank < ranks; ++rank) most = std::max(most, plan.memory_bytes(rank));
    return static_cast<double>(most);
  }

  /// The longest sequence that fits in device_bytes: bytes grow in proportion to tokens, as up to `tokens`.
  Index longest(int ranks, Index tokens) const {
    double const half = bytes(ranks, tokens / 2), whole = bytes(ranks, tokens);
    double const of_token = (whole - half) / static_cast<double>(tokens - tokens / 2);
    return std::max(Index{0}, tokens + static_cast<Index>((device_bytes - whole) / of_token));
  }
};

}  // namespace

void draw_balance(std::ostream& stream, std::vector<RingPlan> const& plans) {
  double width = 0, height = 0;
  for (RingPlan const& plan : plans) {
    if (plan.ranks() > most_drawn_ranks)
      throw InputError("--svg is asked for " + std::to_string(plan.ranks()) + " ranks; accepted: up to " +
                       std::to_string(most_drawn_ranks));
    width = std::max({width, BalanceLayout(plan).width(plan), 760.0});
    height += BalanceLayout(plan).height(plan);
  }
  Svg svg(stream, width, height, "Work of each rank in each step of ring attention");
  double top = 0;
  for (RingPlan const& plan : plans) {
    draw_plan(svg, plan, top);
    top += BalanceLayout(plan).height(plan);
  }
}

void draw_mask(std::ostream& stream, RingPlan const& plan) {
  static constexpr std::array colours{"#1b6ca8", "#d9822b", "#2e8b57", "#b23a8e",
                                      "#7a5cc0", "#c0392b", "#5f7d8c", "#97801a"};
  Index const queries = plan.global_queries(), keys = plan.global_keys();
  if (std::max(queries, keys) > most_drawn_tokens || plan.ranks() > std::ssize(colours))
    throw InputError("--svg-mask is asked for " + std::to_string(queries) + " queries, " + std::to_string(keys) +
                     " keys and " + std::to_string(plan.ranks()) + " ranks; accepted: up to " +
                     std::to_string(most_drawn_tokens) + " of each, and up to " + std::to_string(colours.size()) +
                     " ranks");
  annulus::AttentionRules const& rules = plan.request().rules;
  annulus::Documents const& documents = plan.request().documents;
  auto const sees = [&](Index query, Index key) {
    auto const holds_both = [&](annulus::PositionRange const& document) {
      return document.contains(query) && document.contains(key);
    };
    return rules.mask.visible(query + rules.query_offset.value_or(0), key) &&
           (documents.empty() || std::ranges::any_of(documents, holds_both));
  };
  std::string title = words_of(rules.mask);
  if (!documents.empty()) title += ", " + std::to_string(documents.size()) + " documents";
  std::string const sharding = kind_of(plan.request().sharding) + " sharding";
  constexpr double left = 70, top = 74, strip = 8, gap = 4, legend = 96;
  double const cell = std::clamp(288.0 / static_cast<double>(std::max(queries, keys)), 3.0, 24.0);
  double const width = cell * static_cast<double>(keys), height = cell * static_cast<double>(queries);
  Svg svg(stream, std::max(left + width + legend, left + title_width(title)), top + height + 16,
          "Keys that each query sees: " + title + ", " + sharding);
  svg.text({left, 20}, title, {.size = title_size, .bold = true});
  svg.text({left, 38}, sharding);
  svg.text({left, top - strip - gap - 6}, "keys");
  svg.text({left - strip - gap - 6, top + 10}, "queries", {.anchor = Anchor::end});
  svg.rectangle({left, top}, width, height, "#eef0f2");
  std::vector<Rank> const of_query = owners(plan, annulus::Side::query), of_key = owners(plan, annulus::Side::key);
  auto const colour = [&](Rank rank) { return colours[static_cast<std::size_t>(rank)]; };
  for (Index key = 0; key < keys; ++key)
    svg.rectangle({left + cell * static_cast<double>(key), top - strip - gap}, cell, strip,
                  colour(of_key[static_cast<std::size_t>(key)]));
  for (Index query = 0; query < queries; ++query) {
    Rank const rank = of_query[static_cast<std::size_t>(query)];
    double const y = top + cell * static_cast<double>(query);
    svg.rectangle({left - strip - gap, y}, strip, cell, colour(rank));
    for (Index key = 0, end = 0; key < keys; key = end + 1) {
      for (end = key; end < keys && sees(query, end);) ++end;
      if (end > key)
        svg.rectangle({left + cell * static_cast<double>(key), y + 0.25}, cell * static_cast<double>(end - key),
                      cell - 0.5, colour(rank),
                      "query " + std::to_string(query) + " of rank " + std::to_string(rank) + ": keys " +
                          std::to_string(key) + " to " + std::to_string(end - 1));
    }
  }
  for (Rank rank = 0; rank < plan.ranks(); ++rank) {
    double const y = top + 18.0 * rank;
    svg.rectangle({left + width + 16, y}, 12, 12, colour(rank));
    svg.text({left + width + 34, y + 10}, "rank " + std::to_string(rank));
  }
}

void draw_memory(std::ostream& stream, Call const& call, Pass pass, int ranks) {
  Index const tokens = call.shape.queries;
  if (tokens != call.shape.keys)
    throw InputError("--svg-memory is asked for " + std::to_string(tokens) + " queries and " +
                     std::to_string(call.shape.keys) + " keys; accepted: as many queries as keys");
  std::vector<Index> lengths;
  for (Index length = tokens; length >= 2 * ranks && std::ssize(lengths) < 10; length /= 2)
    lengths.insert(lengths.begin(), length);
  if (lengths.size() < 2)
    throw InputError("--svg-memory is asked for " + std::to_string(tokens) + " tokens on " + std::to_string(ranks) +
                     " ranks; accepted: at least four tokens a rank");

  std::vector<int> counts{1};
  if (ranks > 8) counts.push_back(ranks / 8);
  if (ranks > 1) counts.push_back(ranks);
  Memory const memory{call, pass, ranks};
  double const least = std::exp2(std::floor(std::log2(memory.bytes(ranks, lengths.front()))));
  double const most = std::exp2(std::ceil(std::log2(std::max(memory.bytes(1, tokens), device_bytes))));

  Svg svg(stream, 760, 460, "Memory of a rank as the sequence grows");
  Diagram diagram{.corner = {90, 60}, .width = 480, .height = 330};
  diagram.x = {.first = static_cast<double>(lengths.front()), .last = static_cast<double>(tokens), .logarithmic = true};
  diagram.y = {.first = std::min(least, device_bytes), .last = most, .logarithmic = true};
  svg.text({90, 26}, "Bytes on one device, " + std::string(name_of(pass)) + " pass: operands, results and buffers",
           {.size = 14, .bold = true});
  svg.text({90, 46}, heads_text(call), {.size = 11});
  int const octaves = static_cast<int>(std::lround(std::log2(most / least)));
  for (int octave = 0; octave <= octaves; octave += std::max(1, (octaves + 9) / 10))
    diagram.draw_level(svg, std::ldexp(least, octave), bytes_text(std::ldexp(least, octave)));
  std::size_t const columns = (lengths.size() + 7) / 8;
  for (std::size_t i = (lengths.size() - 1) % columns; i < lengths.size(); i += columns)
    diagram.draw_column(svg, static_cast<double>(lengths[i]), tokens_text(lengths[i]));
  diagram.draw_frame(svg, "");
  svg.text({90 + 240, 60 + 330 + 38}, "tokens", {.anchor = Anchor::middle});

  constexpr std::string_view device_colour = "#d1242f";
  diagram.draw_curve(svg, {{diagram.x.first, device_bytes}, {diagram.x.last, device_bytes}}, device_colour, 1.5);
  double y = 80;
  draw_legend_entry(svg, {590, y}, device_colour, 1.5, bytes_text(device_bytes));
  constexpr std::array<std::string_view, 3> colours{"#7d8791", "#2e8b57", "#1b6ca8"};
  for (std::size_t i = 0; i < counts.size(); ++i) {
    std::vector<std::pair<double, double>> points;
    for (Index const length : lengths)
      points.emplace_back(static_cast<double>(length), memory.bytes(counts[i], length));
    diagram.draw_curve(svg, points, colours[i], 2.5);
    y += 44;
    draw_legend_entry(svg, {590, y}, colours[i], 2.5,
                      counts[i] == 1 ? "one device" : std::to_string(counts[i]) + " ranks, each");
    svg.text({622, y + 20}, "fits " + tokens_text(memory.longest(counts[i], tokens)) + " tokens", {.size = 11});
  }
}

}  // namespace annulus_command
