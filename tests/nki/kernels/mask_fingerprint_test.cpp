// Fingerprints of masks, and masks whose documents only the table tells.

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "annulus/nki/kernels/backward_kernel.hpp"
#include "annulus/nki/kernels/forward_kernel.hpp"
#include "annulus/nki/kernels/ring_mask.hpp"
#include "annulus/nki/print/to_python.hpp"
#include "support/catch.hpp"

namespace annulus::nki {

namespace {

RingMask packed(Index second_start, Mask const& mask = causal(), Sharding const& sharding = Contiguous{}) {
  std::vector<std::int32_t> ids(512, 1);
  std::fill(ids.begin() + second_start, ids.end(), 2);
  std::vector<std::vector<std::int32_t>> const items{ids};
  return sharded_mask(mask, sharding, 2, 256, 256, 0, items, items);
}

KernelSpec spec() {
  return {.cores = 1,
          .ranks = 2,
          .shape = {.batch = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 16, .value_dim = 16},
          .local_queries = 256,
          .local_keys = 256,
          .softmax_scale = 0.25};
}

}  // namespace

TEST_CASE("masks that differ have different fingerprints") {
  std::set<std::string> const seen{
      packed(256).fingerprint("mask_ranges"),
      packed(256).fingerprint("mask_ranges", true),
      packed(256).fingerprint("mask_key_ranges"),
      packed(300).fingerprint("mask_ranges"),
      packed(256, Mask{}).fingerprint("mask_ranges"),
      packed(256, Mask{.causal = true, .chunk = 7}).fingerprint("mask_ranges"),
      packed(256, causal(), Striped{}).fingerprint("mask_ranges"),
      packed(256).for_any_documents().fingerprint("mask_ranges"),
      packed(256).for_any_documents(true).fingerprint("mask_ranges"),
      packed(300).for_any_documents(true).fingerprint("mask_ranges"),
      sharded_mask(causal(), Contiguous{}, 2, 256, 256).fingerprint("mask_ranges"),
      sharded_mask(causal(), Contiguous{}, 2, 256, 256, 1).fingerprint("mask_ranges"),
      RingMask({{0, 256}}, {{{0, 3}, {0, 4}}}).fingerprint("mask_ranges"),
      RingMask({{0, 256}}, {{{0, 3}, {0, 5}}}).fingerprint("mask_ranges"),
  };
  CHECK(seen.size() == 14);
  CHECK(packed(256).fingerprint("mask_ranges") == packed(256).fingerprint("mask_ranges"));
  CHECK(packed(256).fingerprint("mask_ranges").size() == 16);
}

TEST_CASE(
    "kernels with equal fingerprints take tables of equal values, in both passes and for both sides that rotate") {
  for (Sharding const& sharding : {Sharding(Contiguous{}), Sharding(Zigzag{}), Sharding(Striped{})})
    for (bool documents : {false, true}) {
      RingMask const mask = documents ? packed(300, causal(), sharding) : sharded_mask(causal(), sharding, 2, 256, 256);
      auto const table = [&](bool queries_rotate) {
        std::vector<float> all;
        for (int rank = 0; rank < 2; ++rank) {
          auto const own = documents ? mask.ranges(rank, 1, queries_rotate) : mask.offsets(rank, 1, queries_rotate);
          all.insert(all.end(), own.begin(), own.end());
        }
        return all;
      };
      auto const backward = [&](RotatingSide travels) {
        KernelSpec chosen = spec();
        chosen.travels = travels;
        return BackwardKernel(chosen, mask).ring().mask_fingerprint;
      };
      std::string const forward = ForwardKernel(spec(), mask).ring().mask_fingerprint;
      REQUIRE(table(false) != table(true));
      CHECK(backward(RotatingSide::queries) != forward);
      CHECK(backward(RotatingSide::keys) == forward);
    }
  KernelSpec stationary = spec();
  stationary.keys_stationary = true;
  RingMask const mask = packed(256);
  CHECK(ForwardKernel(stationary, mask).ring().mask_fingerprint != ForwardKernel(spec(), mask).ring().mask_fingerprint);
}

TEST_CASE("a kernel for any documents depends on no document") {
  auto const text = [](RingMask const& mask) { return to_python(ForwardKernel(spec(), mask).ring()); };
  CHECK(text(packed(256)) != text(packed(300)));
  std::string const any = text(packed(256).for_any_documents());
  CHECK(any == text(packed(300).for_any_documents()));
  CHECK(any.find("assert mask_fingerprint == \"" + packed(3).for_any_documents().fingerprint("mask_ranges") + "\"") !=
        std::string::npos);
  // Tables are those of the documents; only what a kernel may skip is wider.
  CHECK(packed(300).for_any_documents().ranges(1, 1) == packed(300).ranges(1, 1));
  RowRange const rows{0, 128};
  CHECK(packed(256).cover(false, rows, 0).by_any.empty());
  CHECK(packed(256).for_any_documents().cover(false, rows, 0).by_any == RowRange{0, 256});
  CHECK(!packed(256).for_any_documents().cover(true, {128, 256}, 0).full({0, 128}));
  CHECK_THROWS_AS(sharded_mask(causal(), Contiguous{}, 2, 256, 256).for_any_documents(), UnsupportedError);
}

TEST_CASE("a kernel for documents inside others skips by these and masks all that it computes") {
  RingMask const known = packed(256, Mask{}), inside = known.for_any_documents(true);
  RowRange const rows{0, 128}, keys{0, 128};
  // Rank 0 holds the first document, rank 1 the other one.
  CHECK(inside.cover(false, rows, 0).by_any.empty());
  CHECK(inside.cover(true, rows, 0).by_any == RowRange{0, 256});
  CHECK(known.cover(true, rows, 0).full(keys));
  CHECK(!inside.cover(true, rows, 0).full(keys));
}

TEST_CASE("a kernel without a table has no fingerprint") {
  std::string const text = to_python(ForwardKernel(spec(), sharded_mask(Mask{}, Contiguous{}, 2, 256, 256)).ring());
  CHECK(text.find("fingerprint") == std::string::npos);
}

}  // namespace annulus::nki
