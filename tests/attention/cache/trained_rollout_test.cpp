// Training on a served rollout: the loss of the served rows has the bits of that of the trained rows, on other numbers
// of ranks, and gradients have the same bits on each of them, by the results of either.

#include <annulus/annulus.hpp>
#include <array>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace annulus;

// A name of its own, as files of tests are joined.
namespace trained_rollout {
namespace {

constexpr Index tokens = 64, prompt = 21, leaf = 8, heads = 4, kv_heads = 2, dim = 8;

template <class T>
using Tensor = Eigen::Tensor<T, 4, Eigen::RowMajor>;  // [batch, sequence, heads, dim]
template <class T>
using Lse = Eigen::Tensor<Accumulator<T>, 3, Eigen::RowMajor>;  // [batch, heads, sequence]

template <class T>
Tensor<T> random_tensor(Index rows, Index of_heads, unsigned seed) {
  Tensor<T> x(1, rows, of_heads, dim);
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> uniform(-2, 2);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>(uniform(engine));
  return x;
}

template <class X>
bool same_bits(X const& a, X const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), sizeof(*a.data()) * a.size()) == 0;
}

/// A sequence and the results of its rows.
template <class T>
struct Rollout {
  Tensor<T> q = random_tensor<T>(tokens, heads, 1), k = random_tensor<T>(tokens, kv_heads, 2),
            v = random_tensor<T>(tokens, kv_heads, 3), output{1, tokens, heads, dim};
  Lse<T> lse{1, heads, tokens}, lse_remainder{1, heads, tokens};

  /// The rows from position `begin` on.
  void take(CachedForward<Tensor<T>> const& served, Index begin) {
    for (Index i = 0; i < served.output.dimension(1); ++i) {
      output.chip(begin + i, 1) = served.output.chip(i, 1);
      lse.chip(begin + i, 2) = served.lse.chip(i, 2);
      lse_remainder.chip(begin + i, 2) = served.lse_remainder.chip(i, 2);
    }
  }
};

/// Serves the prompt in one call and the other rows one by one. Each depends on the output of the row before it, as in
/// a model.
template <class T>
Rollout<T> serve(SimulatedRing& ring) {
  CpuBackend backend{.threads = 1};
  KvCache<T> cache(ring, backend,
                   {.kv_heads = kv_heads,
                    .head_dim = dim,
                    .value_dim = dim,
                    .pages = 16,
                    .page_rows = 4,
                    .reproducible_leaf = leaf});
  CachedAttention attention(ring, backend, {.mask = causal(), .reproducible = true, .reproducible_leaf = leaf});
  std::array const sequences{cache.create()};
  auto const rows = [](Tensor<T> const& x, Index begin, Index count) {
    return TensorView<T const>(view_of(x)).slice(axis::sequence, begin, count);
  };
  Rollout<T> rollout;
  auto const decode = [&](Index begin, Index count) {
    auto const result = attention.decode(cache, sequences, rows(rollout.q, begin, count), rows(rollout.k, begin, count),
                                         rows(rollout.v, begin, count));
    rollout.take(result, begin);
  };
  decode(0, prompt);
  for (Index i = prompt; i < tokens; ++i) {
    decode(i, 1);
    if (i + 1 == tokens) break;
    for (Tensor<T>* x : {&rollout.q, &rollout.k, &rollout.v})
      for (Index h = 0; h < x->dimension(2); ++h)
        for (Index d = 0; d < dim; ++d) (*x)(0, i + 1, h, d) += rollout.output(0, i, h, d);
  }
  return rollout;
}

/// Results of training over the whole sequence.
template <class T>
struct Trained {
  Tensor<T> output;
  Lse<T> lse;
  Tensor<T> dq, dk, dv;
};

/// by_served: the backward pass is given the served results.
template <class T>
Trained<T> train(Rollout<T> const& rollout, Tensor<T> const& dout, int ranks, bool by_served) {
  return run_ring(ranks, [&](SimulatedRing& ring) {
    CpuBackend backend{.threads = 1};
    RingAttention attention(ring, backend,
                            {.mask = causal(), .sharding = Zigzag{}, .reproducible = true, .reproducible_leaf = leaf});
    Tensor<T> const q = attention.scatter(rollout.q), k = attention.scatter(rollout.k),
                    v = attention.scatter(rollout.v);
    Forward<Tensor<T>> const forward =
        by_served ? Forward<Tensor<T>>{attention.scatter(rollout.output), attention.scatter(rollout.lse, {.axis = 2}),
                                       attention.scatter(rollout.lse_remainder, {.axis = 2})}
                  : attention.forward(q, k, v);
    auto const gradients = attention.backward(attention.scatter(dout), forward, q, k, v);
    return Trained<T>{attention.gather(forward.output), attention.gather(forward.lse, {.axis = 2}),
                      attention.gather(gradients.dq), attention.gather(gradients.dk), attention.gather(gradients.dv)};
  })[0];
}

/// Sum over the rows after the prompt of weighted outputs and of lse, in the order of positions.
template <class T>
Accumulator<T> loss_of(Tensor<T> const& output, Lse<T> const& lse, Tensor<T> const& weights) {
  using A = Accumulator<T>;
  A loss = 0;
  for (Index i = prompt; i < tokens; ++i)
    for (Index h = 0; h < heads; ++h) {
      loss += lse(0, h, i);
      for (Index d = 0; d < dim; ++d) loss += static_cast<A>(output(0, i, h, d)) * static_cast<A>(weights(0, i, h, d));
    }
  return loss;
}

template <class T>
void check_rollout() {
  std::vector<Rollout<T>> const served = run_ring(3, [](SimulatedRing& ring) { return serve<T>(ring); });
  Tensor<T> weights = random_tensor<T>(tokens, heads, 4);
  for (Index i = 0; i < prompt; ++i) weights.chip(i, 1).setZero();  // the loss is that of the rows after it
  Accumulator<T> const loss = loss_of(served[0].output, served[0].lse, weights);
  for (Rollout<T> const& rollout : served) CHECK(loss_of(rollout.output, rollout.lse, weights) == loss);
  Trained<T> const alone = train(served[0], weights, 1, false);
  CHECK(loss_of(alone.output, alone.lse, weights) == loss);
  for (int ranks : {1, 2, 4})
    for (bool by_served : {false, true}) {
      INFO(ranks << " ranks, by " << (by_served ? "served" : "trained") << " results");
      Trained<T> const trained = train(served[0], weights, ranks, by_served);
      CHECK(loss_of(trained.output, trained.lse, weights) == loss);
      CHECK(same_bits(trained.dq, alone.dq));
      CHECK(same_bits(trained.dk, alone.dk));
      CHECK(same_bits(trained.dv, alone.dv));
    }
}

}  // namespace
}  // namespace trained_rollout

TEMPLATE_TEST_CASE("training on a served rollout has its loss, and the same gradients on any number of ranks",
                   "[cache][reproducible]", float, double, Eigen::bfloat16) {
  trained_rollout::check_rollout<TestType>();
}
