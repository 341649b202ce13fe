// A cache and a CachedAttention with two asynchronous backends, and the storage that a call keeps.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "annulus/attention/cached_attention.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "conformance/foreign_implementation.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

Tensor rows(Index count, Index heads, Index dim, int first) {
  Tensor tensor(1, count, heads, dim);
  for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<float>((7 * i + 3 * first) % 17) / 17;
  return tensor;
}

/// Outputs of calls that write, fork and read pages. `place(tensor)`: in the memory of the backends.
template <class Ring, class B, class Place, class Download>
std::vector<float> outputs_of_calls(Ring& ring, B& of_cache, B& backend, Place const& place, Download const& download) {
  KvCache<float, B> cache(ring, of_cache, {.kv_heads = 1, .head_dim = 4, .value_dim = 3, .pages = 8, .page_rows = 4});
  CachedAttention attention(ring, backend, {.mask = causal()});
  std::array const first{cache.create()};
  std::vector<float> outputs;
  auto const note = [&](auto const& result) {
    auto const view = download(view_of(result.output));
    detail::for_each_element(view, view, [&](float const& x, float const&) { outputs.push_back(x); });
  };
  int const mine = 10 * ring.rank();
  attention.append_shards(cache, first, place(rows(3, 1, 4, mine)), place(rows(3, 1, 3, mine)));
  note(attention.prefill(cache, first, place(rows(3, 2, 4, mine + 5))));
  std::array const second{cache.fork(first[0])};
  note(attention.decode(cache, second, place(rows(2, 2, 4, 1)), place(rows(2, 1, 4, 2)), place(rows(2, 1, 3, 3))));
  attention.append(cache, first, place(rows(1, 1, 4, 4)), place(rows(1, 1, 3, 5)));
  note(attention.decode(cache, first, place(rows(1, 2, 4, 6))));
  return outputs;
}

}  // namespace

TEST_CASE("a cache and its attention may have two asynchronous backends", "[attention][cache][foreign]") {
  for (int ranks : {1, 3})
    for (std::string const& complaint : run_ring(ranks, [](SimulatedRing& simulated) -> std::string {
           ReferenceBackend reference;
           auto const expected = outputs_of_calls(
               simulated, reference, reference, [](Tensor const& x) { return x; }, [](auto view) { return view; });
           ForeignRing ring(simulated);
           ForeignBackendOptions const lazy{.deferral = {.when = DeferralOptions::lazy}};
           ForeignBackend<> of_cache(lazy), backend(lazy);
           // Placed tensors must live until the backend has been synchronized, which each call does before it returns.
           auto const place = [](Tensor const& x) { return ForeignPlacement::place(view_of(x)); };
           auto const seen = outputs_of_calls(ring, of_cache, backend, place, [](auto view) { return at_rest(view); });
           if (of_cache.pending() + backend.pending() > 0) return "work is pending after the calls";
           if (of_cache.misuses() + backend.misuses() > 0) return "a backend was misused";
           return seen == expected ? "" : "other results than with one backend that works at once";
         }))
      CHECK(complaint == "");
}

TEST_CASE("a prefill keeps the tiles and positions of one step, whatever the number of ranks", "[attention][cache]") {
  auto const bytes = [](int ranks) {
    auto const all = run_ring(ranks, [](SimulatedRing& ring) {
      ReferenceBackend backend;
      KvCache<float, ReferenceBackend> cache(ring, backend, {.pages = 1, .page_rows = 64});
      CachedAttention attention(ring, backend, {.mask = causal(), .checked = false});
      std::array const sequence{cache.create()};
      Index const tokens = 64 * ring.size();
      attention.append(cache, sequence, rows(tokens, 1, 1, 0), rows(tokens, 1, 1, 0));
      attention.prefill(cache, sequence, rows(64, 1, 1, 0));
      return attention.buffer_bytes();
    });
    return *std::max_element(all.begin(), all.end());
  };
  CHECK(bytes(7) == bytes(3));
}
