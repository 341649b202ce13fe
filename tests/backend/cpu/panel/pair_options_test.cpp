// Options that differ from pair to pair: mask tensors with whole and partly hidden blocks, predicates, bias in any
// layout, and dropout, whose random numbers are generated for a vector of queries at a time.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <annulus/backend/cpu/simd/philox.hpp>
#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/judge.hpp"
#include "support/ring_run.hpp"
#include "support/small_ring_problem.hpp"

using namespace annulus_test;

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;

template <class T>
std::string complaint_on_two_threads(RingProblem problem) {
  settle(problem);
  round_operands<T>(problem);
  auto const results = annulus::run_ring(problem.ranks, [&](annulus::SimulatedRing& ring) {
    annulus::CpuBackend backend{.threads = 2};
    return problem.dense.predicate ? run_rank<T>(problem, ring, backend, problem.dense.predicate)
                                   : run_rank<T>(problem, ring, backend);
  });
  return judge(problem, assemble(problem, results), std::is_same_v<T, double> ? double_bounds : float_bounds).complaint;
}

/// Problems of `length` tokens on one rank and on two, with three shardings.
template <class Change>
void for_each_sharding(std::int64_t length, std::int64_t heads, std::int64_t kv_heads, Change&& change) {
  for (auto const& [ranks, sharding] : {std::pair{1, annulus::Sharding(annulus::Contiguous{})},
                                        {2, annulus::Sharding(annulus::Zigzag{})},
                                        {2, annulus::Sharding(annulus::Striped{})}}) {
    RingProblem problem = small_ring_problem(
        {.query_heads = heads, .kv_heads = kv_heads, .query_length = length, .head_dim = 8, .value_dim = 12}, ranks,
        sharding);
    change(problem);
    INFO(length << " tokens, " << heads << " heads on " << ranks << " ranks");
    CHECK(complaint_on_two_threads<float>(problem) == "");
    CHECK(complaint_on_two_threads<double>(problem) == "");
  }
}

}  // namespace

TEST_CASE("blocks of a mask tensor that are visible, hidden, or both", "[cpu]") {
  for (auto const& [length, square_keys] :
       {std::pair<std::int64_t, std::int64_t>{127, 64}, {128, 64}, {129, 64}, {300, 64}, {520, 128}})
    for (std::int64_t mask_heads : {1, 4})
      for (bool causal : {false, true})
        for_each_sharding(length, 4, 2, [&, length = length, square_keys = square_keys](RingProblem& problem) {
          give_mask(problem, 1, mask_heads);
          problem.dense.causal = causal;
          // Of each square of 40 x square_keys pairs all, none or some are visible; and some rows see nothing.
          auto& values = problem.dense.mask->values;
          for (std::size_t place = 0; place < values.size(); ++place) {
            auto const key = static_cast<std::int64_t>(place) % length,
                       query = static_cast<std::int64_t>(place) / length % length;
            std::int64_t const square = (query / 40 + key / square_keys) % 3;
            if (square < 2) values[place] = square == 0;
            if (query == 50) values[place] = 0;
          }
        });
}

TEST_CASE("a mask tensor that heads share, or queries and heads, is equal to the one that is written out", "[cpu]") {
  using annulus::Index;
  constexpr Index heads = 4, queries = 70, keys = 2400;
  bool const over_queries = GENERATE(true, false);
  Tensor q(1, queries, heads, 8), k(1, keys, 2, 8), v(1, keys, 2, 8), dout(1, queries, heads, 8);
  for (Tensor* x : {&q, &k, &v, &dout}) x->setRandom();
  // Of blocks of 35 queries and 128 keys all pairs are visible, none, all but one or one alone.
  auto const visible = [&](Index query, Index key) {
    Index const kind = (query / 35 * 5 + key / 128 * 3) % 7 % 4;
    bool const odd = query % 35 == 20 && key % 128 == 100;
    return kind == 0 || (kind == 2 && !odd) || (kind == 3 && odd);
  };
  Eigen::Tensor<bool, 4, Eigen::RowMajor> compact(1, 1, over_queries ? queries : 1, keys),
      whole(1, heads, queries, keys);
  for (Index i = 0; i < queries; ++i)
    for (Index j = 0; j < keys; ++j)
      for (Index h = 0; h < heads; ++h)
        whole(0, h, i, j) = compact(0, 0, over_queries ? i : 0, j) = visible(over_queries ? i : 0, j);
  annulus::TensorView<bool const, 4> const broadcast(compact.data(), {1, heads, queries, keys},
                                                     {0, 0, over_queries ? keys : Index{0}, 1});
  annulus::SelfRing ring;
  annulus::CpuBackend backend{.threads = 2};
  annulus::RingAttention attention(ring, backend, {});
  auto const run = [&](annulus::Operands<float> const& operands) {
    auto const forward = attention.forward(q, k, v, operands);
    return std::pair{forward, attention.backward(dout, forward, q, k, v, operands)};
  };
  auto const [expected, expected_gradients] = run({.mask = whole});
  auto const [seen, gradients] = run({.mask = broadcast});
  for (Index e = 0; e < seen.output.size(); ++e) CHECK(seen.output.data()[e] == expected.output.data()[e]);
  for (Index e = 0; e < gradients.dq.size(); ++e) CHECK(gradients.dq.data()[e] == expected_gradients.dq.data()[e]);
  for (Index e = 0; e < gradients.dk.size(); ++e) CHECK(gradients.dk.data()[e] == expected_gradients.dk.data()[e]);
  for (Index e = 0; e < gradients.dv.size(); ++e) CHECK(gradients.dv.data()[e] == expected_gradients.dv.data()[e]);
}

TEST_CASE("a mask tensor and rules that hide pairs within whole blocks", "[cpu]") {
  constexpr std::int64_t length = 400;
  for_each_sharding(length, 2, 1, [](RingProblem& problem) {
    problem.dense.causal = true, problem.dense.window_left = 20, problem.dense.sink_tokens = 5;
    give_mask(problem, 1, 1);
  });
  for_each_sharding(length, 2, 1, [](RingProblem& problem) {
    std::vector<int> alternating;
    for (int token = 0; token < length; ++token) alternating.push_back(1 + token % 2);
    give_documents(problem, alternating);
    give_mask(problem, 1, 1);
  });
}

TEST_CASE("predicates hide pairs beside other rules", "[cpu]") {
  for (std::int64_t length : {33, 130, 260}) {
    for_each_sharding(length, 4, 2, [](RingProblem& problem) {
      problem.dense.predicate = [](auto, auto, auto query, auto key) { return key <= query; };
    });
    for_each_sharding(length, 4, 4, [](RingProblem& problem) {
      problem.dense.causal = true;
      give_mask(problem, 1, 1);
      auto const half = static_cast<int>(problem.dense.query_length / 2);
      give_documents(problem, documents_of_lengths(1, {half, static_cast<int>(problem.dense.query_length) - half}));
      problem.dense.predicate = [](auto, auto head, auto query, auto key) { return (query + 3 * key + head) % 4 != 0; };
    });
  }
}

TEST_CASE("a bias gives the same bits in every layout, and so does its gradient", "[cpu]") {
  using annulus::Index;
  constexpr Index heads = 4, queries = 70, keys = 150;
  for (auto const& [over_heads, over_queries, over_keys] : {std::array<bool, 3>{true, true, true},
                                                            {false, true, true},
                                                            {true, false, true},
                                                            {true, true, false},
                                                            {false, false, true}}) {
    Tensor q(1, queries, heads, 16), k(1, keys, 2, 16), v(1, keys, 2, 16), dout(1, queries, heads, 16);
    for (Tensor* x : {&q, &k, &v, &dout}) x->setRandom();
    // `compact` has extent 1 where the bias is the same, `whole` is written out, `reversed` has its axes in memory in
    // reverse order.
    Tensor compact(1, over_heads ? heads : 1, over_queries ? queries : 1, over_keys ? keys : 1);
    compact.setRandom();
    Tensor whole(1, heads, queries, keys);
    Eigen::Tensor<float, 4, Eigen::ColMajor> reversed(1, heads, queries, keys);
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < queries; ++i)
        for (Index j = 0; j < keys; ++j)
          reversed(0, h, i, j) = whole(0, h, i, j) =
              compact(0, over_heads ? h : 0, over_queries ? i : 0, over_keys ? j : 0);
    Index const row = compact.dimension(3), matrix = row * compact.dimension(2);
    annulus::TensorView<float const, 4> const broadcast(
        compact.data(), {1, heads, queries, keys},
        {0, over_heads ? matrix : 0, over_queries ? row : 0, over_keys ? Index{1} : 0});
    annulus::SelfRing ring;
    annulus::CpuBackend backend{.threads = 1};
    annulus::RingAttention attention(ring, backend, {.logit_softcap = 2, .query_offset = 0});
    auto const run = [&](annulus::Operands<float> operands) {
      operands.bias_gradient = true;
      auto const forward = attention.forward(q, k, v, operands);
      return std::pair{forward, attention.backward(dout, forward, q, k, v, operands)};
    };
    auto const [expected, expected_gradients] = run({.bias = whole});
    for (annulus::Operands<float> const& operands :
         {annulus::Operands<float>{.bias = broadcast}, annulus::Operands<float>{.bias = reversed}}) {
      auto const [seen, gradients] = run(operands);
      for (Index e = 0; e < seen.output.size(); ++e) CHECK(seen.output.data()[e] == expected.output.data()[e]);
      for (Index e = 0; e < gradients.dk.size(); ++e) CHECK(gradients.dk.data()[e] == expected_gradients.dk.data()[e]);
      for (Index e = 0; e < gradients.dbias->size(); ++e)
        CHECK(gradients.dbias->data()[e] == expected_gradients.dbias->data()[e]);
    }
  }
}

TEST_CASE("a bias that heads share sums their gradients, also where all lanes of a panel share a row", "[cpu]") {
  for (std::int64_t queries : {1, 2, 9})
    for (std::int64_t heads : {8, 40}) {
      RingProblem problem =
          small_ring_problem({.query_heads = heads, .query_length = queries, .key_length = 150, .head_dim = 8}, 1);
      give_bias(problem, 1, 1);
      INFO(queries << " queries, " << heads << " heads");
      CHECK(complaint_on_two_threads<float>(problem) == "");
      CHECK(complaint_on_two_threads<double>(problem) == "");
    }
}

TEMPLATE_TEST_CASE("the gradient of a bias of 16 bits is the one in float, rounded", "[cpu]", Eigen::half,
                   Eigen::bfloat16) {
  using annulus::Index;
  using Elements = Eigen::Tensor<TestType, 4, Eigen::RowMajor>;
  constexpr Index batch = 2, heads = 4;
  auto const ring_case = GENERATE(
      table<int, annulus::Sharding>({{1, annulus::Contiguous{}}, {2, annulus::Zigzag{}}, {3, annulus::Striped{}}}));
  int const ranks = std::get<0>(ring_case);
  bool const causal = GENERATE(true, false), windowed = GENERATE(true, false), masked = GENERATE(true, false);
  auto const documents = GENERATE(0, 7, 300);
  Index const rows = GENERATE(33, 166);
  annulus::Options options{.mask = causal ? annulus::causal() : annulus::full(), .sharding = std::get<1>(ring_case)};
  if (windowed) options.mask.window = {.left = 20, .right = causal ? 0 : 40};
  INFO(ranks << " ranks, " << rows << " rows, causal " << causal << ", window " << windowed << ", mask " << masked
             << ", documents of " << documents);
  auto const differences = annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    std::mt19937 random(static_cast<unsigned>(1 + ring.rank()));
    std::normal_distribution<float> normal;
    auto const filled = [&](Index a, Index b, Index c, Index d) {
      Elements elements(a, b, c, d);
      for (Index e = 0; e < elements.size(); ++e) elements.data()[e] = static_cast<TestType>(normal(random));
      return elements;
    };
    Elements const q = filled(batch, rows, heads, 16), k = filled(batch, rows, 2, 16), v = filled(batch, rows, 2, 16),
                   dout = filled(batch, rows, heads, 16), bias = filled(batch, heads, rows, ranks * rows);
    annulus::Operands<TestType> operands{.bias = bias, .bias_gradient = true};
    Eigen::Tensor<bool, 4, Eigen::RowMajor> mask(1, 1, rows, ranks * rows);
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < ranks * rows; ++j) mask(0, 0, i, j) = (i / 32 + j / 128) % 2 == 0 && (i + j) % 5 != 0;
    if (masked) operands.mask = mask;
    Eigen::Tensor<int, 2, Eigen::RowMajor> ids(batch, rows);
    for (Index e = 0; e < ids.size(); ++e) ids.data()[e] = static_cast<int>(e % rows) / std::max(documents, 1) + 1;
    if (documents > 0) operands.query_documents = operands.key_documents = ids;
    annulus::CpuBackend backend{.threads = 2};
    annulus::RingAttention attention(ring, backend, options);
    auto const forward = attention.forward(q, k, v, operands);
    auto const gradients_of = [&]<class G>(G nothing) {
      using Gradients = Eigen::Tensor<G, 4, Eigen::RowMajor>;
      Gradients dq(q.dimensions()), dk(k.dimensions()), dv(v.dimensions()), dbias(bias.dimensions());
      dbias.setConstant(nothing);
      attention.backward_into(
          dout, forward.output, forward.lse, q, k, v,
          annulus::GradientViews<G, annulus::HostMemory>{annulus::view_of(dq), annulus::view_of(dk),
                                                         annulus::view_of(dv), annulus::view_of(dbias)},
          operands);
      return dbias;
    };
    auto const expected = gradients_of(std::numeric_limits<float>::quiet_NaN());
    auto const seen = gradients_of(std::numeric_limits<TestType>::quiet_NaN());
    Index different = 0, zeros = 0;
    for (Index e = 0; e < seen.size(); ++e) {
      different += !(seen.data()[e] == static_cast<TestType>(expected.data()[e]));
      zeros += seen.data()[e] == TestType(0);
    }
    return std::pair{different, zeros < seen.size()};
  });
  for (auto const& [different, has_gradients] : differences) {
    CHECK(different == 0);
    CHECK(has_gradients);
  }
}

TEMPLATE_TEST_CASE("threads write or sum each element of a bias gradient of 16 bits once", "[cpu]", Eigen::half,
                   Eigen::bfloat16) {
  using annulus::Index;
  constexpr Index batch = 2, heads = 4, document = 64, dim = 4;
  Index const bias_batch = GENERATE(2, 1), bias_heads = GENERATE(4, 1), rows = GENERATE(64, 320);
  CAPTURE(bias_batch, bias_heads, rows);
  // Equal logits, documents of 64 rows and values that cancel in pairs: the gradient of a pair is an integer over 64,
  // and sums of eight are at most 1. So one that is missing or is added twice differs by 1/64 or more, rounding by 2^-8
  // of the sum and by eight errors of float.
  auto const gradient_in = [&]<class T, class B>(std::type_identity<T>, B backend) {
    using Elements = Eigen::Tensor<T, 4, Eigen::RowMajor>;
    std::mt19937 random(7);
    auto const small = [&] { return static_cast<T>(static_cast<float>(static_cast<int>(random() % 5) - 2)); };
    Elements q(batch, rows, heads, dim), k(batch, rows, 2, dim), v(batch, rows, 2, dim), dout(batch, rows, heads, dim);
    Elements bias(bias_batch, bias_heads, rows, rows), dbias(bias_batch, bias_heads, rows, rows);
    for (Elements* zeros : {&q, &k, &bias}) zeros->setConstant(T(0));
    for (Index e = 0; e < dout.size(); ++e) dout.data()[e] = small();
    for (Index b = 0; b < batch; ++b)
      for (Index j = 0; j < rows; j += 2)
        for (Index h = 0; h < 2; ++h)
          for (Index d = 0; d < dim; ++d) {
            v(b, j, h, d) = T(random() % 2 == 0 ? 1 : -1);
            v(b, j + 1, h, d) = -v(b, j, h, d);
          }
    Eigen::Tensor<int, 2, Eigen::RowMajor> ids(batch, rows);
    for (Index e = 0; e < ids.size(); ++e) ids.data()[e] = static_cast<int>(1 + e % rows / document);  // 0 is padding
    annulus::Operands<T> const operands{
        .bias = bias, .query_documents = ids, .key_documents = ids, .bias_gradient = true};
    annulus::SelfRing self;
    annulus::RingAttention attention(self, backend);
    auto const forward = attention.forward(q, k, v, operands);
    Elements dq(q.dimensions()), dk(k.dimensions()), dv(v.dimensions());
    dbias.setConstant(std::numeric_limits<T>::quiet_NaN());
    attention.backward_into(
        dout, forward.output, forward.lse, q, k, v,
        annulus::GradientViews<T, annulus::HostMemory>{annulus::view_of(dq), annulus::view_of(dk), annulus::view_of(dv),
                                                       annulus::view_of(dbias)},
        operands);
    return dbias;
  };
  auto const expected = gradient_in(std::type_identity<double>{}, annulus::ReferenceBackend{});
  for (int threads : {1, 2, 3, 5}) {
    auto const seen = gradient_in(std::type_identity<TestType>{}, annulus::CpuBackend{.threads = threads});
    Index different = 0, zeros = 0;
    for (Index e = 0; e < seen.size(); ++e) {
      double const sum = expected.data()[e], error = static_cast<double>(seen.data()[e]) - sum;
      different += !(std::abs(error) <= 0x1p-8 * std::abs(sum) + 0x1p-20);
      zeros += seen.data()[e] == TestType(0);
    }
    CAPTURE(threads);
    CHECK(different == 0);
    CHECK(zeros < seen.size());
  }
}

TEST_CASE("dbias without bias_gradient is refused", "[cpu]") {
  Tensor q(1, 3, 1, 4), dbias(1, 1, 3, 3);
  q.setRandom();
  annulus::SelfRing ring;
  annulus::CpuBackend backend;
  annulus::RingAttention attention(ring, backend, {});
  auto const forward = attention.forward(q, q, q, {.bias = dbias});
  Tensor dq(q.dimensions()), dk(q.dimensions()), dv(q.dimensions());
  annulus::GradientViews<float, annulus::HostMemory> views{annulus::view_of(dq), annulus::view_of(dk),
                                                           annulus::view_of(dv), annulus::view_of(dbias)};
  CHECK_THROWS_AS(attention.backward_into(q, forward.output, forward.lse, q, q, q, views, {.bias = dbias}),
                  annulus::ShapeError);
}

TEMPLATE_TEST_CASE("vectors of random numbers are those of each query", "[cpu]", float, double) {
  using namespace annulus::cpu::detail;
  using Words = typename Vector<TestType>::UnsignedBits;
  std::mt19937 random(1);
  for (int repetition = 0; repetition < 200; ++repetition) {
    std::array<std::uint32_t, 2> const key{static_cast<std::uint32_t>(random()), static_cast<std::uint32_t>(random())};
    std::uint32_t const batch = static_cast<std::uint32_t>(random()), group = static_cast<std::uint32_t>(random());
    Words heads{}, queries{}, numbers[4];
    for (int i = 0; i < Vector<TestType>::lanes; ++i) {
      heads[i] = static_cast<std::uint32_t>(random());
      queries[i] = static_cast<std::uint32_t>(random());
    }
    PhiloxQueries<TestType>(batch, heads, queries, key).generate(group, numbers);
    for (int i = 0; i < Vector<TestType>::lanes; ++i) {
      auto const expected = annulus::philox4x32(
          {batch, static_cast<std::uint32_t>(heads[i]), static_cast<std::uint32_t>(queries[i]), group}, key);
      for (std::size_t w = 0; w < 4; ++w) CHECK(numbers[w][i] == expected[w]);
    }
  }
}

TEST_CASE("dropout at positions of every stride and order", "[cpu]") {
  for (std::int64_t length : {31, 128, 131, 290})
    for_each_sharding(length, 2, 1, [](RingProblem& problem) {
      problem.dense.dropout_probability = 0.4;
      problem.dense.dropout_seed = 0x123456789abcdef0u;
    });
}
