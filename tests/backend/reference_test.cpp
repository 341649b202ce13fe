// Products of the reference backend that overflow although the logits do not.

#include <annulus/annulus.hpp>
#include <cmath>

#include "support/catch.hpp"

TEST_CASE("a product that overflows gives a finite logit if the softmax scale makes it one", "[backend]") {
  using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
  annulus::SelfRing ring;
  annulus::ReferenceBackend backend;
  annulus::RingAttention attention(ring, backend, {.softmax_scale = 0.25});
  Tensor q(1, 1, 1, 4), k(1, 2, 1, 4), v(1, 2, 1, 1), dout(1, 1, 1, 1);
  q.setConstant(1.25e19f);
  k.setConstant(1.25e19f);
  v.setValues({{{{1.0f}}, {{3.0f}}}});
  dout.setConstant(1.0f);
  auto const forward = attention.forward(q, k, v);
  CHECK(forward.output(0, 0, 0, 0) == 2.0f);
  CHECK(std::isfinite(forward.lse(0, 0, 0)));
  auto const gradients = attention.backward(dout, forward, q, k, v);
  CHECK((gradients.dv(0, 0, 0, 0) == 0.5f && gradients.dv(0, 1, 0, 0) == 0.5f));
  CHECK(std::isfinite(gradients.dk(0, 0, 0, 0)));
}
