// Every rule that AttentionRules visits, changed alone, reaches the steps of a pass, those of joint keys and of a cache,
// and the records that ranks compare.

#include <array>
#include <concepts>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/attention/cache/cached_attention.hpp"
#include "annulus/attention/ring_attention.hpp"
#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/self.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "attention/refused_call.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

/// The visited rules, with their values as text.
std::vector<std::pair<std::string, std::string>> visited(AttentionRules const& rules) {
  std::vector<std::pair<std::string, std::string>> found;
  rules.visit([&](std::string_view name, auto const& value) {
    if constexpr (std::same_as<std::remove_cvref_t<decltype(value)>, std::optional<Index>>)
      found.emplace_back(name, value ? std::to_string(*value) : "unset");
    else
      found.emplace_back(name, std::to_string(value));
  });
  return found;
}

/// Names of the rules that are visited with different values.
std::vector<std::string> differences(AttentionRules const& one, AttentionRules const& other) {
  auto const a = visited(one), b = visited(other);
  std::vector<std::string> names;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) names.push_back(a[i].first);
  return names;
}

/// Options without the rule, and with it; empty if options of this type have no such rule. A new rule needs a line.
template <class AnyOptions>
std::optional<std::array<AnyOptions, 2>> options_of(std::string_view name) {
  std::array<AnyOptions, 2> both{};
  AnyOptions &before = both[0], &changed = both[1];
  if (name == "mask.causal") {
    changed.mask.causal = true;
  } else if (name == "mask.window.left") {
    changed.mask.window.left = 2;
  } else if (name == "mask.window.right") {
    changed.mask.window.right = 1;
  } else if (name == "mask.sink_tokens") {
    changed.mask.sink_tokens = 1;
  } else if (name == "mask.chunk") {
    changed.mask.chunk = 2;
  } else if (name == "block mask") {
    changed.block_mask = BlockMask(8, 8, 1, {true});
  } else if (name == "softmax_scale") {
    changed.softmax_scale = 0.25;
  } else if (name == "logit_softcap") {
    changed.logit_softcap = 2;
  } else if (name == "dropout.probability") {
    changed.dropout.probability = 0.5;
  } else if (name == "dropout.seed") {
    changed.dropout.seed = 7;
  } else if constexpr (requires { changed.query_offset, changed.reproducible; }) {
    before.reproducible = name == "reproducible_leaf";
    changed.reproducible = before.reproducible || name == "reproducible";
    if (name == "query_offset")
      changed.query_offset = 3;
    else if (name == "reproducible_leaf")
      changed.reproducible_leaf = 2;
    else if (name != "reproducible")
      throw std::logic_error("no options for the rule " + std::string(name));
  } else {
    return {};
  }
  return both;
}

/// Calls function(name, options before, options changed) for each rule that the options have.
template <class AnyOptions>
void for_each_rule(auto const& function) {
  for (auto const& [name, value] : visited({})) {
    CAPTURE(name);
    if (auto const options = options_of<AnyOptions>(name)) {
      CHECK(differences(rules_of((*options)[0]), rules_of((*options)[1])).front() == name);
      function(name, (*options)[0], (*options)[1]);
    }
  }
}

/// The reference backend, which keeps the rules of its steps.
class WatchingBackend : public ReferenceBackend {
 public:
  template <class T, class Predicate>
  void fold(Step<T, Predicate, HostMemory> const& step, auto const& operands, auto const& state) {
    seen.push_back(step.rules);
    ReferenceBackend::fold(step, operands, state);
  }
  template <class T, class Predicate>
  void add_gradients(Step<T, Predicate, HostMemory> const& step, auto const& operands, auto const& backward,
                     auto const& gradients) {
    seen.push_back(step.rules);
    ReferenceBackend::add_gradients(step, operands, backward, gradients);
  }

  std::vector<AttentionRules> seen;
};

Tensor halves(Index count) {
  Tensor tensor(1, count, 1, 2);
  tensor.setConstant(0.5f);
  return tensor;
}

/// The rules of all steps of a forward and a backward pass.
std::vector<AttentionRules> rules_of_steps(Options const& options, Operands<float> const& operands) {
  SelfRing ring;
  WatchingBackend backend;
  Tensor const x = halves(4);
  RingAttention attention(ring, backend, options);
  auto const forward = attention.forward(x, x, x, operands);
  attention.backward(x, forward, x, x, x, operands);
  return backend.seen;
}

/// The rules as steps have them, whose scale and offset are set.
AttentionRules in_steps(AttentionRules rules, Index query_offset) {
  rules.softmax_scale = rules.scale(2);
  rules.query_offset = query_offset;
  return rules;
}

template <class AnyOptions>
AttentionRules in_steps(AnyOptions const& options) {
  AttentionRules const rules = rules_of(options);
  return in_steps(rules, rules.query_offset.value_or(0));
}

/// The texts of the errors of both ranks, of which only one has the changed options.
template <class AnyOptions>
std::vector<std::string> disagreement(AnyOptions const& before, AnyOptions const& changed, auto const& call) {
  return run_ring(2, [&](SimulatedRing& ring) {
    ReferenceBackend backend;
    return attempt([&] { call(ring, backend, ring.rank() == 0 ? before : changed); }).text;
  });
}

}  // namespace

TEST_CASE("every rule reaches the steps of a pass and the record of the call", "[attention]") {
  // Fails to compile when a rule is added, which is then visited, and named in options_of() above.
  [[maybe_unused]] auto const& [mask, blocks, scale, softcap, dropout, offset, reproducible, leaf] = AttentionRules{};
  CHECK(visited({}).size() == 13);
  for_each_rule<Options>([](std::string const& name, Options const& before, Options const& changed) {
    for (AttentionRules const& seen : rules_of_steps(changed, {})) CHECK(seen == in_steps(changed));
    auto const call = [](SimulatedRing& ring, ReferenceBackend& backend, Options const& options) {
      RingAttention(ring, backend, options).forward(halves(2), halves(2), halves(2));
    };
    for (std::string const& text : disagreement(before, changed, call))
      CHECK_THAT(text, Catch::Matchers::ContainsSubstring("different " + name + ": "));
  });
}

TEST_CASE("every rule but those by position reaches joint keys", "[attention]") {
  Tensor const joint = halves(3);
  std::vector<std::string> by_position;
  for_each_rule<Options>([&](std::string const& name, Options const& before, Options const& changed) {
    bool const applies =
        !differences(rules_of(before).without_positions(), rules_of(changed).without_positions()).empty();
    if (!applies) by_position.push_back(name);
    if (changed.dropout.active() || changed.reproducible) return;  // refused with joint keys
    std::size_t steps = 0;
    for (AttentionRules const& seen : rules_of_steps(changed, {.joint_keys = joint, .joint_values = joint}))
      steps += seen == in_steps(changed).without_positions() ? 1 : 0;
    CHECK(steps >= 2);
  });
  CHECK(by_position == std::vector<std::string>{"mask.causal", "mask.window.left", "mask.window.right",
                                                "mask.sink_tokens", "mask.chunk", "block mask", "dropout.probability",
                                                "dropout.seed", "query_offset", "reproducible", "reproducible_leaf"});
}

TEST_CASE("every rule of a cache reaches its steps and the record of its calls", "[attention]") {
  CacheShape const shape{.kv_heads = 1, .head_dim = 2, .value_dim = 2, .page_rows = 8};
  for_each_rule<CachedOptions>([&](std::string const& name, CachedOptions const& before, CachedOptions const& changed) {
    SelfRing self;
    WatchingBackend watching;
    KvCache<float, WatchingBackend> cache(self, watching, shape);
    std::array const sequence{cache.create()};
    CachedAttention attention(self, watching, changed);
    attention.append(cache, sequence, halves(4), halves(4));
    attention.decode(cache, sequence, halves(1));
    attention.prefill(cache, sequence, halves(2));
    REQUIRE(watching.seen.size() == 2);
    CHECK(watching.seen[0] == in_steps(rules_of(changed), 3));
    CHECK(watching.seen[1] == in_steps(rules_of(changed), 2));
    auto const call = [&](SimulatedRing& ring, ReferenceBackend& backend, CachedOptions const& options) {
      KvCache<float, ReferenceBackend> own(ring, backend, shape);
      std::array const all{own.create()};
      CachedAttention(ring, backend, options).append(own, all, halves(2), halves(2));
    };
    for (std::string const& text : disagreement(before, changed, call))
      CHECK_THAT(text, Catch::Matchers::ContainsSubstring("different " + name + ": "));
  });
}
