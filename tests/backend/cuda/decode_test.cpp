// Steps with few query rows on a GPU, and on an emulated one (tests/emulated_cuda), against attention in double.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "annulus/backend/cuda/cuda.hpp"
#include "annulus/schedule/visible_tiles.hpp"
#include "support/catch.hpp"
#include "support/cuda_memory.hpp"
#include "support/larger_error.hpp"

using namespace annulus;
using namespace annulus_test;

namespace {

struct DecodeCase {
  Index batch = 1, queries = 1, keys = 1, kv_heads = 1, group = 1, head_dim = 64, value_dim = 64;
  Mask mask{};
  double logit_softcap = 0;
  bool documents = false;
  Index gap = 0;           ///< rows of other sequences after every `run` rows of keys
  Index run = 1 << 20;     ///< rows of keys that are neighbours in memory
  double hidden = 0;       ///< what the elements of keys hold that no query sees, and of rows in gaps
  bool overflows = false;  ///< products of queries and keys do; those of scaled queries and keys do not
  std::uint32_t seed = 1;

  Index rows() const { return keys + (keys > 0 ? (keys - 1) / run * gap : Index{0}); }  ///< of the key operands
  Index row_of(Index key) const { return key + key / run * gap; }
  Index position_of_query(Index i) const { return keys - queries + i; }
  std::int32_t document(Index row) const { return row % 5 == 3 ? 0 : static_cast<std::int32_t>(row / 7 % 2 + 1); }
  std::int32_t query_document(Index b, Index i) const { return static_cast<std::int32_t>((b + i) % 3); }
  bool visible(Index b, Index query, Index key) const {
    return mask.visible(position_of_query(query), key) &&
           (!documents || detail::same_document(query_document(b, query), document(row_of(key))));
  }
  std::string text() const {
    return detail::message_of("batch ", batch, ", queries ", queries, ", keys ", keys, ", kv_heads ", kv_heads,
                              ", group ", group, ", head_dim ", head_dim, ", value_dim ", value_dim, ", documents ",
                              documents, ", gap ", gap, ", run ", run, ", seed ", seed);
  }
};

/// Operands of a case, its fold by CudaBackend, and its comparison.
template <class T>
class DecodeRun {
  using A = Accumulator<T>;
  template <class U, std::size_t N>
  using Tensor = CudaTensor<U, N>;

 public:
  explicit DecodeRun(DecodeCase const& one)
      : one_(one),
        q_({one.batch, one.queries, heads(), one.head_dim}),
        k_({one.batch, one.rows(), one.kv_heads, one.head_dim}),
        v_({one.batch, one.rows(), one.kv_heads, one.value_dim}),
        accumulator_({one.batch, one.queries, heads(), one.value_dim}),
        maximum_({one.batch, heads(), one.queries}),
        sum_({one.batch, heads(), one.queries}),
        query_documents_({one.batch, one.queries}),
        key_documents_({one.batch, one.rows()}) {
    fill(q_);
    fill(k_);
    fill(v_);
    if (one.overflows) make_products_overflow();
    for (Index b = 0; b < one.batch; ++b) {
      for (Index i = 0; i < one.queries; ++i) host(query_documents_)(b, i) = one.query_document(b, i);
      for (Index row = 0; row < one.rows(); ++row) host(key_documents_)(b, row) = one.document(row);
      hide(b);
    }
    find_tiles();
  }

  /// The largest error, after folds of the first `first` keys and of the others.
  double error_of(CudaBackend& backend, Index first) {
    backend.reset(state());
    fold(backend, 0, std::min(first, one_.keys));
    fold(backend, std::min(first, one_.keys), one_.keys);
    backend.synchronize();
    double error = 0;
    for (Index b = 0; b < one_.batch; ++b)
      for (Index h = 0; h < heads(); ++h)
        for (Index i = 0; i < one_.queries; ++i) error = larger_error(error, error_of_row(b, h, i));
    return error;
  }

  std::vector<A> outputs() const {
    auto const view = host(accumulator_);
    return {view.data(), view.data() + view.size()};
  }

 private:
  template <class U, std::size_t N>
  static TensorView<U, N> host(Tensor<U, N> const& tensor) {
    return const_cast<Tensor<U, N>&>(tensor).view().template in_space<HostMemory>();
  }
  static double number(T const& x) { return static_cast<double>(static_cast<A>(x)); }
  Index heads() const { return one_.kv_heads * one_.group; }
  RunningState<A, CudaMemory> state() { return {accumulator_.view(), maximum_.view(), sum_.view()}; }

  template <std::size_t N>
  void fill(Tensor<T, N>& tensor) {
    std::uniform_real_distribution<double> uniform(-1, 1);
    auto const view = host(tensor);
    for (Index i = 0; i < view.size(); ++i) view.data()[i] = static_cast<T>(uniform(engine_));
  }

  /// Of 64 elements: the product with key i is 4 (i + 1) / keys times the largest number, and the scale is 1/8.
  void make_products_overflow() {
    double const size = std::sqrt(static_cast<double>(std::numeric_limits<T>::max())) / 4;
    auto const q = host(q_), k = host(k_);
    for (Index i = 0; i < q.size(); ++i) q.data()[i] = static_cast<T>(size);
    Index const row = one_.kv_heads * one_.head_dim;
    for (Index i = 0; i < k.size(); ++i)
      k.data()[i] =
          static_cast<T>(size * static_cast<double>(i / row % one_.keys + 1) / static_cast<double>(one_.keys));
  }

  /// Sets what no query sees.
  void hide(Index b) {
    std::vector<bool> seen(static_cast<std::size_t>(one_.rows()), false);
    for (Index key = 0; key < one_.keys; ++key)
      for (Index i = 0; i < one_.queries; ++i)
        if (one_.visible(b, i, key)) seen[static_cast<std::size_t>(one_.row_of(key))] = true;
    auto const set = [&](auto const& view, Index row) {
      for (Index h = 0; h < one_.kv_heads; ++h)
        for (Index d = 0; d < view.extent(3); ++d) view(b, row, h, d) = static_cast<T>(static_cast<A>(one_.hidden));
    };
    for (Index row = 0; row < one_.rows(); ++row) {
      if (seen[static_cast<std::size_t>(row)]) continue;
      set(host(k_), row);
      set(host(v_), row);
    }
  }

  void find_tiles() {
    for (Index i = 0; i < one_.queries; ++i) query_positions_.push_back(one_.position_of_query(i));
    positions_.assign(static_cast<std::size_t>(one_.rows()), Index{0});  // in gaps: visible by every rule but tiles
    for (Index key = 0; key < one_.keys; ++key) positions_[static_cast<std::size_t>(one_.row_of(key))] = key;
  }

  /// Adds the keys [begin, end).
  void fold(CudaBackend& backend, Index begin, Index end) {
    std::vector<Tile> tiles, of_run;
    detail::TileFinder finder;
    std::vector<Segment> const queries{{0, one_.queries, 0, 1}};
    Index const offset = one_.position_of_query(0);
    for (Index key = begin, count = 0; key < end; key += count) {
      count = std::min(one_.run - key % one_.run, end - key);
      std::vector<Segment> const keys{{0, count, key, 1}};
      finder.find(queries, keys, one_.mask, offset, false, &of_run);
      for (Tile tile : of_run) {
        tile.key_begin += one_.row_of(key);
        tiles.push_back(tile);
      }
    }
    Step<T, EveryPair, CudaMemory> step{.tiles = tiles,
                                        .rules = {.mask = one_.mask,
                                                  .softmax_scale = scale(),
                                                  .logit_softcap = one_.logit_softcap,
                                                  .query_offset = offset},
                                        .query_positions = query_positions_,
                                        .key_positions = positions_,
                                        .predicate = &every_pair_,
                                        .recomputed = false};
    if (one_.documents) {
      step.query_documents = query_documents_.view();
      step.key_documents = key_documents_.view();
    }
    backend.fold(step, StepOperands<T, CudaMemory>{q_.view(), k_.view(), v_.view()}, state());
  }

  double scale() const { return 1 / std::sqrt(static_cast<double>(one_.head_dim)); }

  double error_of_row(Index b, Index h, Index i) const {
    auto const q = host(q_), k = host(k_), v = host(v_);
    std::vector<double> logits, values(static_cast<std::size_t>(one_.value_dim), 0.0);
    std::vector<Index> rows;
    double largest = -std::numeric_limits<double>::infinity(), sum = 0, error = 0;
    for (Index key = 0; key < one_.keys; ++key) {
      if (!one_.visible(b, i, key)) continue;
      double logit = 0;
      for (Index d = 0; d < one_.head_dim; ++d)
        logit += number(q(b, i, h, d)) * scale() * number(k(b, one_.row_of(key), h / one_.group, d));
      if (one_.logit_softcap > 0) logit = one_.logit_softcap * std::tanh(logit / one_.logit_softcap);
      logits.push_back(logit);
      rows.push_back(one_.row_of(key));
      largest = std::max(largest, logit);
    }
    for (std::size_t n = 0; n < rows.size(); ++n) {
      double const weight = std::exp(logits[n] - largest);
      sum += weight;
      for (Index d = 0; d < one_.value_dim; ++d)
        values[static_cast<std::size_t>(d)] += weight * number(v(b, rows[n], h / one_.group, d));
    }
    SoftmaxRow<A> const row{host(maximum_)(b, h, i), host(sum_)(b, h, i)};
    if (rows.empty()) return row.lse() == empty_row<A> && row.sum == A(0) ? 0 : 1e9;
    double const lse = largest + std::log(sum);
    error = std::abs(static_cast<double>(row.lse()) - lse) / std::max(1.0, std::abs(lse));
    for (Index d = 0; d < one_.value_dim; ++d) {
      auto const output = static_cast<double>(host(accumulator_)(b, i, h, d) * row.normaliser());
      error = larger_error(error, std::abs(output - values[static_cast<std::size_t>(d)] / sum));
    }
    return error;
  }

  DecodeCase one_;
  std::mt19937 engine_{one_.seed};
  EveryPair every_pair_{};
  Tensor<T, 4> q_, k_, v_;
  Tensor<A, 4> accumulator_;
  Tensor<A, 3> maximum_, sum_;
  Tensor<std::int32_t, 2> query_documents_, key_documents_;
  std::vector<Index> query_positions_, positions_;
};

template <class T>
constexpr double bound_of = sizeof(T) == 8                   ? 1e-13
                            : sizeof(T) == 4                 ? 2e-6
                            : std::is_same_v<T, Eigen::half> ? 1e-3
                                                             : 6e-3;

template <class T>
void check(DecodeCase one, std::uint32_t seed, Index first = 1 << 20) {
  one.seed = seed;
  CudaBackend backend;
  INFO(one.text());
  double const error = DecodeRun<T>(one).error_of(backend, first);
  CHECK(error <= bound_of<T>);
}

}  // namespace

TEMPLATE_TEST_CASE("decode: numbers of keys, queries and heads", "[backend][cuda][decode]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  std::uint32_t seed = 1;
  for (Index keys : {0, 1, 15, 16, 17, 127, 509})
    for (Index group : {1, 4, 7, 8})
      for (Index queries : {1, 2, 5})
        check<TestType>({.queries = queries,
                         .keys = keys,
                         .kv_heads = 1 + seed % 2,
                         .group = group,
                         .mask = seed % 3 == 0 ? full() : causal()},
                        seed++, keys / 3);
}

TEMPLATE_TEST_CASE("decode: heads of every size", "[backend][cuda][decode]", float, double, Eigen::half,
                   Eigen::bfloat16) {
  std::uint32_t seed = 1;
  for (auto const& [head_dim, value_dim] : std::vector<std::pair<Index, Index>>{
           {1, 1}, {7, 3}, {64, 64}, {128, 128}, {96, 96}, {128, 64}, {200, 130}, {256, 256}, {320, 512}})
    check<TestType>({.batch = 2,
                     .queries = 2,
                     .keys = 75,
                     .kv_heads = 2,
                     .group = 3,
                     .head_dim = head_dim,
                     .value_dim = value_dim,
                     .mask = causal()},
                    seed++);
}

TEMPLATE_TEST_CASE("decode: masks, documents, soft cap and gaps", "[backend][cuda][decode]", float, Eigen::half,
                   Eigen::bfloat16) {
  DecodeCase one{.queries = 3, .keys = 230, .kv_heads = 2, .group = 4, .mask = causal()};
  one.head_dim = one.value_dim = GENERATE(64, 40);
  one.hidden = GENERATE(0.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity());
  SECTION("window") { one.mask = sliding_window(70, 0); }
  SECTION("window of both sides and sink tokens") {
    one.mask = {.window = {.left = 50, .right = 20}, .sink_tokens = 5};
  }
  SECTION("chunks") { one.mask = {.causal = true, .chunk = 50}; }
  SECTION("soft cap") { one.logit_softcap = 0.5; }
  SECTION("documents") {
    one.batch = 3;
    one.documents = true;
  }
  SECTION("gaps") { one.gap = 9, one.run = 13; }
  SECTION("gaps and documents") { one.gap = 20, one.run = 16, one.documents = true; }
  SECTION("more tiles than one launch takes") { one.gap = 1, one.run = 1; }
  check<TestType>(one, 7, 90);
}

TEMPLATE_TEST_CASE("decode: products that overflow", "[backend][cuda][decode]", float, double) {
  check<TestType>({.keys = 20, .group = 2, .overflows = true}, 1);
}

TEST_CASE("decode: the same bits in every run", "[backend][cuda][decode]") {
  DecodeCase const one{.queries = 2, .keys = 3000, .kv_heads = 2, .group = 8, .head_dim = 128, .value_dim = 128};
  CudaBackend backend;
  DecodeRun<Eigen::bfloat16> run(one);
  CHECK(run.error_of(backend, 3000) <= bound_of<Eigen::bfloat16>);
  auto const first = run.outputs();
  CHECK(run.error_of(backend, 3000) <= bound_of<Eigen::bfloat16>);
  CHECK(run.outputs() == first);
}
