#include "annulus/sharding/scatter_gather.hpp"

#include <array>
#include <vector>

#include "annulus/tensor/eigen.hpp"
#include "conformance/sharding_suite.hpp"
#include "support/refusal.hpp"

using namespace annulus;
using annulus_test::check_refused;

namespace {

using RowMajor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using ColMajor = Eigen::Tensor<float, 4>;

constexpr Index batch = 2, heads = 3, dim = 2;

/// The value of each element encodes its index in attention order.
float expected(Index b, Index position, Index h, Index d) {
  return static_cast<float>(((b * 1000 + position) * heads + h) * dim + d);
}

template <class Tensor>
Tensor global_tensor(Index length, AxisOrder order) {
  std::array<Index, 4> const e = stored_extents(order, {batch, length, heads, dim});
  Tensor tensor(e[0], e[1], e[2], e[3]);
  auto const view = view_of(with_axes(tensor, order));
  for (Index b = 0; b < batch; ++b)
    for (Index s = 0; s < length; ++s)
      for (Index h = 0; h < heads; ++h)
        for (Index d = 0; d < dim; ++d) view(b, s, h, d) = expected(b, s, h, d);
  return tensor;
}

template <class Tensor>
void round_trip(Sharding const& sharding, int ranks, Index length, AxisOrder order) {
  auto const global = global_tensor<Tensor>(length, order);
  Tensor gathered(global.dimensions());
  gathered.setConstant(-1.0f);
  for (Rank rank = 0; rank < ranks; ++rank) {
    auto const local = scatter(with_axes(global, order), sharding, rank, ranks);
    STATIC_REQUIRE(std::is_same_v<decltype(local), Tensor const>);
    auto const view = view_of(with_axes(local, order));
    auto const positions =
        positions_of(sharding.segments(Side::query, rank, sharding.lengths(Side::query, ranks, length)));
    REQUIRE(view.extent(axis::sequence) == static_cast<Index>(positions.size()));
    bool right = true;
    for (Index b = 0; b < batch; ++b)
      for (std::size_t s = 0; s < positions.size(); ++s)
        for (Index h = 0; h < heads; ++h)
          for (Index d = 0; d < dim; ++d)
            right = right && view(b, static_cast<Index>(s), h, d) == expected(b, positions[s], h, d);
    CHECK(right);
    gather(with_axes(local, order), sharding, rank, ranks, with_axes(gathered, order));
  }
  bool equal = true;
  for (Index i = 0; i < global.size(); ++i) equal = equal && gathered.data()[i] == global.data()[i];
  CHECK(equal);
}

}  // namespace

TEMPLATE_TEST_CASE("scatter then gather restores the tensor, in every axis order", "[sharding]", RowMajor, ColMajor) {
  AxisOrder const order = GENERATE(AxisOrder::bshd, AxisOrder::bhsd, AxisOrder::bhds);
  for (int ranks : {1, 2, 3, 7})
    for (Index length : annulus_test::awkward_lengths(ranks)) {
      CAPTURE(ranks, length, name_of(order));
      for (Sharding const& sharding :
           {Sharding(), Sharding(Striped{}), Sharding(Striped{.block = 3}), Sharding(Zigzag{})})
        round_trip<TestType>(sharding, ranks, length, order);
    }
}

TEST_CASE("scatter then gather restores a shuffled explicit map", "[sharding]") {
  round_trip<RowMajor>(ExplicitMap{.queries = {{7, 0, 3}, {}, {1, 2, 6, 5, 4}}, .keys = {}}, 3, 8, AxisOrder::bhsd);
}

TEST_CASE("keys are scattered by the map of the keys", "[sharding]") {
  Sharding const sharding = ExplicitMap{.queries = {{0, 1, 2}, {3}}, .keys = {{3}, {2, 1, 0}}};
  auto const global = global_tensor<RowMajor>(4, AxisOrder::bshd);
  CHECK(scatter(global, sharding, 0, 2, Side::query).dimension(1) == 3);
  auto const keys = scatter(global, sharding, 1, 2, Side::key);
  CHECK(keys.dimension(1) == 3);
  CHECK(keys(0, 0, 0, 0) == expected(0, 2, 0, 0));
}

TEST_CASE("uneven shards are scattered by the caller's segments, along any axis", "[sharding]") {
  std::array<int, 10> const global{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  std::array<int, 10> gathered{};
  std::vector<Index> const lengths{1, 0, 4};
  for (Rank rank = 0; rank < 3; ++rank) {
    auto const segments = Sharding().segments(Side::key, rank, lengths);
    Index const rows = lengths[static_cast<std::size_t>(rank)];
    std::vector<int> local(static_cast<std::size_t>(2 * rows));
    scatter_into(TensorView<int const, 2>(global.data(), {2, 5}), std::span<Segment const>(segments),
                 TensorView<int, 2>(local.data(), {2, rows}), 1);
    gather_into(TensorView<int const, 2>(local.data(), {2, rows}), std::span<Segment const>(segments),
                TensorView<int, 2>(gathered.data(), {2, 5}), 1);
  }
  CHECK(gathered == global);
}

TEST_CASE("scatter converts the element type once", "[sharding]") {
  std::array<double, 3> const global{0.1, 0.2, 0.3};
  std::array<Eigen::half, 3> local{};
  std::vector<Segment> const segments{{0, 3, 0, 1}};
  scatter_into(TensorView<double const, 1>(global.data(), {3}), std::span<Segment const>(segments),
               TensorView<Eigen::half, 1>(local.data(), {3}), 0);
  for (std::size_t i = 0; i < 3; ++i) CHECK(static_cast<float>(local[i]) == static_cast<float>(Eigen::half(global[i])));
}

TEST_CASE("shards whose extents do not match are refused", "[sharding]") {
  std::array<int, 12> values{};
  TensorView<int, 2> const global(values.data(), {2, 6});
  TensorView<int, 2> const three(values.data(), {2, 3}), one_row(values.data(), {2, 3}, {1, 0}),
      one_position(values.data(), {2, 6}, {0, 1});
  std::vector<Segment> const odd{{0, 3, 1, 2}};
  auto const tensor = global_tensor<RowMajor>(6, AxisOrder::bshd);
  auto target = tensor;
  auto const scatter_to = [&](std::vector<Segment> const& segments, TensorView<int, 2> local,
                              std::size_t sequence = 1) {
    return [=] { scatter_into(global, std::span<Segment const>(segments), local, sequence); };
  };
  CHECK_NOTHROW(scatter_to({{0, 3, 0, 2}}, three)());
  CHECK_NOTHROW(scatter_to({{0, 0, 0, 1}}, TensorView<int, 2>(nullptr, {2, 0}))());
  check_refused({
      {"an axis beyond", "ShapeError", "axis 2", scatter_to({{0, 3, 0, 2}}, three, 2)},
      {"another axis", "ShapeError", "[2, 3]", scatter_to({{0, 3, 0, 2}}, three, 0)},
      {"more rows", "ShapeError", "[2, 3]", scatter_to({{0, 4, 0, 1}}, three)},
      {"a position beyond", "ShapeError", "6", scatter_to({{0, 3, 0, 3}}, three)},
      {"a negative position", "ShapeError", "-1", scatter_to({{0, 3, -1, 1}}, three)},
      {"rows out of order", "ShapeError", "2", scatter_to({{2, 3, 0, 1}, {0, 3, 3, 1}}, three)},
      {"a shard whose rows are one", "ShapeError", "the shard of extents [2, 3] has strides [1, 0]",
       scatter_to(odd, one_row)},
      {"a result whose rows are one", "ShapeError", "the global tensor of extents [2, 6] has strides [0, 1]",
       [&] { gather_into(three, std::span<Segment const>(odd), one_position, 1); }},
      {"a rank beyond", "ShapeError", "rank 3", [&] { scatter(tensor, Contiguous{}, 3, 3); }},
      {"a negative rank", "ShapeError", "rank -1", [&] { scatter(tensor, Contiguous{}, -1, 3); }},
      {"the whole as a shard", "ShapeError", "6", [&] { gather(tensor, Contiguous{}, 0, 2, target); }},
  });
}
