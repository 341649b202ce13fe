// Invalid calls. All ranks refuse each of them with the same error, which has the values, whether all ranks made the
// call or one of them; nothing is written, and the ring can be used again.

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attention/refused_call.hpp"
#include "support/catch.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr Index b = Call::batch, rows = Call::rows, heads = Call::query_heads, kv = Call::kv_heads,
                dim = Call::head_dim, value = Call::value_dim;

std::vector<BadCall> wrong_operands() {
  return {
      shape("k has another batch", {"k has batch 3", "q has 2"},
            [](Call& c) {
              c.k = c.varied<4>({3, rows, kv, dim});
            }),
      shape("k has another head_dim", {"k has head_dim 5", "q has 4"},
            [](Call& c) {
              c.k = c.varied<4>({b, rows, kv, 5});
            }),
      shape("v has another batch", {"v has extents [1, 3, 2, 3]", "expected [2, 3, 2, 3]"},
            [](Call& c) {
              c.v = c.varied<4>({1, rows, kv, value});
            }),
      shape("v has another length", {"v has extents [2, 4, 2, 3]", "expected [2, 3, 2, 3]"},
            [](Call& c) {
              c.v = c.varied<4>({b, 4, kv, value});
            }),
      shape("v has other heads", {"v has extents [2, 3, 4, 3]", "expected [2, 3, 2, 3]"},
            [](Call& c) {
              c.v = c.varied<4>({b, rows, 4, value});
            }),
      shape("query heads not a multiple of kv heads", {"q has 4 heads, k has 3", "multiple"},
            [](Call& c) {
              c.k = c.varied<4>({b, rows, 3, dim});
              c.v = c.varied<4>({b, rows, 3, value});
            }),
      shape("q with heads before rows",
            {"q has 3 heads, k has 2", "multiple", "if q has heads before the sequence, pass bhsd(q)"},
            [](Call& c) {
              c.q = c.varied<4>({b, heads, rows, dim});
            }),
      shape("k and v with heads before rows", {"q has 4 heads, k has 3", "multiple", "pass bhsd(k) and bhsd(v)"},
            [](Call& c) {
              c.k = c.varied<4>({b, kv, rows, dim});
              c.v = c.varied<4>({b, kv, rows, value});
            }),
      shape("one query, heads before rows", {"q has 1 heads, k has 3", "multiple", "pass bhsd(q), bhsd(k) and bhsd(v)"},
            [](Call& c) {
              c.q = c.varied<4>({b, heads, 1, dim});
              c.k = c.varied<4>({b, kv, rows, dim});
              c.v = c.varied<4>({b, kv, rows, value});
            }),
      shape("v with heads before rows", {"v has extents [2, 2, 3, 3]", "expected [2, 3, 2, 3]", "pass bhsd(v)"},
            [](Call& c) {
              c.v = c.varied<4>({b, kv, rows, value});
            }),
      {"causal, heads before rows",
       "UnsupportedError",
       {"query_offset is unset", "pass bhsd(x)"},
       [](Call& c) {
         c.options.mask = causal();
         c.q = c.varied<4>({b, heads, rows, dim});
         c.k = c.varied<4>({b, kv, rows, dim});
         c.v = c.varied<4>({b, kv, rows, value});
         c.output = c.tensor<float, 4>({b, heads, rows, value}, Call::untouched);
         c.lse = c.tensor<float, 3>({b, rows, heads}, Call::untouched);
       },
       false},
      shape("more kv heads than query heads", {"q has 4 heads, k has 8"},
            [](Call& c) {
              c.k = c.varied<4>({b, rows, 8, dim});
            }),
      shape("no query heads", {"q has extents [2, 3, 0, 4]", "at least one head"},
            [](Call& c) {
              c.q = c.varied<4>({b, rows, 0, dim});
            }),
      shape("no kv heads", {"[2, 3, 0, 4]", "at least one head"},
            [](Call& c) {
              c.k = c.varied<4>({b, rows, 0, dim});
            }),
      shape("no head_dim", {"q has extents [2, 3, 4, 0]", "one dim"},
            [](Call& c) {
              c.q = c.varied<4>({b, rows, heads, 0});
            }),
      shape("no value_dim", {"[2, 3, 2, 0]", "one dim"},
            [](Call& c) {
              c.v = c.varied<4>({b, rows, kv, 0});
            }),
      shape("q without data", {"q of extents [2, 3, 4, 4] has no data"},
            [](Call& c) {
              c.q = {nullptr, c.q.extents()};
            }),
      shape("k without data", {"k of extents [2, 3, 2, 4] has no data"},
            [](Call& c) {
              c.k = {nullptr, c.k.extents()};
            }),
      shape("v without data", {"v of extents [2, 3, 2, 3] has no data"},
            [](Call& c) {
              c.v = {nullptr, c.v.extents()};
            }),
      shape("a negative extent", {"q has extents [2, -3, 4, 4]", "negative"},
            [](Call& c) {
              c.q = {c.q.data(), {b, -3, heads, dim}};
            }),
      shape("two negative extents", {"k has extents [-2, -3, 2, 4]", "negative"},
            [](Call& c) {
              c.k = {c.k.data(), {-2, -3, kv, dim}};
            }),
      shape("output of another length", {"output has extents [2, 2, 4, 3]", "expected [2, 3, 4, 3]"},
            [](Call& c) { c.output = c.output.slice(1, 0, 2); }),
      shape("output shaped as q", {"output has extents [2, 3, 4, 4]", "value_dim"},
            [](Call& c) { c.output = c.tensor<float, 4>(c.q.extents(), Call::untouched); }),
      shape("output without data", {"output of extents [2, 3, 4, 3] has no data"},
            [](Call& c) {
              c.output = {nullptr, c.output.extents()};
            }),
      shape("lse with rows before heads", {"lse has extents [2, 3, 4]", "expected [2, 4, 3]"},
            [](Call& c) {
              c.lse = c.lse.permuted({0, 2, 1});
            }),
  };
}

std::vector<BadCall> wrong_options() {
  auto const scale = [](double x) { return [x](Call& c) { c.options.softmax_scale = x; }; };
  auto const softcap = [](double x) { return [x](Call& c) { c.options.logit_softcap = x; }; };
  auto const dropout = [](double x) { return [x](Call& c) { c.options.dropout.probability = x; }; };
  auto const offset = [](Index x) { return [x](Call& c) { c.options.query_offset = x; }; };
  return {
      together(unsupported("leaves of no position", {"reproducible_leaf is 0; accepted: 1 or more"},
                           [](Call& c) { c.options.reproducible = true, c.options.reproducible_leaf = 0; })),
      unsupported("a NaN scale", {"softmax_scale is", "nan", "finite"}, scale(std::nan(""))),
      unsupported("an infinite scale", {"softmax_scale is inf"}, scale(infinity)),
      unsupported("a scale beyond single precision", {"softmax_scale is -1.6069380442589903e+60", "4 bytes"},
                  scale(-std::ldexp(1.0, 200))),
      unsupported("a negative cap", {"logit_softcap is -2"}, softcap(-2)),
      unsupported("a NaN cap", {"logit_softcap is", "nan"}, softcap(std::nan(""))),
      unsupported("an infinite cap", {"logit_softcap is inf"}, softcap(infinity)),
      unsupported("a cap beyond single precision", {"logit_softcap is 1.6069380442589903e+60"},
                  softcap(std::ldexp(1.0, 200))),
      unsupported("a cap above the largest one",
                  {"logit_softcap is 2.5353012004564594e+30", "1.1754943508222875e-38 to 2.5353012004564588e+30"},
                  softcap(std::nextafter(std::ldexp(1.0, 101), infinity))),
      unsupported("a denormal cap", {"logit_softcap is 1.17549435082228", "1.1754943508222875e-38"},
                  softcap(std::nextafter(std::ldexp(1.0, -126), 0.0))),
      unsupported("a cap that is 0 in single precision", {"logit_softcap is 6.2230152778611417e-61"},
                  softcap(std::ldexp(1.0, -200))),
      unsupported("a negative dropout", {"dropout probability is -0.25"}, dropout(-0.25)),
      unsupported("a dropout of one", {"dropout probability is 1;"}, dropout(1)),
      unsupported("dropout above one", {"dropout probability is 1.5"}, dropout(1.5)),
      unsupported("a NaN dropout", {"dropout probability is", "nan"}, dropout(std::nan(""))),
      unsupported("negative sink tokens", {"sink_tokens is -1"}, [](Call& c) { c.options.mask.sink_tokens = -1; }),
      unsupported("a negative chunk", {"chunk is -4"}, [](Call& c) { c.options.mask.chunk = -4; }),
      unsupported("an offset beyond all positions", {"query_offset is 1152921504606846976"}, offset(Index{1} << 60)),
      unsupported("the lowest offset", {"query_offset is -9223372036854775808"},
                  offset(std::numeric_limits<Index>::min())),
      together(unsupported("dropout beyond its positions", {"dropout over positions up to 85899", "below 4294967296"},
                           [](Call& c) {
                             c.options.query_offset = Index{8589934592};
                             c.options.dropout.probability = 0.5;
                           })),
  };
}

std::vector<BadCall> wrong_optional_operands() {
  return {
      shape("bias of another batch", {"bias has extents [3, 4, 3,", "[2 or 1, 4 or 1, 3, global_keys]"},
            [](Call& c) {
              c.operands.bias = c.varied<4>({3, heads, rows, c.global_rows()});
            }),
      shape("bias of other heads", {"bias has extents [1, 2, 3,"},
            [](Call& c) {
              c.operands.bias = c.varied<4>({1, kv, rows, c.global_rows()});
            }),
      shape("bias over other queries", {"bias has extents [2, 4, 5,"},
            [](Call& c) {
              c.operands.bias = c.varied<4>({b, heads, 5, c.global_rows()});
            }),
      shape("bias without data", {"bias of extents", "no data"},
            [](Call& c) {
              c.operands.bias = TensorView<float, 4>(nullptr, {1, 1, rows, c.global_rows()});
            }),
      together(shape("bias over too many keys", {"bias covers 100 keys", "global_keys ="},
                     [](Call& c) { c.operands.bias = c.bias_of(100); })),
      together(shape("bias over no keys", {"bias covers 0 keys"}, [](Call& c) { c.operands.bias = c.bias_of(0); })),
      shape("mask of another batch", {"mask has extents [3, 1, 3,"},
            [](Call& c) {
              c.operands.mask = c.tensor<bool, 4>({3, 1, rows, c.global_rows()}, true);
            }),
      shape("mask over other queries", {"mask has extents [1, 1, 4,"},
            [](Call& c) {
              c.operands.mask = c.tensor<bool, 4>({1, 1, 4, c.global_rows()}, true);
            }),
      together(shape("mask over other keys", {"mask covers 7 keys"}, [](Call& c) { c.operands.mask = c.mask_of(7); })),
      shape("query document ids alone", {"query_documents are given without key_documents"},
            [](Call& c) { c.operands.query_documents = c.ids(b, rows); }),
      shape("key document ids alone", {"key_documents are given without query_documents"},
            [](Call& c) { c.operands.key_documents = c.ids(b, rows); }),
      shape("query document ids of the whole sequence", {"query_documents has extents [2, 33]", "expected [2, 3]"},
            [](Call& c) {
              c.operands.query_documents = c.ids(b, 33);
              c.operands.key_documents = c.ids(b, rows);
            }),
      shape("key document ids of another batch", {"key_documents has extents [1, 3]", "expected [2, 3]"},
            [](Call& c) {
              c.operands.query_documents = c.ids(b, rows);
              c.operands.key_documents = c.ids(1, rows);
            }),
      shape("sink logits of the kv heads", {"sinks has extents [2, 1]", "expected [4, 1]"},
            [](Call& c) { c.operands.sinks = c.varied<1>({kv}); }),
      shape("sink logits of other heads", {"sinks has extents [3, 2]", "expected [4, 2]"},
            [](Call& c) {
              c.operands.sinks = c.varied<2>({3, 2});
            }),
      shape("sink logits without data", {"sinks of extents [4, 1] has no data"},
            [](Call& c) { c.operands.sinks = TensorView<float, 1>(nullptr, {heads}); }),
      unsupported("bias_gradient without bias", {"bias_gradient is set but no bias is given"},
                  [](Call& c) { c.operands.bias_gradient = true; }),
      together(unsupported("queries rotate with a bias", {"rotation of queries with a bias", "Rotation::keys"},
                           [](Call& c) {
                             c.operands.bias = c.bias_of(c.global_rows());
                             c.options.rotation = Rotation::queries;
                           })),
      together(unsupported("queries rotate with a boolean mask", {"rotation of queries with a bias or boolean mask"},
                           [](Call& c) {
                             c.operands.mask = c.mask_of(c.global_rows());
                             c.options.rotation = Rotation::queries;
                           })),
  };
}

std::vector<BadCall> wrong_backward_calls() {
  auto const backward = [](Spoil const& spoil) {
    return [spoil](Call& c) {
      c.pass = Pass::backward;
      spoil(c);
    };
  };
  // All other gradients are valid, so that only the named one can be refused.
  std::vector<BadCall> result{
      shape("dout shaped as q", {"dout has extents [2, 3, 4, 4]", "expected [2, 3, 4, 3]"},
            [](Call& c) { c.dout = c.varied<4>(c.q.extents()); }),
      shape("dout without data", {"dout of extents [2, 3, 4, 3] has no data"},
            [](Call& c) {
              c.dout = {nullptr, c.dout.extents()};
            }),
      shape("output of another forward pass", {"output has extents [2, 3, 4, 2]"},
            [](Call& c) { c.output = c.output.slice(3, 0, 2); }),
      shape("lse of other rows", {"lse has extents [2, 4, 2]"}, [](Call& c) { c.lse = c.lse.slice(2, 0, 2); }),
      shape("dq of other rows", {"dq has extents [2, 2, 4, 4]", "the extents of q"},
            [](Call& c) { c.gradients.dq = c.gradients.dq.slice(1, 0, 2); }),
      shape("dk shaped as v", {"dk has extents [2, 3, 2, 3]", "the extents of k"},
            [](Call& c) { c.gradients.dk = c.gradients.dv; }),
      shape("dv not given", {"dv has extents [0, 0, 0, 0]"}, [](Call& c) { c.gradients.dv = {}; }),
      shape("dbias not given", {"dbias has extents [0, 0, 0, 0]", "the extents of the bias"},
            [](Call& c) {
              c.operands.bias = c.bias_of(c.global_rows());
              c.operands.bias_gradient = true;
            }),
      shape("dbias summed over the batch", {"dbias has extents [1, 4, 3,"},
            [](Call& c) {
              c.operands.bias = c.bias_of(c.global_rows());
              c.operands.bias_gradient = true;
              c.gradients.dbias = c.varied<4>({1, heads, rows, c.global_rows()});
            }),
      shape("dsinks not given", {"dsinks has extents [0, 0]", "expected [4, 1]"},
            [](Call& c) { c.operands.sinks = c.varied<1>({heads}); }),
      shape("dsinks of one sink logit per head for two", {"dsinks has extents [4, 1]", "expected [4, 2]"},
            [](Call& c) {
              c.operands.sinks = c.varied<2>({heads, 2});
              c.gradients.dsinks = c.varied<2>({heads, 1});
            }),
  };
  for (BadCall& bad : result) bad.spoil = backward(bad.spoil);
  return result;
}

/// Extents and strides whose products overflow an Index. Their memory is a few bytes, which are not read.
std::vector<BadCall> uncountable_operands() {
  constexpr Index huge = Index{1} << 32;
  auto const backward = [](Spoil const& spoil) {
    return [spoil](Call& c) {
      c.pass = Pass::backward;
      spoil(c);
    };
  };
  std::string const count = "accepted: fewer than 9223372036854775807 bytes";
  std::vector<BadCall> result{
      shape("q of 2^32 rows and 2^32 dims", {"q has extents [2, 4294967296, 4, 4294967296] of 4 bytes", count},
            [](Call& c) {
              c.q = {c.q.data(), {b, huge, heads, huge}};
            }),
      shape("q of 2^32 batch items and 2^32 heads", {"q has extents [4294967296, 3, 4294967296, 4]", count},
            [](Call& c) {
              c.q = {c.q.data(), {huge, rows, huge, dim}};
            }),
      shape("q of 2^62 elements, too many bytes", {"q has extents [1, 2305843009213693952, 1, 2]", count},
            [](Call& c) {
              c.q = {c.q.data(), {1, Index{1} << 61, 1, 2}};
            }),
      shape("no rows, but too many batch items and heads", {"q has extents [4294967296, 0, 4294967296, 4]", count},
            [](Call& c) {
              c.q = {c.q.data(), {huge, 0, huge, dim}};
            }),
      shape("k of 2^32 rows and heads", {"k has extents [2, 4294967296, 4294967296, 4] of 4 bytes", count},
            [](Call& c) {
              c.k = {c.k.data(), {b, huge, huge, dim}};
            }),
      shape("v of 2^32 rows and dims", {"v has extents [2, 4294967296, 2, 4294967296] of 4 bytes", count},
            [](Call& c) {
              c.v = {c.v.data(), {b, huge, kv, huge}};
            }),
      shape("strides too large", {"q of extents [2, 3, 4, 4] has strides [4611686018427387904, 16, 4, 1]"},
            [](Call& c) {
              c.q = {c.q.data(), c.q.extents(), {Index{1} << 62, 16, 4, 1}};
            }),
      shape("negative strides too large", {"k of extents [2, 3, 2, 4] has strides [24, -9223372036854775808, 4, 1]"},
            [](Call& c) {
              c.k = {c.k.data(), c.k.extents(), {24, std::numeric_limits<Index>::min(), 4, 1}};
            }),
      shape("an output of more bytes than all operands",
            {"output has extents [1, 2199023255552, 1, 1099511627776]", count},
            [](Call& c) {
              c.q = {c.q.data(), {1, Index{1} << 41, 1, 1}};
              c.k = {nullptr, {1, 0, 1, 1}};
              c.v = {nullptr, {1, 0, 1, Index{1} << 40}};
            }),
      shape("a bias over 2^62 keys", {"bias has extents [1, 1, 3, 4611686018427387904] of 4 bytes", count},
            [](Call& c) {
              c.operands.bias = TensorView<float const, 4>(c.q.data(), {1, 1, rows, Index{1} << 62});
            }),
      shape("a mask over 2^62 keys", {"mask has extents [2, 4, 3, 4611686018427387904] of 1 bytes", count},
            [](Call& c) {
              c.operands.mask =
                  TensorView<bool const, 4>(c.tensor<bool, 1>({1}).data(), {b, heads, rows, Index{1} << 62});
            }),
      shape("document ids of 2^32 by 2^32", {"query_documents has extents [4294967296, 4294967296] of 4 bytes", count},
            [](Call& c) {
              c.operands.query_documents = TensorView<std::int32_t const, 2>(c.ids(1, 1).data(), {huge, huge});
              c.operands.key_documents = c.ids(b, rows);
            }),
      shape("2^62 sink logits", {"sinks has extents [4, 4611686018427387904] of 4 bytes", count},
            [](Call& c) {
              c.operands.sinks = TensorView<float const, 2>(c.q.data(), {heads, Index{1} << 62});
            }),
      shape("dout of 2^32 rows and dims", {"dout has extents [2, 4294967296, 4, 4294967296] of 4 bytes", count},
            backward([](Call& c) {
              c.dout = {c.dout.data(), {b, huge, heads, huge}};
            })),
      shape("output without data, of 2^32 rows and dims", {"output has extents [2, 4294967296, 4, 4294967296]", count},
            [](Call& c) {
              c.output = {nullptr, {b, huge, heads, huge}};
            }),
      shape("lse without data, of 2^32 heads and rows", {"lse has extents [2, 4294967296, 4294967296]", count},
            [](Call& c) {
              c.lse = {nullptr, {b, huge, huge}};
            }),
  };
  return result;
}

/// Lengths or maps that do not fit the sharding, found when the lengths of all ranks are known.
std::vector<BadCall> wrong_shardings() {
  auto const longer_on_rank_0 = [](Sharding const& sharding) {
    return [sharding](Call& c) {
      c.options.sharding = sharding;
      if (c.rank > 0 || c.ranks == 1) return;
      c.q = c.varied<4>({b, rows + 2, heads, dim});
      c.output = c.tensor<float, 4>({b, rows + 2, heads, value}, Call::untouched);
      c.lse = c.tensor<float, 3>({b, heads, rows + 2}, Call::untouched);
    };
  };
  auto const map = [](std::function<void(std::vector<std::vector<Index>>&)> const& change) {
    return [change](Call& c) {
      std::vector<std::vector<Index>> positions(static_cast<std::size_t>(c.ranks));
      for (Index p = 0; p < c.global_rows(); ++p) positions[static_cast<std::size_t>(p / rows)].push_back(p);
      change(positions);
      c.options.sharding = ExplicitMap{.queries = positions, .keys = {}};
    };
  };
  return {
      together(shape("zigzag of other lengths", {"zigzag sharding of", "queries", "the ranks hold [5,"},
                     longer_on_rank_0(Zigzag{}))),
      together(shape("stripes of other lengths", {"striped sharding of", "the ranks hold [5,"},
                     longer_on_rank_0(Striped{}))),
      together(shape("a position owned twice", {"position 1 is owned twice"}, map([](auto& p) { p[0][2] = 1; }))),
      together(shape("a position outside", {"position 1000 is outside [0,"}, map([](auto& p) { p[0][2] = 1000; }))),
      together(shape("a negative position", {"position -1 is outside [0,"}, map([](auto& p) { p[0][2] = -1; }))),
      together(shape("a map of other ranks", {"ranks, the ring has"}, map([](auto& p) { p.emplace_back(); }))),
      together(shape("a map of another length", {"is outside [0,"},
                     map([](auto& p) { p.back().push_back(p.back().back() + 1); }))),
  };
}

}  // namespace

TEST_CASE("operands with inconsistent extents are refused", "[attention]") {
  for (BadCall const& bad : wrong_operands()) check_refused(bad);
}

TEST_CASE("another axis order is suggested only where the extents fit it", "[attention]") {
  using annulus::detail::axis_order_hint;
  CHECK(axis_order_hint({1, 100, 4, 64}, {1, 100, 3, 64}).empty());
  CHECK(axis_order_hint({1, 100, 4, 64}, {1, 300, 3, 64}).empty());
  CHECK(axis_order_hint({1, 300, 4, 64}, {1, 100, 3, 64}).empty());
  CHECK(axis_order_hint({1, 8, 100, 64}, {1, 0, 300, 64}).empty());
  CHECK(axis_order_hint({1, 8, 100, 64}, {1, 2, 300, 64}) ==
        "; if they have heads before the sequence, pass bhsd(q), bhsd(k) and bhsd(v)");
}

TEST_CASE("operands whose sizes or offsets overflow are refused", "[attention]") {
  for (BadCall const& bad : uncountable_operands()) check_refused(bad);
}

TEST_CASE("invalid options are refused", "[attention]") {
  for (BadCall const& bad : wrong_options()) check_refused(bad);
}

TEST_CASE("optional operands with inconsistent extents are refused", "[attention][C20]") {
  for (BadCall const& bad : wrong_optional_operands()) check_refused(bad);
}

TEST_CASE("operands of the backward pass with inconsistent extents are refused", "[attention]") {
  for (BadCall const& bad : wrong_backward_calls()) check_refused(bad);
}

TEST_CASE("lengths that do not fit the sharding are refused", "[attention]") {
  for (BadCall const& bad : wrong_shardings()) {
    // On one rank zigzag and striped shardings accept any length.
    if (bad.name.find("other lengths") == std::string::npos) {
      check_refused(bad);
      continue;
    }
    for (int ranks = 2; ranks <= 4; ++ranks)
      for (Outcome const& outcome : outcomes_of(
               ranks, bad.spoil, [](Rank) { return true; }, true)) {
        CAPTURE(bad.name, ranks, outcome.text);
        CHECK(outcome.type == bad.type);
        for (std::string const& part : bad.parts) CHECK_THAT(outcome.text, Catch::Matchers::ContainsSubstring(part));
        CHECK((outcome.untouched && outcome.good_call_works));
      }
  }
}
