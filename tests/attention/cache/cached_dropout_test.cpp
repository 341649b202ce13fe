// Dropout on a cache drops the pairs that one call without a cache drops.

#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "annulus/attention/cache/cached_attention.hpp"
#include "annulus/attention/collectives.hpp"
#include "annulus/attention/ring_attention.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "support/catch.hpp"

using namespace annulus;

// A name of its own, as files of tests are joined.
namespace cached_dropout {
namespace {

/// Of the sequences before the calls, which then add the same number of rows to each.
constexpr std::array<Index, 2> first_rows{0, 24};
constexpr Index chunk = 48, chunks = 2, kv_heads = 2, heads = 4, head_dim = 8;
constexpr std::array<Index, 3> decoded_rows{1, 1, 3};
constexpr Index tokens = 24 + chunk * chunks + 5;
constexpr Dropout dropout{.probability = 0.4, .seed = 0xfedcba987654321};

template <class T>
using Tensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;

/// Two batch items. Value row j is 1 at j, and else 0, so that an output row is the row of weights.
template <class T>
struct Text {
  Tensor<T> q{2, tokens, heads, head_dim}, k{2, tokens, kv_heads, head_dim}, v{2, tokens, kv_heads, tokens};

  Text() {
    for (Index i = 0; i < q.size(); ++i) q.data()[i] = static_cast<T>(static_cast<double>(7 * i % 23) / 11 - 1);
    for (Index i = 0; i < k.size(); ++i) k.data()[i] = static_cast<T>(static_cast<double>(5 * i % 19) / 9 - 1);
    v.setZero();
    for (Index b = 0; b < 2; ++b)
      for (Index j = 0; j < tokens; ++j)
        for (Index h = 0; h < kv_heads; ++h) v(b, j, h, j) = 1;
  }
};

/// The rows of both items that are `begins[b] + i` for the positions i of the segments.
template <class T>
Tensor<T> rows(Tensor<T> const& x, std::array<Index, 2> begins, std::vector<Index> const& places) {
  Tensor<T> some(2, std::ssize(places), x.dimension(2), x.dimension(3));
  for (Index b = 0; b < 2; ++b)
    for (std::size_t i = 0; i < places.size(); ++i)
      some.chip(b, 0).chip(static_cast<Index>(i), 0) =
          x.chip(b, 0).chip(begins[static_cast<std::size_t>(b)] + places[i], 0);
  return some;
}

/// What is wrong with a result; empty if nothing is.
template <class T>
std::string fault(Tensor<T> const& output, std::array<Index, 2> begins, std::vector<Index> const& places,
                  Tensor<T> const& whole) {
  // The error of a weight below 1 / (1 - probability) in two different orders of summation, logits below 3 included.
  double const tolerance = 64 * static_cast<double>(std::numeric_limits<T>::epsilon()) * dropout.keep_scale();
  for (Index b = 0; b < 2; ++b)
    for (std::size_t i = 0; i < places.size(); ++i)
      for (Index h = 0; h < heads; ++h)
        for (Index j = 0; j < tokens; ++j) {
          Index const query = begins[static_cast<std::size_t>(b)] + places[i];
          T const seen = output(b, static_cast<Index>(i), h, j), expected = whole(b, query, h, j);
          if ((seen == 0) != (expected == 0) || !(std::abs(static_cast<double>(seen - expected)) <= tolerance))
            return "item " + std::to_string(b) + ", head " + std::to_string(h) + ", query " + std::to_string(query) +
                   ", key " + std::to_string(j) + ": the weight is " + std::to_string(seen) + ", without a cache " +
                   std::to_string(expected);
        }
  return "";
}

std::vector<Index> first_places(Index count) {
  std::vector<Index> places;
  for (Index i = 0; i < count; ++i) places.push_back(i);
  return places;
}

/// Prefill in chunks, then decode, of two sequences of different lengths.
template <class T, class B>
std::string fault_of_calls(SimulatedRing& ring, CachedOptions const& options, Index page_rows, Text<T> const& text,
                           Tensor<T> const& whole) {
  B backend;
  KvCache<T, B> cache(
      ring, backend,
      {.kv_heads = kv_heads, .head_dim = head_dim, .value_dim = tokens, .pages = 64, .page_rows = page_rows});
  CachedAttention attention(ring, backend, options);
  // The batch item is the place in the call, not the number of the sequence.
  Index const second = cache.create();
  std::array const sequences{cache.create(), second};
  attention.append(cache, std::array{second}, TensorView<T const>(view_of(text.k)).slice(0, 1, 1).slice(1, 0, 24),
                   TensorView<T const>(view_of(text.v)).slice(0, 1, 1).slice(1, 0, 24));
  std::array<Index, 2> begins = first_rows;
  auto const advance = [&](Index count) {
    for (Index& begin : begins) begin += count;
  };
  std::string complaint;
  auto const note = [&](std::string const& one) {
    if (complaint.empty()) complaint = one;
  };
  for (Index c = 0; c < chunks; ++c, advance(chunk)) {
    auto const places = annulus::positions(ring, options.sharding, chunk);
    attention.append_shards(cache, sequences, rows(text.k, begins, places), rows(text.v, begins, places));
    note(fault(attention.prefill(cache, sequences, rows(text.q, begins, places)).output, begins, places, whole));
  }
  for (Index count : decoded_rows) {
    auto const places = first_places(count);
    auto const result = attention.decode(cache, sequences, rows(text.q, begins, places), rows(text.k, begins, places),
                                         rows(text.v, begins, places));
    note(fault(result.output, begins, places, whole));
    advance(count);
  }
  return complaint;
}

template <class T, class B>
void check_pairs() {
  Text<T> const text;
  SelfRing alone;
  B backend;
  Tensor<T> const whole =
      ring_attention_forward(alone, backend, {.mask = causal(), .dropout = dropout}, text.q, text.k, text.v).output;
  Index dropped = 0, pairs = 0;
  for (Index i = 0; i < tokens; ++i)
    for (Index j = 0; j <= i; ++j, ++pairs) dropped += whole(1, i, 3, j) == 0;
  // Five standard deviations of the share, of 7,875 pairs.
  CHECK(std::abs(static_cast<double>(dropped) / static_cast<double>(pairs) - dropout.probability) < 0.028);
  for (int ranks : {1, 2, 3, 4, 6})
    for (Sharding const& sharding : {Sharding(Contiguous{}), Sharding(Zigzag{}), Sharding(Striped{})})
      for (Index page_rows : {7, 48}) {
        INFO(ranks << " ranks, " << sharding.name() << ", pages of " << page_rows << " rows");
        CachedOptions const options{.mask = causal(),
                                    .dropout = dropout,
                                    .sharding = sharding,
                                    .merge = ranks % 2 == 0 ? MergeMethod::tree : MergeMethod::gather};
        for (std::string const& complaint : run_ring(ranks, [&](SimulatedRing& ring) {
               return fault_of_calls<T, B>(ring, options, page_rows, text, whole);
             }))
          CHECK(complaint == "");
      }
}

}  // namespace
}  // namespace cached_dropout

TEST_CASE("prefill in chunks and decode drop the pairs that one call without a cache drops", "[attention][cache]") {
  cached_dropout::check_pairs<double, ReferenceBackend>();
  cached_dropout::check_pairs<double, CpuBackend>();
  cached_dropout::check_pairs<float, CpuBackend>();
}
