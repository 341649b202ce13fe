#include "annulus/mask/mask.hpp"

#include <optional>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;

namespace {

/// The visibility rules, written out one by one.
bool allowed(Mask const& mask, Index q, Index k) {
  if (mask.causal && !(k <= q)) return false;
  bool in_window = true;
  if (mask.window.left.has_value() && *mask.window.left >= 0) in_window = in_window && q - k <= *mask.window.left;
  if (mask.window.right.has_value() && *mask.window.right >= 0) in_window = in_window && k - q <= *mask.window.right;
  if (k < mask.sink_tokens) in_window = true;
  if (!in_window) return false;
  if (mask.chunk > 0) {
    auto const chunk_of = [&](Index position) {
      Index chunk = 0;
      while ((chunk + 1) * mask.chunk <= position) ++chunk;
      while (chunk * mask.chunk > position) --chunk;
      return chunk;
    };
    if (chunk_of(q) != chunk_of(k)) return false;
  }
  return true;
}

std::vector<Mask> all_masks() {
  std::vector<Mask> masks;
  std::vector<std::optional<Index>> const sides{std::nullopt, -1, 0, 1, 5};
  for (bool causal : {false, true})
    for (auto left : sides)
      for (auto right : sides)
        for (Index sink_tokens : {0, 1, 4})
          for (Index chunk : {0, 1, 3, 100})
            masks.push_back({.causal = causal,
                             .window = {.left = left, .right = right},
                             .sink_tokens = sink_tokens,
                             .chunk = chunk});
  return masks;
}

}  // namespace

TEST_CASE("visible matches the rules written out", "[mask]") {
  for (Mask const& mask : all_masks()) {
    bool equal = true;
    for (Index q = -9; q <= 14; ++q)
      for (Index k = 0; k <= 14; ++k) equal = equal && mask.visible(q, k) == allowed(mask, q, k);
    CAPTURE(mask.causal, mask.window.reach_left(), mask.window.reach_right(), mask.sink_tokens, mask.chunk);
    CHECK(equal);
  }
}

TEST_CASE("both ends of the interval of a query are non-decreasing", "[mask]") {
  for (Mask const& mask : all_masks())
    for (bool sink : {false, true})
      for (Index q = -9; q < 14; ++q) {
        PositionRange const here = mask.keys_of(q, sink), next = mask.keys_of(q + 1, sink);
        CHECK((here.begin <= next.begin && here.end <= next.end));
      }
}

TEST_CASE("the default mask hides nothing", "[mask]") {
  CHECK(full() == Mask{});
  CHECK((full().visible(0, unbounded / 4) && full().visible(-unbounded / 4, 0)));
  CHECK_FALSE(full().local());
}

TEST_CASE("extreme positions do not overflow", "[mask]") {
  Index const far = unbounded / 4;
  CHECK(causal().visible(far, far));
  CHECK_FALSE(causal().visible(far, far + 1));
  Mask const window = sliding_window(unbounded - 1, 0);
  CHECK(window.visible(-far, -far));
  CHECK_FALSE(window.visible(far, far + 1));
  Mask const huge_chunk{.chunk = unbounded};
  CHECK(huge_chunk.visible(far, 0));
  CHECK_FALSE(huge_chunk.visible(-1, 0));
}

TEST_CASE("a side that is unset, negative or beyond all distances is unbounded", "[mask]") {
  CHECK(Window{} == Window{.left = -1, .right = -7});
  CHECK(Window{.left = unbounded + 5, .right = {}} == Window{});
  CHECK_FALSE(Window{}.bounded());
  CHECK(Window{.left = 0, .right = {}}.bounded());
  CHECK_FALSE(Window{.left = 0, .right = {}} == Window{.left = 1, .right = {}});
  CHECK(Mask{.window = {.left = -1, .right = -1}} == full());
}

TEST_CASE("a mask is local if it bounds the distance of keys on both sides", "[mask]") {
  CHECK_FALSE(causal().local());
  CHECK(sliding_window(3, 0).local());
  CHECK_FALSE(sliding_window(-1, 0).local());
  CHECK_FALSE(sliding_window(3, -1).local());
  CHECK(Mask{.causal = true, .window = {.left = 3, .right = {}}}.local());
  CHECK(Mask{.chunk = 4}.local());
  CHECK_FALSE(Mask{.window = {.left = 3, .right = 0}, .sink_tokens = 1}.local());
  CHECK(Mask{.window = {.left = 3, .right = 0}, .sink_tokens = 1, .chunk = 4}.local());
}

TEST_CASE("the usual causal window of w keys has left w - 1 and right 0", "[mask]") {
  Mask const mask = sliding_window(3, 0);
  int seen = 0;
  for (Index k = 0; k < 20; ++k) seen += mask.visible(10, k) ? 1 : 0;
  CHECK(seen == 4);
  CHECK((mask.visible(10, 10) && mask.visible(10, 7)));
}

TEST_CASE("the default predicate is true", "[mask]") { CHECK(EveryPair{}(1, 2, -3, 4)); }
