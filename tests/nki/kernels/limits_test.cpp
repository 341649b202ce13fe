// Kernels that nearly fill SBUF, and specs that are refused before a kernel is built.

#include <cmath>

#include "annulus/nki/kernels/backward_kernel.hpp"
#include "annulus/nki/kernels/forward_kernel.hpp"
#include "annulus/nki/kernels/ring_mask.hpp"
#include "annulus/nki/validate/validate.hpp"
#include "support/catch.hpp"

namespace {

using annulus::Index;
namespace nki = annulus::nki;

/// Parameters of a kernel for 2 ranks.
struct Shape {
  annulus::Sharding sharding;
  annulus::Mask mask;
  int cores;
  Index rows, query_heads, kv_heads, dim;
  nki::ElementType type;
};

nki::KernelSpec spec_of(Shape const& shape) {
  nki::KernelSpec spec;
  spec.ranks = 2;
  spec.cores = shape.cores;
  spec.shape = {1, shape.query_heads, shape.kv_heads, shape.dim, shape.dim};
  spec.local_queries = spec.local_keys = shape.rows;
  spec.type = spec.output_type = shape.type;
  spec.softmax_scale = 1 / std::sqrt(static_cast<double>(shape.dim));
  return spec;
}

nki::RingMask mask_of(Shape const& shape) {
  return nki::sharded_mask(shape.mask, shape.sharding, 2, shape.rows, shape.rows);
}

Shape const small{annulus::Contiguous{}, annulus::causal(), 1, 256, 1, 1, 64, nki::ElementType::bfloat16};

nki::RingMask packed(std::vector<std::vector<std::int32_t>> const& documents) {
  std::vector<nki::RankRows> const rows{{{{0, 4, 0, 1}}, documents}};
  return {annulus::causal(), rows, rows};
}

}  // namespace

TEST_CASE("kernels that nearly fill SBUF pass validation") {
  constexpr auto f32 = nki::ElementType::float32, bf16 = nki::ElementType::bfloat16;
  for (Shape const& shape : {Shape{annulus::Striped{}, annulus::causal(), 2, 4096, 1, 1, 512, f32},
                             Shape{annulus::Zigzag{}, annulus::causal(), 2, 2048, 1, 1, 384, f32},
                             Shape{annulus::Striped{}, annulus::causal(), 1, 16384, 1, 1, 384, bf16},
                             Shape{annulus::Contiguous{}, annulus::full(), 2, 2048, 16, 1, 512, f32}}) {
    CAPTURE(shape.rows, shape.dim, shape.query_heads);
    nki::Program const program = nki::ForwardKernel(spec_of(shape), mask_of(shape)).ring();
    for (nki::Finding const& finding : nki::findings(program, nki::hardware_of(program.target)))
      FAIL_CHECK(text_of(finding));
  }
}

TEST_CASE("zigzag shards that fill SBUF have a backward kernel that chooses no halves") {
  Shape const shape{annulus::Zigzag{}, annulus::causal(), 1, 196608, 1, 1, 128, nki::ElementType::bfloat16};
  nki::KernelSpec spec = spec_of(shape);
  spec.training = true;
  nki::RingMask const mask = mask_of(shape);
  CHECK(mask.with_chosen_halves());
  CHECK_NOTHROW(nki::BackwardKernel(spec, mask));
}

TEST_CASE("invalid tuning parameters are refused") {
  nki::RingMask const mask = mask_of(small);
  for (Index bad : {-1, 17})
    CHECK_THROWS_AS(nki::ForwardKernel(spec_of(small), mask, {.dma_transposed = bad}), annulus::UnsupportedError);
}

TEST_CASE("invalid kernel specs are refused") {
  nki::RingMask const mask = mask_of(small);
  nki::KernelSpec spec = spec_of(small);
  spec.sinks = -1;
  CHECK_THROWS_AS(nki::ForwardKernel(spec, mask), annulus::UnsupportedError);
  spec.sinks = 0;
  spec.training = false;
  CHECK_THROWS_AS(nki::BackwardKernel(spec, mask), annulus::UnsupportedError);
}

TEST_CASE("a kernel whose program would not fit memory is refused before it is built") {
  Shape long_shards = small;
  long_shards.mask = annulus::full();
  long_shards.rows = Index{1} << 20;
  nki::RingMask const mask = mask_of(long_shards);
  CHECK_THROWS_AS(nki::ForwardKernel(spec_of(long_shards), mask).ring(), annulus::UnsupportedError);
  // The backward pass exceeds SBUF first, with one value per row and a few more.
  CHECK_THROWS_AS(nki::BackwardKernel(spec_of(long_shards), mask).ring(), annulus::ShapeError);
}

TEST_CASE("kernels of one row or one key are valid") {
  for (int const ranks : {1, 3, 5})
    for (nki::RotatingSide const travels : {nki::RotatingSide::keys, nki::RotatingSide::queries}) {
      nki::RingMask const mask = nki::sharded_mask(annulus::full(), annulus::Contiguous{}, ranks, 1, 1);
      nki::KernelSpec spec{
          .ranks = ranks,
          .shape = {1, 3, 3, 16, 16},
          .bias = {.given = true, .by_head = false, .by_query = false, .type = nki::ElementType::bfloat16}};
      spec.travels = travels;
      for (nki::Program const& program :
           {nki::ForwardKernel(spec, mask).ring(), nki::BackwardKernel(spec, mask).ring()})
        CHECK(nki::findings(program, nki::hardware_of(program.target)).empty());
    }
}

TEST_CASE("batch items with equal documents share one mask") {
  nki::KernelSpec spec;
  spec.cores = 1;
  spec.shape = {2, 2, 2, 16, 16};
  spec.local_queries = spec.local_keys = 4;
  nki::RingMask const alike = packed({{1, 1, 2, 2}, {1, 1, 2, 2}}), different = packed({{1, 1, 2, 2}, {1, 2, 2, 2}});
  CHECK(alike.batch() == 1);
  nki::Program const program = nki::ForwardKernel(spec, alike).ring();
  CHECK(nki::findings(program, nki::hardware_of(program.target)).empty());
  CHECK(different.batch() == 2);
  CHECK_THROWS_AS(nki::ForwardKernel(spec, different).ring(), annulus::UnsupportedError);
}
