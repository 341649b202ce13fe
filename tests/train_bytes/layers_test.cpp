// The backward pass of each layer of the training example against finite differences of its forward pass, in double.

#include <annulus/annulus.hpp>
#include <cmath>
#include <cstdint>
#include <vector>

#include "finite_differences.hpp"
#include "train_bytes/cross_entropy.hpp"
#include "train_bytes/embedding.hpp"
#include "train_bytes/layer.hpp"
#include "train_bytes/linear.hpp"
#include "train_bytes/parameters.hpp"
#include "train_bytes/ring_layers.hpp"
#include "train_bytes/rms_norm.hpp"
#include "train_bytes/rotary.hpp"
#include "train_bytes/swiglu.hpp"

using namespace annulus_test;
using namespace train_bytes;

namespace {

using M = Matrix<double>;

RowView<double const> row_of(M const& x) { return {x.data(), x.size()}; }
MatrixView<double const> view_of(M const& x) { return {x.data(), x.rows(), x.cols()}; }
MatrixView<double> view_of(M& x) { return {x.data(), x.rows(), x.cols()}; }

double dot(M const& a, M const& b) { return (a.array() * b.array()).sum(); }

}  // namespace

TEST_CASE("linear layer", "[train_bytes]") {
  M x = random_matrix(5, 3, 1), weight = random_matrix(3, 4, 2), dweight = M::Constant(3, 4, 2.0);
  M const dy = random_matrix(5, 4, 3);
  M const dx = linear_backward<double>(dy, x, view_of(std::as_const(weight)), view_of(dweight));
  auto const loss = [&] { return dot(x * weight, dy); };
  check_gradient("x", dx, x, loss);
  check_gradient("the weight, added to what was there", (dweight.array() - 2).matrix(), weight, loss);
}

TEST_CASE("root mean square norm", "[train_bytes]") {
  M x = random_matrix(5, 6, 1), gain = random_matrix(1, 6, 2), dgain = M::Constant(1, 6, 2.0);
  M const doutput = random_matrix(5, 6, 3);
  auto const forward = [&] { return rms_norm<double>(x, row_of(gain)); };
  M const dx = rms_norm_backward<double>(doutput, x, forward().scale, row_of(gain), {dgain.data(), dgain.size()});
  auto const loss = [&] { return dot(forward().output, doutput); };
  check_gradient("x", dx, x, loss);
  check_gradient("the gain, added to what was there", (dgain.array() - 2).matrix(), gain, loss);

  // From the definition.
  CHECK(forward().output(3, 2) ==
        Approx(x(3, 2) * gain(0, 2) / std::sqrt(x.row(3).squaredNorm() / 6 + 1e-5)).epsilon(1e-14));
}

TEST_CASE("rotary embedding", "[train_bytes]") {
  Rotary<double> const rotary({7, 0, 12}, 4);
  M x = random_matrix(6, 8, 1);  // 2 sequences of 3 rows, 2 heads of 4
  M const doutput = random_matrix(6, 8, 2);
  auto const forward = [&] {
    M output = x;
    rotary.rotate(output);
    return output;
  };
  M dx = doutput;
  rotary.rotate_backward(dx);
  check_gradient("x", dx, x, [&] { return dot(forward(), doutput); });

  // From the definition: dims 1 and 3 of the second head of position 12, in the second sequence.
  double const angle = 12 * std::pow(10000.0, -0.5);
  CHECK(forward()(5, 5) == Approx(std::cos(angle) * x(5, 5) - std::sin(angle) * x(5, 7)).epsilon(1e-14));
  CHECK(forward()(5, 7) == Approx(std::sin(angle) * x(5, 5) + std::cos(angle) * x(5, 7)).epsilon(1e-14));
  CHECK(forward().row(1) == x.row(1));
}

TEST_CASE("gated activation", "[train_bytes]") {
  M gate = random_matrix(4, 5, 1), up = random_matrix(4, 5, 2);
  M const doutput = random_matrix(4, 5, 3);
  auto const [dgate, dup] = swiglu_backward(doutput, gate, up);
  auto const loss = [&] { return dot(swiglu(gate, up), doutput); };
  check_gradient("gate", dgate, gate, loss);
  check_gradient("up", dup, up, loss);
  CHECK(swiglu(gate, up)(1, 2) == Approx(gate(1, 2) / (1 + std::exp(-gate(1, 2))) * up(1, 2)).epsilon(1e-14));
}

TEST_CASE("cross entropy", "[train_bytes]") {
  M logits = random_matrix(3, 256, 1);
  std::vector<std::uint8_t> const targets{0, 255, 97};
  M gradient = logits;
  double const sum = cross_entropy(gradient, targets, 0.25);
  check_gradient("the logits", gradient, logits, [&] {
    M copy = logits;
    return 0.25 * cross_entropy(copy, targets, 0);
  });

  double expected = 0;
  for (Index row = 0; row < 3; ++row)
    expected -=
        std::log(std::exp(logits(row, targets[static_cast<std::size_t>(row)])) / logits.row(row).array().exp().sum());
  CHECK(sum == Approx(expected).epsilon(1e-14));
}

TEST_CASE("embedding", "[train_bytes]") {
  M embedding = random_matrix(256, 3, 1), dembedding = M::Constant(256, 3, 2.0);
  std::vector<std::uint8_t> const bytes{7, 255, 7, 0};
  M const doutput = random_matrix(4, 3, 2);
  embed_backward<double>(doutput, bytes, view_of(dembedding));
  check_gradient("the embedding, added to what was there", (dembedding.array() - 2).matrix(), embedding,
                 [&] { return dot(embed<double>(bytes, view_of(std::as_const(embedding))), doutput); });
}

TEST_CASE("a layer with attention of grouped heads", "[train_bytes]") {
  ModelShape const shape{.layers = 1, .width = 8, .heads = 2, .kv_heads = 1};
  Index const batch = 2, context = 5;
  Parameters<double> parameters(shape), gradient(shape);
  parameters.values() = random_matrix(shape.parameters(), 1, 1);
  M x = random_matrix(batch * context, shape.width, 2);
  M const doutput = random_matrix(batch * context, shape.width, 3);
  Rotary<double> const rotary({0, 1, 2, 3, 4}, shape.head_dim());
  annulus::SelfRing ring;
  RingLayers<double, annulus::SelfRing> attention(ring, shape, batch, annulus::Contiguous{});
  LayerActivations<double> saved;
  auto const forward = [&] {
    return layer_forward<double>(std::as_const(parameters).layer(0), 0, x, rotary, attention, saved);
  };
  forward();
  M const dx = layer_backward<double>(std::as_const(parameters).layer(0), 0, doutput, rotary, attention, saved,
                                      gradient.layer(0));
  auto const loss = [&] { return dot(forward(), doutput); };
  check_gradient("x", dx, x, loss);
  auto const weights = parameters.layer(0), gradients = gradient.layer(0);
  auto const check = [&](char const* name, auto const& dweight, auto weight) {
    check_gradient(name, dweight, weight, loss);
  };
  check("query", gradients.query, weights.query);
  check("key", gradients.key, weights.key);
  check("value", gradients.value, weights.value);
  check("output", gradients.output, weights.output);
  check("gate", gradients.gate, weights.gate);
  check("up", gradients.up, weights.up);
  check("down", gradients.down, weights.down);
  check("attention_norm", gradients.attention_norm, weights.attention_norm);
  check("feed_forward_norm", gradients.feed_forward_norm, weights.feed_forward_norm);
}
