// Listings: readable text of tile programs.
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/program/builder.hpp"
#include "annulus/nki/program/listing.hpp"
#include "nki/program/golden_programs.hpp"
#include "support/catch.hpp"

namespace annulus::nki {
namespace {

TEST_CASE("a listing: head, buffers with their bytes, one line per node") {
  Builder b("sample", Target::trn3, 2, 4);
  auto const q = b.tensor("q", {2, 64, 512}, ElementType::bfloat16, Role::input);
  auto const out = b.tensor("out", {64, 512}, ElementType::float32, Role::output);
  auto const x = b.declare("x", Memory::sbuf, 64, 512, ElementType::float32, 3);
  auto const bank = b.declare("bank", Memory::psum, 64, 512, ElementType::float32);
  int const r = b.make_register();
  b.section("start");
  b.emit(ProcessingRank{r, 1});
  b.loop("i", 3, [&](Affine const& i) {
    b.allocate(x);
    b.on_core(1, [&] { b.emit(Memset{x.part(32, 32, i * 64, 64), 0.5f}); });
    Access row = q.pattern(i * 512, {{512, 64}, {1, 512}});
    row.register_offset = RegisterOffset{r, 0};
    b.emit(DmaCopy{x.whole(), row});
    b.emit(TensorCopy{x.before(2).whole(), x.before().pattern(0, 64, 3, {{2, 256}})});
    b.emit(Iota{x.whole(), {{1, 512}}, i * 4, -1});
  });
  RangeSelect select;
  select.dst = x.whole();
  select.on_true_tile = bank.whole();
  select.bound0 = x.column(0);
  select.bound1 = x.column(1);
  b.emit(select);
  b.emit(CoreBarrier{out.whole()});
  b.emit(StreamShuffle{x.part(32, 32, 0, 512), x.part(0, 1, 0, 512)});
  CHECK(listing(b.program()) == R"(program sample: trn3, 2 cores, 4 ranks, 1 register
buffers
  q     shared_hbm  bfloat16 [2, 64, 512]          131072 bytes, input
  out   shared_hbm  float32  [64, 512]             131072 bytes, output
  x     sbuf        float32  [64, 512]             2048 bytes per partition x 3
  bank  psum        float32  [64, 512]             2048 bytes per partition x 1
body
  -- start 0
  collective_permute_implicit_current_processing_rank_id r0  iteration_id=1  channel_id=0
  for i_1 < 3
    allocate x
    on core 1
      memset  dst=x[32:64, 64 * i_1:64 * i_1 + 64]  value=0.5  engine=vector
    dma_copy  dst=x[0:64, 0:512]  src=q[512 * i_1 + r0 on axis 0; 512x64 1x512]
    tensor_copy  dst=x'2[0:64, 0:512]  src=x'1[0:64, 3; 2x256]  engine=vector
    iota  dst=x[0:64, 0:512]  pattern=[1x512]  offset=4 * i_1  channel_multiplier=-1
  range_select  dst=x[0:64, 0:512]  on_true_tile=bank[0:64, 0:512]  comp_op0=greater_equal  comp_op1=less  bound0=x[0:64, 0:1]  bound1=x[0:64, 1:2]  reduce_cmd=reset_reduce  reduce_op=maximum  range_start=0  on_false_value=-3.4028235e+38
  core_barrier  data=out
  nc_stream_shuffle  dst=x[32:64, 0:512]  src=x[0:1, 0:512]  shuffle_mask=0 x 32
)");
}

TEST_CASE("equal programs have equal listings, and different instructions different ones") {
  Program const program = golden::ring_weighted_sum();
  Program copy = program;
  CHECK(listing(copy) == listing(program));
  auto const& last = copy.body.back();
  auto changed = std::get<DmaCopy>(std::get<Instruction>(last.content));
  changed.src.age = 1;
  copy.body.back().content = Instruction(changed);
  CHECK(listing(copy) != listing(program));
}

}  // namespace
}  // namespace annulus::nki
