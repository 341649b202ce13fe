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
using namespace annulus_test::call_extents;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
using Table = std::vector<Refusal<Call&>>;

Spoil backward(Spoil const& spoil) {
  return [spoil](Call& c) {
    c.pass = Pass::backward;
    spoil(c);
  };
}

TensorView<float, 4> strided(TensorView<float, 4> const& view, auto... strides) {
  return {view.data(), view.extents(), {strides...}};
}

Table wrong_backward_calls() {
  // All other gradients are valid, so that only the named one can be refused.
  Table result{
      {"dout shaped as q", "ShapeError", "dout has extents [2, 3, 4, 4]*expected [2, 3, 4, 3]",
       [](Call& c) { c.dout = c.varied(c.q.extents()); }},
      {"dout without data", "ShapeError", "dout of extents [2, 3, 4, 3] has no data",
       [](Call& c) { c.dout = c.without_data(c.dout); }},
      {"output of another forward pass", "ShapeError", "output has extents [2, 3, 4, 2]",
       [](Call& c) { c.output = c.output.slice(3, 0, 2); }},
      {"lse of other rows", "ShapeError", "lse has extents [2, 4, 2]", [](Call& c) { c.lse = c.lse.slice(2, 0, 2); }},
      {"dq of other rows", "ShapeError", "dq has extents [2, 2, 4, 4]*the extents of q",
       [](Call& c) { c.gradients.dq = c.gradients.dq.slice(1, 0, 2); }},
      {"dk shaped as v", "ShapeError", "dk has extents [2, 3, 2, 3]*the extents of k",
       [](Call& c) { c.gradients.dk = c.gradients.dv; }},
      {"dv not given", "ShapeError", "dv has extents [0, 0, 0, 0]", [](Call& c) { c.gradients.dv = {}; }},
      {"dbias not given", "ShapeError", "dbias has extents [0, 0, 0, 0]*the extents of the bias",
       [](Call& c) { c.give_bias_with_gradient(); }},
      {"dbias summed over the batch", "ShapeError", "dbias has extents [1, 4, 3,",
       [](Call& c) { c.give_bias_with_gradient(), c.gradients.dbias = c.varied(1, heads, rows, c.global_rows()); }},
      {"dsinks not given", "ShapeError", "dsinks has extents [0, 0]*expected [4, 1]",
       [](Call& c) { c.operands.sinks = c.varied(heads); }},
      {"dsinks of one sink logit per head for two", "ShapeError", "dsinks has extents [4, 1]*expected [4, 2]",
       [](Call& c) { c.operands.sinks = c.varied(heads, 2), c.gradients.dsinks = c.varied(heads, 1); }},
  };
  for (auto& row : result) row.call = backward(row.call);
  return result;
}

Spoil longer_on_rank_0(Sharding const& sharding) {
  return [sharding](Call& c) {
    c.options.sharding = sharding;
    if (c.rank > 0 || c.ranks == 1) return;
    c.q = c.varied(b, rows + 2, heads, dim);
    c.output = c.tensor<float, 4>({b, rows + 2, heads, value}, Call::untouched);
    c.lse = c.tensor<float, 3>({b, heads, rows + 2}, Call::untouched);
  };
}

/// The view with stride 0 on axis `a`.
template <std::size_t N>
TensorView<float, N> repeated(TensorView<float, N> const& view, std::size_t a) {
  auto strides = view.strides();
  strides[a] = 0;
  return {view.data(), view.extents(), strides};
}

}  // namespace

TEST_CASE("operands with inconsistent extents are refused", "[attention]") {
  check_refused_on_rings({
      {"k has another batch", "ShapeError", "k has batch 3*q has 2", [](Call& c) { c.k = c.varied(3, rows, kv, dim); }},
      {"k has another head_dim", "ShapeError", "k has head_dim 5*q has 4",
       [](Call& c) { c.k = c.varied(b, rows, kv, 5); }},
      {"v has another batch", "ShapeError", "v has extents [1, 3, 2, 3]*expected [2, 3, 2, 3]",
       [](Call& c) { c.v = c.varied(1, rows, kv, value); }},
      {"v has another length", "ShapeError", "v has extents [2, 4, 2, 3]*expected [2, 3, 2, 3]",
       [](Call& c) { c.v = c.varied(b, 4, kv, value); }},
      {"v has other heads", "ShapeError", "v has extents [2, 3, 4, 3]*expected [2, 3, 2, 3]",
       [](Call& c) { c.v = c.varied(b, rows, 4, value); }},
      {"query heads not a multiple of kv heads", "ShapeError", "q has 4 heads, k has 3*multiple",
       [](Call& c) { c.give_keys(rows, 3); }},
      {"q with heads before rows", "ShapeError",
       "q has 3 heads, k has 2*multiple*if q has heads before the sequence, pass bhsd(q)",
       [](Call& c) { c.q = c.varied(b, heads, rows, dim); }},
      {"k and v with heads before rows", "ShapeError", "q has 4 heads, k has 3*multiple*pass bhsd(k) and bhsd(v)",
       [](Call& c) { c.give_keys(kv, rows); }},
      {"one query, heads before rows", "ShapeError",
       "q has 1 heads, k has 3*multiple*pass bhsd(q), bhsd(k) and bhsd(v)",
       [](Call& c) { c.q = c.varied(b, heads, 1, dim), c.give_keys(kv, rows); }},
      {"v with heads before rows", "ShapeError", "v has extents [2, 2, 3, 3]*expected [2, 3, 2, 3]*pass bhsd(v)",
       [](Call& c) { c.v = c.varied(b, kv, rows, value); }},
      {"more kv heads than query heads", "ShapeError", "q has 4 heads, k has 8",
       [](Call& c) { c.k = c.varied(b, rows, 8, dim); }},
      {"no query heads", "ShapeError", "q has extents [2, 3, 0, 4]*at least one head",
       [](Call& c) { c.q = c.varied(b, rows, 0, dim); }},
      {"no kv heads", "ShapeError", "[2, 3, 0, 4]*at least one head", [](Call& c) { c.k = c.varied(b, rows, 0, dim); }},
      {"no head_dim", "ShapeError", "q has extents [2, 3, 4, 0]*one dim",
       [](Call& c) { c.q = c.varied(b, rows, heads, 0); }},
      {"no value_dim", "ShapeError", "[2, 3, 2, 0]*one dim", [](Call& c) { c.v = c.varied(b, rows, kv, 0); }},
      {"q without data", "ShapeError", "q of extents [2, 3, 4, 4] has no data",
       [](Call& c) { c.q = c.without_data(c.q); }},
      {"k without data", "ShapeError", "k of extents [2, 3, 2, 4] has no data",
       [](Call& c) { c.k = c.without_data(c.k); }},
      {"v without data", "ShapeError", "v of extents [2, 3, 2, 3] has no data",
       [](Call& c) { c.v = c.without_data(c.v); }},
      {"a negative extent", "ShapeError", "q has extents [2, -3, 4, 4]*negative",
       [](Call& c) { c.q = c.as(c.q, b, -3, heads, dim); }},
      {"two negative extents", "ShapeError", "k has extents [-2, -3, 2, 4]*negative",
       [](Call& c) { c.k = c.as(c.k, -2, -3, kv, dim); }},
      {"output of another length", "ShapeError", "output has extents [2, 2, 4, 3]*expected [2, 3, 4, 3]",
       [](Call& c) { c.output = c.output.slice(1, 0, 2); }},
      {"output shaped as q", "ShapeError", "output has extents [2, 3, 4, 4]*value_dim",
       [](Call& c) { c.output = c.tensor<float, 4>(c.q.extents(), Call::untouched); }},
      {"output without data", "ShapeError", "output of extents [2, 3, 4, 3] has no data",
       [](Call& c) { c.output = c.without_data(c.output); }},
      {"lse with rows before heads", "ShapeError", "lse has extents [2, 3, 4]*expected [2, 4, 3]",
       [](Call& c) {
         c.lse = c.lse.permuted({0, 2, 1});
       }},
  });
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
  // Extents and strides whose products overflow an Index. Their memory is a few bytes, which are not read.
  constexpr Index huge = Index{1} << 32, many = Index{1} << 62;
  std::string const count = "accepted: fewer than 9223372036854775807 bytes";
  check_refused_on_rings({
      {"q of 2^32 rows and 2^32 dims", "ShapeError", "q has extents [2, 4294967296, 4, 4294967296] of 4 bytes*" + count,
       [](Call& c) { c.q = c.as(c.q, b, huge, heads, huge); }},
      {"q of 2^32 batch items and 2^32 heads", "ShapeError", "q has extents [4294967296, 3, 4294967296, 4]*" + count,
       [](Call& c) { c.q = c.as(c.q, huge, rows, huge, dim); }},
      {"q of 2^62 elements, too many bytes", "ShapeError", "q has extents [1, 2305843009213693952, 1, 2]*" + count,
       [](Call& c) { c.q = c.as(c.q, 1, many / 2, 1, 2); }},
      {"no rows, but too many batch items and heads", "ShapeError",
       "q has extents [4294967296, 0, 4294967296, 4]*" + count, [](Call& c) { c.q = c.as(c.q, huge, 0, huge, dim); }},
      {"k of 2^32 rows and heads", "ShapeError", "k has extents [2, 4294967296, 4294967296, 4] of 4 bytes*" + count,
       [](Call& c) { c.k = c.as(c.k, b, huge, huge, dim); }},
      {"v of 2^32 rows and dims", "ShapeError", "v has extents [2, 4294967296, 2, 4294967296] of 4 bytes*" + count,
       [](Call& c) { c.v = c.as(c.v, b, huge, kv, huge); }},
      {"strides too large", "ShapeError", "q of extents [2, 3, 4, 4] has strides [4611686018427387904, 16, 4, 1]",
       [](Call& c) { c.q = strided(c.q, many, 16, 4, 1); }},
      {"negative strides too large", "ShapeError",
       "k of extents [2, 3, 2, 4] has strides [24, -9223372036854775808, 4, 1]",
       [](Call& c) { c.k = strided(c.k, 24, std::numeric_limits<Index>::min(), 4, 1); }},
      {"an output of more bytes than all operands", "ShapeError",
       "output has extents [1, 2199023255552, 1, 1099511627776]*" + count,
       [](Call& c) {
         c.q = c.as(c.q, 1, huge * 512, 1, 1), c.k = c.varied(1, 0, 1, 1), c.v = c.as(c.v, 1, 0, 1, huge * 256);
       }},
      {"a bias over 2^62 keys", "ShapeError", "bias has extents [1, 1, 3, 4611686018427387904] of 4 bytes*" + count,
       [](Call& c) { c.operands.bias = c.as(c.q, 1, 1, rows, many); }},
      {"a mask over 2^62 keys", "ShapeError", "mask has extents [2, 4, 3, 4611686018427387904] of 1 bytes*" + count,
       [](Call& c) { c.operands.mask = c.as(c.mask_of(1), b, heads, rows, many); }},
      {"document ids of 2^32 by 2^32", "ShapeError",
       "query_documents has extents [4294967296, 4294967296] of 4 bytes*" + count,
       [](Call& c) { c.give_ids(c.as(c.ids(1, 1), huge, huge), c.ids(b, rows)); }},
      {"2^62 sink logits", "ShapeError", "sinks has extents [4, 4611686018427387904] of 4 bytes*" + count,
       [](Call& c) { c.operands.sinks = c.as(c.q, heads, many); }},
      {"dout of 2^32 rows and dims", "ShapeError",
       "dout has extents [2, 4294967296, 4, 4294967296] of 4 bytes*" + count,
       backward([](Call& c) { c.dout = c.as(c.dout, b, huge, heads, huge); })},
      {"output without data, of 2^32 rows and dims", "ShapeError",
       "output has extents [2, 4294967296, 4, 4294967296]*" + count,
       [](Call& c) { c.output = c.as(TensorView<float, 4>(), b, huge, heads, huge); }},
      {"lse without data, of 2^32 heads and rows", "ShapeError", "lse has extents [2, 4294967296, 4294967296]*" + count,
       [](Call& c) { c.lse = c.as(TensorView<float, 3>(), b, huge, huge); }},
  });
}

TEST_CASE("invalid options are refused", "[attention]") {
  auto const scale = [](double x) { return [x](Call& c) { c.options.softmax_scale = x; }; };
  auto const softcap = [](double x) { return [x](Call& c) { c.options.logit_softcap = x; }; };
  auto const dropout = [](double x) { return [x](Call& c) { c.options.dropout.probability = x; }; };
  auto const offset = [](Index x) { return [x](Call& c) { c.options.query_offset = x; }; };
  check_refused_on_rings({
      {"a NaN scale", "UnsupportedError", "softmax scale is*nan*finite", scale(std::nan(""))},
      {"an infinite scale", "UnsupportedError", "softmax scale is inf", scale(infinity)},
      {"a scale beyond single precision", "UnsupportedError", "softmax scale is -1.6069380442589903e+60*4 bytes",
       scale(-std::ldexp(1.0, 200))},
      {"a negative cap", "UnsupportedError", "logit soft cap is -2", softcap(-2)},
      {"a NaN cap", "UnsupportedError", "logit soft cap is*nan", softcap(std::nan(""))},
      {"an infinite cap", "UnsupportedError", "logit soft cap is inf", softcap(infinity)},
      {"a cap beyond single precision", "UnsupportedError", "logit soft cap is 1.6069380442589903e+60",
       softcap(std::ldexp(1.0, 200))},
      {"a cap above the largest one", "UnsupportedError",
       "logit soft cap is 2.5353012004564594e+30*1.1754943508222875e-38 to 2.5353012004564588e+30",
       softcap(std::nextafter(std::ldexp(1.0, 101), infinity))},
      {"a denormal cap", "UnsupportedError", "logit soft cap is 1.17549435082228*1.1754943508222875e-38",
       softcap(std::nextafter(std::ldexp(1.0, -126), 0.0))},
      {"a cap that is 0 in single precision", "UnsupportedError", "logit soft cap is 6.2230152778611417e-61",
       softcap(std::ldexp(1.0, -200))},
      {"a negative dropout", "UnsupportedError", "dropout probability is -0.25", dropout(-0.25)},
      {"a dropout of one", "UnsupportedError", "dropout probability is 1;", dropout(1)},
      {"dropout above one", "UnsupportedError", "dropout probability is 1.5", dropout(1.5)},
      {"a NaN dropout", "UnsupportedError", "dropout probability is*nan", dropout(std::nan(""))},
      {"negative sink tokens", "UnsupportedError", "sink tokens: -1", [](Call& c) { c.options.mask.sink_tokens = -1; }},
      {"a negative chunk", "UnsupportedError", "chunk is -4", [](Call& c) { c.options.mask.chunk = -4; }},
      {"an offset beyond all positions", "UnsupportedError", "query offset is 1152921504606846976",
       offset(Index{1} << 60)},
      {"the lowest offset", "UnsupportedError", "query offset is -9223372036854775808",
       offset(std::numeric_limits<Index>::min())},
  });
}

TEST_CASE("optional operands with inconsistent extents are refused", "[attention][C20]") {
  check_refused_on_rings({
      {"bias of another batch", "ShapeError", "bias has extents [3, 4, 3,*[2 or 1, 4 or 1, 3, global_keys]",
       [](Call& c) { c.operands.bias = c.varied(3, heads, rows, c.global_rows()); }},
      {"bias of other heads", "ShapeError", "bias has extents [1, 2, 3,",
       [](Call& c) { c.operands.bias = c.varied(1, kv, rows, c.global_rows()); }},
      {"bias over other queries", "ShapeError", "bias has extents [2, 4, 5,",
       [](Call& c) { c.operands.bias = c.varied(b, heads, 5, c.global_rows()); }},
      {"bias without data", "ShapeError", "bias of extents*no data",
       [](Call& c) { c.operands.bias = c.without_data(c.bias_of(c.global_rows())); }},
      {"mask of another batch", "ShapeError", "mask has extents [3, 1, 3,",
       [](Call& c) { c.operands.mask = c.mask_of(c.global_rows(), 3); }},
      {"mask over other queries", "ShapeError", "mask has extents [1, 1, 4,",
       [](Call& c) { c.operands.mask = c.mask_of(c.global_rows(), 1, 4); }},
      {"query document ids alone", "ShapeError", "query_documents are given without key_documents",
       [](Call& c) { c.operands.query_documents = c.ids(b, rows); }},
      {"key document ids alone", "ShapeError", "key_documents are given without query_documents",
       [](Call& c) { c.operands.key_documents = c.ids(b, rows); }},
      {"query document ids of the whole sequence", "ShapeError", "query_documents has extents [2, 33]*expected [2, 3]",
       [](Call& c) { c.give_ids(c.ids(b, 33), c.ids(b, rows)); }},
      {"key document ids of another batch", "ShapeError", "key_documents has extents [1, 3]*expected [2, 3]",
       [](Call& c) { c.give_ids(c.ids(b, rows), c.ids(1, rows)); }},
      {"sink logits of the kv heads", "ShapeError", "sinks has extents [2, 1]*expected [4, 1]",
       [](Call& c) { c.operands.sinks = c.varied(kv); }},
      {"sink logits of other heads", "ShapeError", "sinks has extents [3, 2]*expected [4, 2]",
       [](Call& c) { c.operands.sinks = c.varied(3, 2); }},
      {"sink logits without data", "ShapeError", "sinks of extents [4, 1] has no data",
       [](Call& c) { c.operands.sinks = c.without_data(c.varied(heads)); }},
      {"bias_gradient without bias", "UnsupportedError", "bias_gradient is set but no bias is given",
       [](Call& c) { c.operands.bias_gradient = true; }},
  });
}

TEST_CASE("operands of the backward pass with inconsistent extents are refused", "[attention]") {
  check_refused_on_rings(wrong_backward_calls());
}

TEST_CASE("results whose elements share memory are refused", "[attention]") {
  std::string const accepted = "*accepted for a result: a stride other than 0 on each axis of more than one element";
  check_refused_on_rings({
      {"output of all heads", "ShapeError",
       "output of extents [2, 3, 4, 3] has strides [36, 12, 0, 1]*axis 2" + accepted,
       [](Call& c) { c.output = repeated(c.output, 2); }},
      {"lse of all rows", "ShapeError", "lse of extents [2, 4, 3] has strides [12, 3, 0]*axis 2" + accepted,
       [](Call& c) { c.lse = repeated(c.lse, 2); }},
      {"dq of all batch items", "ShapeError", "dq of extents [2, 3, 4, 4]*axis 0" + accepted,
       backward([](Call& c) { c.gradients.dq = repeated(c.gradients.dq, 0); })},
      {"dk of all rows", "ShapeError", "dk of extents [2, 3, 2, 4]*axis 1" + accepted,
       backward([](Call& c) { c.gradients.dk = repeated(c.gradients.dk, 1); })},
      {"dv of all dims", "ShapeError", "dv of extents [2, 3, 2, 3]*axis 3" + accepted,
       backward([](Call& c) { c.gradients.dv = repeated(c.gradients.dv, 3); })},
      {"dbias of all heads", "ShapeError", "dbias of extents [2, 4, 3,*axis 1" + accepted, backward([](Call& c) {
         c.give_bias_with_gradient(), c.gradients.dbias = repeated(c.bias_of(c.global_rows()), 1);
       })},
      {"d_joint_keys of all heads", "ShapeError", "d_joint_keys of extents [2, 2, 2, 4]*axis 2" + accepted,
       backward([](Call& c) {
         c.operands.joint_keys = c.varied(b, 2, kv, dim);
         c.operands.joint_values = c.gradients.d_joint_values = c.varied(b, 2, kv, value);
         c.gradients.d_joint_keys = repeated(c.varied(b, 2, kv, dim), 2);
       })},
      {"dsinks of all heads", "ShapeError", "dsinks of extents [4, 1]*axis 0" + accepted, backward([](Call& c) {
         c.operands.sinks = c.varied(heads, 1), c.gradients.dsinks = repeated(c.varied(heads, 1), 0);
       })},
  });
}

TEST_CASE("axes of one element may have stride 0, in operands any axis", "[attention]") {
  auto const outcomes = outcomes_of(2, backward([](Call& c) {
                                      c.operands.bias = repeated(c.bias_of(c.global_rows()), 1);
                                      c.operands.sinks = c.tensor(std::array{heads, Index(1)}, 0.5f);
                                      c.dout = repeated(c.dout, 2);
                                      c.gradients.dsinks = repeated(c.varied(heads, 1), 1);
                                    }));
  for (Outcome const& outcome : outcomes) check_thrown(outcome, "nothing", "");
}

TEST_CASE("calls that are invalid together are refused", "[attention][C20]") {
  check_refused_on_rings(
      {{"causal, heads before rows", "UnsupportedError", "query offset is unset*the axis order bhsd",
        [](Call& c) {
          c.options.mask = causal();
          c.q = c.varied(b, heads, rows, dim);
          c.give_keys(kv, rows);
          c.output = c.tensor<float, 4>({b, heads, rows, value}, Call::untouched);
          c.lse = c.tensor<float, 3>({b, rows, heads}, Call::untouched);
        }},
       {"leaves of no position", "UnsupportedError", "reproducible leaf is 0; accepted: 1 or more",
        [](Call& c) { c.options.reproducible = true, c.options.reproducible_leaf = 0; }},
       {"dropout beyond its positions", "UnsupportedError", "dropout over positions up to 85899*below 4294967296",
        [](Call& c) { c.options.query_offset = Index{1} << 33, c.options.dropout.probability = 0.5; }},
       {"bias over too many keys", "ShapeError",
        "bias covers 100 keys*global_keys =", [](Call& c) { c.operands.bias = c.bias_of(100); }},
       {"bias over no keys", "ShapeError", "bias covers 0 keys", [](Call& c) { c.operands.bias = c.bias_of(0); }},
       {"mask over other keys", "ShapeError", "mask covers 7 keys", [](Call& c) { c.operands.mask = c.mask_of(7); }},
       {"queries rotate with a bias", "UnsupportedError", "rotation of queries with a bias*accepted: rotation of keys",
        [](Call& c) { c.operands.bias = c.bias_of(c.global_rows()), c.options.rotation = Rotation::queries; }},
       {"queries rotate with a boolean mask", "UnsupportedError", "rotation of queries with a bias or boolean mask",
        [](Call& c) { c.operands.mask = c.mask_of(c.global_rows()), c.options.rotation = Rotation::queries; }},
       {"a position owned twice", "ShapeError", "position 1 is owned twice", mapped([](auto& p) { p[0][2] = 1; })},
       {"a position outside", "ShapeError", "position 1000 is outside [0,", mapped([](auto& p) { p[0][2] = 1000; })},
       {"a negative position", "ShapeError", "position -1 is outside [0,", mapped([](auto& p) { p[0][2] = -1; })},
       {"a map of other ranks", "ShapeError", "ranks, the ring has", mapped([](auto& p) { p.emplace_back(); })},
       {"a map of another length", "ShapeError", "is outside [0,",
        mapped([](auto& p) { p.back().push_back(p.back().back() + 1); })}},
      false);
}

TEST_CASE("lengths that do not fit the sharding are refused on more than one rank", "[attention]") {
  check_refused_on_rings(
      {{"zigzag", "ShapeError", "zigzag sharding of*queries*the ranks hold [5,", longer_on_rank_0(Zigzag{})},
       {"striped", "ShapeError", "striped sharding of*the ranks hold [5,", longer_on_rank_0(Striped{})}},
      false, 2);
}
