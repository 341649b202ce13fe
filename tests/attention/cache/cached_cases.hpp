#pragma once
// Cases of random calls on a cache: every kind of mask, sharding and merge.

#include <annulus/annulus.hpp>
#include <annulus/attention/cache/cached_attention.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace annulus_test {

using annulus::Index;

/// Extents and options of a run.
struct CachedCase {
  annulus::CacheShape shape{.kv_heads = 2, .head_dim = 6, .value_dim = 5, .pages = 12, .page_rows = 4};
  Index group = 2;  ///< query heads of a kv head
  annulus::CachedOptions options{};
  bool sinks = false;
  bool pairs = false;  ///< decode with a bias and a boolean mask
  int calls = 100;
  std::uint32_t seed = 1;
  double tolerance = 1e-5;
  bool few_queries = false;  ///< no call has more than three, as dense attention is slow
};

/// Cases of every kind of mask, sharding and merge.
inline std::vector<CachedCase> cached_cases() {
  using annulus::MergeMethod;
  std::vector<CachedCase> cases;
  auto const add = [&](annulus::CachedOptions const& options, Index page_rows, bool sinks = false) {
    CachedCase one{.options = options, .sinks = sinks, .seed = static_cast<std::uint32_t>(cases.size() + 1)};
    one.shape.page_rows = page_rows;
    one.shape.pages = page_rows == 1 ? 40 : 12;
    cases.push_back(one);
  };
  add({}, 4);
  add({.mask = annulus::causal(), .merge = MergeMethod::tree}, 4, true);
  add({.mask = annulus::causal(), .merge = MergeMethod::gather, .checked = true}, 1);
  add({.mask = annulus::sliding_window(6, 1), .sharding = annulus::Striped{}, .merge = MergeMethod::tree}, 5, true);
  add({.mask = {.causal = true, .window = {.left = 5}, .sink_tokens = 3}, .sharding = annulus::Zigzag{}}, 7);
  add({.mask = {.causal = true, .chunk = 9}, .softmax_scale = -0.7, .logit_softcap = 1.5, .checked = true}, 16, true);
  add({.mask = annulus::sliding_window(9, 0), .merge = MergeMethod::gather, .checked = true}, 6, true);
  cases.back().pairs = true;
  std::vector<bool> blocks(400 * 300);
  for (std::size_t block = 0; block < blocks.size(); ++block) blocks[block] = block % 300 % 7 != block / 300 % 4;
  add({.mask = annulus::causal(), .block_mask = {3, 4, 300, blocks}, .sharding = annulus::Zigzag{}}, 3, true);
  add({.mask = annulus::causal(), .dropout = {.probability = 0.3, .seed = 11}, .sharding = annulus::Zigzag{}}, 5, true);
  add({.mask = {.window = {.left = 20}}, .dropout = {.probability = 0.6, .seed = 0x123456789}, .checked = true}, 17);
  std::size_t const without_documents = cases.size();
  add({}, 3, true);
  add({.mask = annulus::causal(), .sharding = annulus::Zigzag{}, .merge = MergeMethod::tree}, 5);
  add({.mask = annulus::causal(), .sharding = annulus::Striped{}, .merge = MergeMethod::gather, .checked = true}, 11);
  add({.mask = annulus::sliding_window(11, 2), .dropout = {.probability = 0.2, .seed = 5}, .checked = true}, 1, true);
  cases.back().pairs = true;
  add({.mask = {.causal = true, .sink_tokens = 4, .chunk = 16}, .logit_softcap = 2}, 40);
  for (std::size_t i = without_documents; i < cases.size(); ++i) cases[i].shape.document_ids = true;
  return cases;
}

}  // namespace annulus_test
