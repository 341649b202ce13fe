#pragma once
// Attention rules: what a call computes, as one value that travels from the options through the plan to the kernels.

#include <cmath>
#include <optional>

#include "annulus/core/dropout.hpp"
#include "annulus/mask/block_mask.hpp"
#include "annulus/mask/mask.hpp"

namespace annulus {

/// Rules of a call: logit = softcap(q.k * softmax_scale) + bias for visible pairs, then softmax with sink logits, then
/// dropout. A new rule is a member here and in Options, with its line in visit() and rules_of(), its validation
/// (attention/validate.hpp) and the kernels; all that lies between passes the whole value on, also to joint keys and, as
/// soon as CachedOptions has the member, to calls on a cache.
struct AttentionRules {
  Mask mask{};                            ///< default: everything is visible
  BlockMask block_mask{};                 ///< default: no block is hidden
  std::optional<double> softmax_scale{};  ///< set in plans and steps; in options, unset means 1 / sqrt(head_dim)
  double logit_softcap = 0;               ///< c > 0: c * tanh(x / c); 0: no cap
  Dropout dropout{};                      ///< default: none
  std::optional<Index> query_offset{};    ///< global position of query 0; set in plans and steps
  bool reproducible = false;              ///< the same bits for any number of ranks
  /// Positions of a leaf, the unit that partial results of a reproducible call are computed and joined in.
  Index reproducible_leaf = 1024;

  bool operator==(AttentionRules const&) const = default;

  /// softmax_scale, or its default for heads of `head_dim`.
  double scale(Index head_dim) const { return softmax_scale.value_or(1 / std::sqrt(static_cast<double>(head_dim))); }

  /// The same rules for keys that have no position, such as joint keys: every rule, except those by position and those
  /// that are refused with such keys.
  AttentionRules without_positions() const {
    AttentionRules rules = *this;
    rules.mask = {};
    rules.block_mask = {};
    rules.dropout = {};
    rules.query_offset = 0;
    rules.reproducible = false;
    return rules;
  }

  /// Calls visit(name, value) for each rule. Values are bool, Index, double, std::uint64_t or std::optional<Index>;
  /// rules that mean the same have equal values.
  template <class Visit>
  void visit(Visit&& visit) const {
    auto const limit = [](Index reach) { return reach < unbounded ? std::optional(reach) : std::nullopt; };
    visit("mask.causal", mask.causal);
    visit("mask.window.left", limit(mask.window.reach_left()));
    visit("mask.window.right", limit(mask.window.reach_right()));
    visit("mask.sink_tokens", mask.sink_tokens);
    visit("mask.chunk", mask.chunk);
    visit("block mask", block_mask.fingerprint());
    visit("softmax_scale", softmax_scale.value_or(0));
    visit("logit_softcap", logit_softcap);
    visit("dropout.probability", dropout.probability);
    visit("dropout.seed", dropout.seed);
    visit("query_offset", query_offset);
    visit("reproducible", reproducible);
    visit("reproducible_leaf", reproducible ? reproducible_leaf : Index{0});
  }
};

/// The rules among options of any kind, Options or CachedOptions; a rule that they lack has its default.
template <class AnyOptions>
AttentionRules rules_of(AnyOptions const& options) {
  AttentionRules rules{.mask = options.mask,
                       .block_mask = options.block_mask,
                       .softmax_scale = options.softmax_scale,
                       .logit_softcap = options.logit_softcap,
                       .dropout = options.dropout};
  if constexpr (requires { options.query_offset; }) rules.query_offset = options.query_offset;
  if constexpr (requires { options.reproducible; }) {
    rules.reproducible = options.reproducible;
    rules.reproducible_leaf = options.reproducible_leaf;
  }
  return rules;
}

}  // namespace annulus
