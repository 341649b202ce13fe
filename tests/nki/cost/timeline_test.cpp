// Timeline of a program: concurrent engines, data dependencies, DMA queues, pairs of cores.

#include "annulus/nki/cost/timeline.hpp"
#include "annulus/nki/program/builder.hpp"
#include "support/catch.hpp"

using namespace annulus::nki;
using annulus::Index;

namespace {

constexpr ElementType f32 = ElementType::float32, bf16 = ElementType::bfloat16;

/// One executed instruction.
struct Ran {
  std::string_view name;
  int core;
  double begin, end;
  bool operator==(Ran const&) const = default;
};

/// Observer that records the executed instructions.
struct Record {
  std::vector<Ran> ran;
  void section(int, Section const&, Index) {}
  void executed(Execution const& execution) {
    ran.push_back({name_of(*execution.plan.instruction), execution.core, execution.begin, execution.end});
  }
};

std::vector<Ran> run(Program const& program) {
  Record record;
  Timeline(program, hardware_of(program.target)).run(record);
  return record.ran;
}

double last_end(std::vector<Ran> const& ran) {
  double end = 0;
  for (Ran const& one : ran) end = std::max(end, one.end);
  return end;
}

// trn2, fp32 tiles of 128 partitions; seconds.
double const signal = 64 / 1.4e9;
double vector_cycles(double cycles) { return cycles / 0.96e9; }
double scalar_cycles(double cycles) { return cycles / 1.2e9; }
/// Transfer time with all 16 DMA engines, for rows of the given size in bytes.
double transfer(double bytes, double row) { return bytes / (16 * 23e9 * row / (row + 256)); }
constexpr double issue = 0.6e-6, latency = 1.3e-6;

/// Builder of programs with SBUF tiles of 128 partitions.
struct Writer : Builder {
  explicit Writer(int cores = 1) : Builder("timeline", Target::trn2, cores, 4) {}
  TileHandle sbuf(std::string name, Index elements, ElementType type = f32) {
    return tile(std::move(name), Memory::sbuf, 128, elements, type);
  }
};

Activation exp_of(Access dst, Access data) {
  return {.dst = std::move(dst), .op = Function::exp, .data = std::move(data)};
}

}  // namespace

TEST_CASE("dependent instructions on three engines add up, independent ones overlap", "[nki][cost]") {
  bool const chain = GENERATE(true, false);
  Writer writer;
  TileHandle const a = writer.sbuf("a", 512), b = writer.sbuf("b", 512, bf16), c = writer.sbuf("c", 512, bf16),
                   other = writer.sbuf("other", 512);
  TileHandle const product = writer.tile("product", Memory::psum, 128, 512, f32);
  writer.emit(Memset{a.whole(), 1.0f});
  writer.emit(exp_of(b.whole(), (chain ? a : other).whole()));
  TileHandle const factor = chain ? b : c;
  writer.emit(MatMul{product.whole(), factor.columns(0, 128), factor.whole()});
  auto const ran = run(writer.program());
  double const first = vector_cycles(512), second = scalar_cycles(512), third = 512 / 2.4e9;
  if (chain)
    CHECK(ran[2].end == Approx(first + signal + second + signal + third));
  else
    CHECK(last_end(ran) == Approx(first));
}

TEST_CASE("an engine works in program order and pays for tiny dependent instructions", "[nki][cost]") {
  Writer writer;
  TileHandle const a = writer.sbuf("a", 1), b = writer.sbuf("b", 1), c = writer.sbuf("c", 1);
  writer.emit(TensorCopy{b.whole(), a.whole()});
  SECTION("independent") {
    writer.emit(TensorCopy{c.whole(), a.whole()});
    CHECK(last_end(run(writer.program())) == Approx(vector_cycles(64 + 64)));
  }
  SECTION("dependent") {
    writer.emit(TensorCopy{c.whole(), b.whole()});
    CHECK(last_end(run(writer.program())) == Approx(vector_cycles(64 + 100 + 64)));
  }
  SECTION("after an instruction that waits") {
    TileHandle const wide = writer.sbuf("wide", 512), result = writer.sbuf("result", 512);
    writer.emit(exp_of(wide.whole(), wide.whole()));
    writer.emit(TensorCopy{result.whole(), wide.whole()});
    writer.emit(TensorCopy{c.whole(), a.whole()});
    auto const ran = run(writer.program());
    CHECK(ran[2].begin == Approx(scalar_cycles(512) + signal));
    CHECK(ran[3].begin == Approx(ran[2].end));
  }
}

TEST_CASE("an idle engine reports the engine it waits for", "[nki][cost]") {
  Writer writer;
  TensorHandle const from = writer.tensor("from", {128, 512}, f32);
  TileHandle const a = writer.sbuf("a", 512), b = writer.sbuf("b", 512), c = writer.sbuf("c", 512);
  writer.emit(DmaCopy{a.whole(), from.pattern(0, {{512, 128}, {1, 512}})});
  writer.emit(Memset{c.whole(), 0.0f});
  writer.emit(exp_of(b.whole(), a.whole()));
  writer.emit(TensorTensor{c.whole(), b.whole(), c.whole()});
  struct Waits : Record {
    std::vector<std::pair<double, Engine>> waits;
    void executed(Execution const& execution) { waits.emplace_back(execution.waited, execution.waited_for); }
  } seen;
  Program const program = std::move(writer).finish();
  Timeline(program, hardware_of(Target::trn2)).run(seen);
  double const loaded = issue + latency + transfer(128 * 2048, 2048) + signal;
  CHECK(seen.waits[1].first == 0);
  CHECK(seen.waits[2].first == Approx(loaded));
  CHECK(seen.waits[2].second == Engine::dma);
  CHECK(seen.waits[3].first == Approx(loaded + scalar_cycles(512) + signal - vector_cycles(512)));
  CHECK(seen.waits[3].second == Engine::scalar);
}

TEST_CASE("double buffering of a tile overlaps its load with computation", "[nki][cost]") {
  int const rotation = GENERATE(1, 2);
  constexpr Index times = 10;
  Writer writer;
  TensorHandle const from = writer.tensor("from", {128, 512 * times}, f32);
  TileHandle const loaded = writer.declare("loaded", Memory::sbuf, 128, 512, f32, rotation);
  TileHandle const result = writer.sbuf("result", 512);
  writer.loop("i", times, [&](Affine i) {
    writer.allocate(loaded);
    writer.emit(DmaCopy{loaded.whole(), from.pattern(i * 512, {{512 * times, 128}, {1, 512}})});
    writer.emit(Reciprocal{result.whole(), loaded.whole()});
  });
  double const load = issue + latency + transfer(128 * 2048, 2048) + signal, compute = vector_cycles(8 * 512);
  REQUIRE(load < compute);
  CHECK(last_end(run(writer.program())) == Approx(rotation == 1 ? times * (load + compute) : load + times * compute));
}

TEST_CASE("only accesses to overlapping elements wait", "[nki][cost]") {
  Writer writer;
  TileHandle const wide = writer.sbuf("wide", 1024), result = writer.sbuf("result", 512);
  writer.emit(Reciprocal{wide.columns(0, 512), wide.columns(0, 512)});
  double const written = vector_cycles(4096) + signal;
  SECTION("the other half") {
    writer.emit(exp_of(wide.columns(512, 512), wide.columns(512, 512)));
    CHECK(run(writer.program())[1].begin == 0);
  }
  SECTION("read after write") {
    writer.emit(exp_of(result.whole(), wide.columns(511, 512)));
    CHECK(run(writer.program())[1].begin == Approx(written));
  }
  SECTION("the whole tile") {
    writer.emit(exp_of(wide.whole(), wide.whole()));
    CHECK(run(writer.program())[1].begin == Approx(written));
  }
  SECTION("a part after the whole, by a third engine") {
    writer.emit(exp_of(wide.whole(), wide.whole()));
    writer.emit(Memset{wide.columns(512, 512), 0.0f, Engine::gpsimd});
    auto const ran = run(writer.program());
    CHECK(ran[2].begin == Approx(ran[1].end + signal));
  }
  SECTION("write after read") {
    writer.emit(Memset{wide.columns(100, 1), 0.0f, Engine::gpsimd});
    CHECK(run(writer.program())[1].begin == Approx(written));
  }
  SECTION("two readers") {
    writer.emit(exp_of(result.whole(), wide.columns(512, 512)));
    writer.emit(exp_of(result.whole(), wide.columns(512, 512)));
    CHECK(run(writer.program())[2].begin == Approx(scalar_cycles(512)));
  }
}

TEST_CASE("column blocks of a tensor in HBM are tracked separately", "[nki][cost]") {
  Writer writer;
  TensorHandle const tensor = writer.tensor("tensor", {128, 2048}, f32);
  TileHandle const slow = writer.sbuf("slow", 512), fast = writer.sbuf("fast", 512), to = writer.sbuf("to", 512);
  auto const block = [&](Index number) { return tensor.pattern(number * 512, {{2048, 128}, {1, 512}}); };
  writer.emit(Reciprocal{slow.whole(), slow.whole()});
  writer.emit(DmaCopy{block(0), slow.whole()});
  writer.emit(DmaCopy{block(1), fast.whole()});
  writer.emit(DmaCopy{to.whole(), block(1)});
  auto const ran = run(writer.program());
  double const move = transfer(128 * 2048, 2048);
  CHECK(ran[1].begin == Approx(vector_cycles(4096)));
  CHECK(ran[2].begin == 0);
  CHECK(ran[2].end == Approx(issue + latency + move));
  CHECK(ran[3].begin == Approx(ran[2].end));
}

TEST_CASE("DMAs share two descriptor generators and the bandwidth", "[nki][cost]") {
  Writer writer;
  TensorHandle const tensor = writer.tensor("tensor", {128, 4096}, f32);
  for (int i = 0; i < 4; ++i)
    writer.emit(DmaCopy{writer.sbuf("to" + std::to_string(i), 1024).whole(),
                        tensor.pattern(i * 1024, {{4096, 128}, {1, 1024}})});
  auto const ran = run(writer.program());
  double const move = transfer(128 * 4096, 4096);
  REQUIRE(move > issue);
  CHECK(ran[0].begin == 0);
  CHECK(ran[1].begin == 0);
  CHECK(ran[2].begin == Approx(issue));
  CHECK(ran[3].begin == Approx(issue));
  for (int i = 0; i < 4; ++i) CHECK(ran[static_cast<std::size_t>(i)].end == Approx(issue + latency + (i + 1) * move));
}

TEST_CASE("a waiting DMA does not delay later DMAs", "[nki][cost]") {
  Writer writer;
  TensorHandle const tensor = writer.tensor("tensor", {128, 1024}, f32);
  auto const block = [&](Index number) { return tensor.pattern(number * 512, {{1024, 128}, {1, 512}}); };
  TileHandle const slow = writer.sbuf("slow", 512), to = writer.sbuf("to", 512);
  writer.emit(Reciprocal{slow.whole(), slow.whole()});
  writer.emit(DmaCopy{block(0), slow.whole()});
  writer.emit(DmaCopy{block(0), slow.whole()});
  writer.emit(DmaCopy{to.whole(), block(1)});
  auto const ran = run(writer.program());
  CHECK(ran[3].begin == 0);
  CHECK(ran[3].end == Approx(issue + latency + transfer(128 * 2048, 2048)));
}

TEST_CASE("a DMA of few partitions leaves the other DMA engines free", "[nki][cost]") {
  Writer writer;
  TensorHandle const tensor = writer.tensor("tensor", {128, 1024}, f32);
  TileHandle const a = writer.sbuf("a", 1024), b = writer.sbuf("b", 1024);
  writer.emit(DmaCopy{a.part(0, 8, 0, 1024), tensor.pattern(0, {{1024, 8}, {1, 1024}})});
  writer.emit(DmaCopy{b.part(0, 8, 0, 1024), tensor.pattern(8 * 1024, {{1024, 8}, {1, 1024}})});
  auto const ran = run(writer.program());
  double const one_engine = 8 * 4096 / (23e9 * 4096 / 4352);
  CHECK(ran[0].end == Approx(issue + latency + one_engine));
  CHECK(ran[1].end == Approx(issue + latency + one_engine / 16 + one_engine));
}

TEST_CASE("data received by a permute are available after its latency and transfer", "[nki][cost]") {
  Writer writer;
  TensorHandle const a = writer.tensor("a", {128, 512}, f32), b = writer.tensor("b", {128, 512}, f32);
  TileHandle const own = writer.sbuf("own", 512), received = writer.sbuf("received", 512);
  writer.emit(DmaCopy{a.pattern(0, {{512, 128}, {1, 512}}), own.whole()});
  writer.emit(CollectivePermute{a.whole(), b.whole()});
  writer.emit(DmaCopy{received.whole(), b.pattern(0, {{512, 128}, {1, 512}})});
  auto const ran = run(writer.program());
  CHECK(ran[1].begin == Approx(ran[0].end));
  CHECK(ran[1].end == Approx(ran[1].begin + 1.5e-6 + 128 * 2048 / 256e9));
  CHECK(ran[2].begin == Approx(ran[1].end));
}

TEST_CASE("a permute and a DMA transpose do not overlap", "[nki][cost]") {
  Writer writer;
  TensorHandle const a = writer.tensor("a", {128, 512}, f32), b = writer.tensor("b", {128, 512}, f32);
  TileHandle const from = writer.sbuf("from", 128, bf16), to = writer.sbuf("to", 128, bf16),
                   later = writer.sbuf("later", 128, bf16);
  writer.emit(DmaTranspose{to.whole(), from.whole()});
  writer.emit(CollectivePermute{a.whole(), b.whole()});
  writer.emit(DmaTranspose{later.whole(), from.whole()});
  auto const ran = run(writer.program());
  double const transfer_of_transpose = ran[0].end - issue - latency;
  CHECK(transfer_of_transpose > 0);
  CHECK(ran[1].begin == Approx(ran[0].end));
  CHECK(ran[2].end == Approx(ran[1].end + transfer_of_transpose));
  // A copy continues during the permute.
  writer = Writer();
  TensorHandle const c = writer.tensor("c", {128, 512}, f32), d = writer.tensor("d", {128, 512}, f32),
                     e = writer.tensor("e", {128, 512}, f32);
  TileHandle const tile = writer.sbuf("tile", 512);
  writer.emit(CollectivePermute{c.whole(), d.whole()});
  writer.emit(DmaCopy{e.pattern(0, {{512, 128}, {1, 512}}), tile.whole()});
  auto const beside = run(writer.program());
  CHECK(beside[0].begin == Approx(0));
  CHECK(beside[1].end == Approx(issue + latency + transfer(128 * 2048, 2048)));
}

TEST_CASE("an offset from a register waits for the register", "[nki][cost]") {
  Writer writer;
  TensorHandle const ranks = writer.tensor("ranks", {1, 4}, f32);
  TileHandle const to = writer.tile("to", Memory::sbuf, 1, 1, f32);
  int const number = writer.make_register();
  writer.emit(ProcessingRank{number});
  Access from = ranks.pattern(0, {{1, 1}, {1, 1}});
  from.register_offset = RegisterOffset{number, 1};
  writer.emit(DmaCopy{to.whole(), from});
  CHECK(run(writer.program())[1].begin == Approx(2e-6));
}

TEST_CASE("a register is loaded when its value has been written", "[nki][cost]") {
  Writer writer;
  TensorHandle const table = writer.tensor("table", {1, 4}, f32);
  TileHandle const to = writer.tile("to", Memory::sbuf, 1, 1, f32), large = writer.sbuf("large", 512),
                   word = writer.tile("word", Memory::sbuf, 1, 1, ElementType::int32);
  writer.emit(TensorScalar{.dst = word.whole(), .data = large.part(0, 1, 0, 1)});
  RegisterLoad const load{writer.make_register({.count = 2}), word.whole()};
  writer.emit(load);
  Access from = table.pattern(0, {{1, 1}, {1, 1}});
  from.register_offset = RegisterOffset{load.register_number, 1};
  writer.emit(DmaCopy{to.whole(), from});
  auto const ran = run(writer.program());
  CHECK(ran[1].begin == Approx(ran[0].end + signal));
  CHECK(ran[2].begin == Approx(ran[1].begin + 2e-6));
}

TEST_CASE("a barrier ends for both cores after the later one", "[nki][cost]") {
  int const slower = GENERATE(0, 1);
  Writer writer(2);
  TensorHandle const shared = writer.tensor("shared", {256, 512}, f32);
  TileHandle const own = writer.sbuf("own", 512), received = writer.sbuf("received", 512);
  writer.on_core(slower, [&] { writer.emit(Reciprocal{own.whole(), own.whole()}); });
  writer.emit(DmaCopy{shared.pattern(Affine::of(core_variable, 128 * 512), {{512, 128}, {1, 512}}), own.whole()});
  writer.emit(CoreBarrier{shared.whole()});
  writer.emit(DmaCopy{received.whole(), shared.pattern(0, {{512, 128}, {1, 512}})});
  double const store = issue + latency + 128 * 2048 / std::min(16 * 23e9 * 2048.0 / 2304, 2.9e12 / 8);
  double const later = vector_cycles(4096) + store, end = later + signal + 1.3e-6;
  int barriers = 0, loads = 0;
  for (Ran const& one : run(writer.program())) {
    if (one.name == CoreBarrier::name) {
      ++barriers;
      CHECK(one.begin == Approx((one.core == slower ? later : store) + signal));
      CHECK(one.end == Approx(end));
    } else if (one.name == DmaCopy::name && one.begin > later) {
      ++loads;
      CHECK(one.begin == Approx(end));
    }
  }
  CHECK(barriers == 2);
  CHECK(loads == 2);
}

TEST_CASE("a loop takes the time of its unrolled body", "[nki][cost]") {
  auto const build = [](bool rolled) {
    Writer writer;
    TensorHandle const from = writer.tensor("from", {128, 4096}, bf16);
    TileHandle const loaded = writer.declare("loaded", Memory::sbuf, 128, 512, bf16, 2);
    TileHandle const sums = writer.sbuf("sums", 8), product = writer.tile("product", Memory::psum, 128, 512, f32);
    auto const body = [&](Affine i) {
      writer.allocate(loaded);
      writer.emit(DmaCopy{loaded.whole(), from.pattern(i * 512, {{4096, 128}, {1, 512}})});
      writer.emit(MatMul{product.whole(), loaded.columns(0, 128), loaded.whole()});
      writer.emit(TensorReduce{.dst = sums.column(i), .op = Operator::add, .data = product.whole()});
    };
    if (rolled)
      writer.loop("i", 8, body);
    else
      for (Index i = 0; i < 8; ++i) body(i);
    return std::move(writer).finish();
  };
  auto const rolled = run(build(true)), unrolled = run(build(false));
  CHECK(rolled.size() == 24);
  CHECK(rolled == unrolled);
}

TEST_CASE("programs that validation would refuse are refused", "[nki][cost]") {
  Writer writer(2);
  TensorHandle const shared = writer.tensor("shared", {128, 512}, f32);
  TileHandle const tile = writer.sbuf("tile", 512);
  SECTION("one core waits alone") {
    writer.on_core(1, [&] { writer.emit(CoreBarrier{shared.whole()}); });
    CHECK_THROWS_WITH(run(writer.program()), Catch::Matchers::ContainsSubstring("waits for the other"));
  }
  SECTION("the cores wait at different instructions") {
    writer.on_core(0, [&] { writer.emit(CoreBarrier{shared.whole()}); });
    writer.on_core(1, [&] { writer.emit(CollectivePermute{shared.whole(), shared.whole()}); });
    CHECK_THROWS_WITH(run(writer.program()), Catch::Matchers::ContainsSubstring("different instructions"));
  }
  SECTION("a tile that is no longer kept") {
    writer.allocate(tile);
    writer.emit(Memset{tile.before().whole(), 0.0f});
    CHECK_THROWS_WITH(run(writer.program()), Catch::Matchers::ContainsSubstring("not alive"));
  }
  SECTION("elements beyond the end of a buffer") {
    writer.emit(Memset{tile.columns(1, 512), 0.0f});
    CHECK_THROWS_WITH(run(writer.program()), Catch::Matchers::ContainsSubstring("reaches beyond"));
  }
}
