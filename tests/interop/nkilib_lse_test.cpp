// The lse tiles of nkilib, which have 128 partitions.

#include <annulus/interop/nkilib_layout.hpp>
#include <limits>

#include "support/catch.hpp"

using annulus::Index;
using annulus::TensorView;
namespace nkilib = annulus::nkilib;

TEST_CASE("lse tiles: element (p, g) is position g * 128 + p, padded rows are 0", "[nkilib][C8]") {
  Index const s = GENERATE(1, 127, 128, 129, 200, 256, 300);
  Index const batch = 2, heads = 3, columns = (s + 127) / 128;
  Eigen::Tensor<float, 3, Eigen::RowMajor> lse(batch, heads, s), back(batch, heads, s);
  for (Index i = 0; i < lse.size(); ++i) lse.data()[i] = static_cast<float>(i + 1);
  Eigen::Tensor<float, 4, Eigen::RowMajor> tiles(batch, heads, 128, nkilib::lse_columns(s));
  REQUIRE(nkilib::lse_columns(s) == columns);
  tiles.setConstant(-7.0f);
  nkilib::to_lse_tiles(TensorView<float const, 3>(annulus::view_of(lse)), annulus::view_of(tiles));

  int wrong = 0;
  for (Index b = 0; b < batch; ++b)
    for (Index h = 0; h < heads; ++h)
      for (Index p = 0; p < 128; ++p)
        for (Index g = 0; g < columns; ++g) {
          Index const row = g * 128 + p;
          // In flat memory the element has offset p * columns + g.
          float const seen = tiles.data()[((b * heads + h) * 128 + p) * columns + g];
          wrong += seen != (row < s ? static_cast<float>((b * heads + h) * s + row + 1) : 0.0f);
        }
  CHECK(wrong == 0);

  back.setConstant(-7.0f);
  nkilib::from_lse_tiles(TensorView<float const, 4>(annulus::view_of(tiles)), annulus::view_of(back),
                         [](Index, Index) { return false; });
  int different = 0;
  for (Index i = 0; i < lse.size(); ++i) different += lse.data()[i] != back.data()[i];
  CHECK(different == 0);
}

TEST_CASE("lse tiles: masked rows convert between -inf and 0, and a computed 0 stays 0", "[nkilib][C4]") {
  float const empty = -std::numeric_limits<float>::infinity();
  Eigen::Tensor<float, 3> lse(1, 1, 3), back(1, 1, 3);
  lse.setValues({{{empty, 0.0f, 2.5f}}});
  Eigen::Tensor<float, 4> tiles(1, 1, 128, 1);
  nkilib::to_lse_tiles(TensorView<float const, 3>(annulus::view_of(lse)), annulus::view_of(tiles));
  CHECK(tiles(0, 0, 0, 0) == 0.0f);
  CHECK(tiles(0, 0, 1, 0) == 0.0f);
  CHECK(tiles(0, 0, 2, 0) == 2.5f);
  nkilib::from_lse_tiles(TensorView<float const, 4>(annulus::view_of(tiles)), annulus::view_of(back),
                         [](Index, Index row) { return row == 0; });
  CHECK(back(0, 0, 0) == empty);
  CHECK(back(0, 0, 1) == 0.0f);
  CHECK(back(0, 0, 2) == 2.5f);
}

TEST_CASE("lse tiles: a narrower element type rounds once", "[nkilib]") {
  Eigen::Tensor<float, 3> lse(1, 1, 2);
  lse.setValues({{{1.00390625f, 65.3f}}});
  Eigen::Tensor<Eigen::bfloat16, 4> tiles(1, 1, 128, 1);
  nkilib::to_lse_tiles(TensorView<float const, 3>(annulus::view_of(lse)), annulus::view_of(tiles));
  CHECK(tiles(0, 0, 0, 0) == static_cast<Eigen::bfloat16>(1.00390625f));
  CHECK(tiles(0, 0, 1, 0) == static_cast<Eigen::bfloat16>(65.3f));
}
