// Cost report of a program: utilisation, exposed communication, sections, memory, tables.

#include <algorithm>
#include <sstream>

#include "annulus/nki/cost/report.hpp"
#include "annulus/nki/program/builder.hpp"
#include "support/catch.hpp"

using namespace annulus::nki;
using annulus::Index;

namespace {

constexpr ElementType f32 = ElementType::float32, bf16 = ElementType::bfloat16;

double busy(CostReport const& report, int core, Engine engine) {
  return report.cores[static_cast<std::size_t>(core)].engines[static_cast<std::size_t>(engine)].busy;
}

CostReport report_of(Program const& program) { return cost_report(program, hardware_of(program.target)); }

Program matmuls(Index count) {
  Builder builder("matmuls", Target::trn2, 1, 1);
  TileHandle const a = builder.tile("a", Memory::sbuf, 128, 128, bf16),
                   b = builder.tile("b", Memory::sbuf, 128, 512, bf16);
  TileHandle const product = builder.declare("product", Memory::psum, 128, 512, f32, 2);
  builder.loop("i", count, [&](Affine) {
    builder.allocate(product);
    builder.emit(MatMul{product.whole(), a.whole(), b.whole()});
  });
  return std::move(builder).finish();
}

constexpr double reciprocal = 4096 / 0.96e9;

/// A ring step: sends a, computes `work` reciprocals of 512 elements, then uses the received b.
Program ring(Index work, int cores = 1) {
  Builder builder("ring", Target::trn2, cores, 4);
  TensorHandle const a = builder.tensor("a", {128, 4096}, f32), b = builder.tensor("b", {128, 4096}, f32);
  TileHandle const own = builder.tile("own", Memory::sbuf, 128, 512, f32);
  TileHandle const received = builder.tile("received", Memory::sbuf, 128, 512, f32);
  builder.section("step", 0);
  builder.emit(CollectivePermute{a.whole(), b.whole()});
  builder.loop("i", work, [&](Affine) { builder.emit(Reciprocal{own.whole(), own.whole()}); });
  builder.section("step", 1);
  builder.emit(DmaCopy{received.whole(), b.pattern(0, {{4096, 128}, {1, 512}})});
  builder.emit(Reciprocal{received.whole(), received.whole()});
  return std::move(builder).finish();
}

double const permute = 1.5e-6 + 128 * 4096 * 4 / 256e9;
double load(int cores) {
  double const rate = std::min(16 * 23e9 * 2048.0 / 2304, 2.9e12 / 4 / cores);
  return 1.9e-6 + 128 * 2048 / rate + 64 / 1.4e9;
}

}  // namespace

TEST_CASE("a program of matmuls alone runs TensorE at its peak", "[nki][cost]") {
  CostReport const report = report_of(matmuls(2000));
  CHECK(report.seconds == Approx(2000 * 512 / 2.4e9));
  CHECK(report.tensor_utilisation == Approx(2.0 * 128 * 128 * 2.4e9 / 79e12));
  CHECK(report.tensor_utilisation > 0.99);
  CHECK(report.tensor_utilisation < 1.0);
  CHECK(busy(report, 0, Engine::tensor) == Approx(report.seconds));
  CHECK_FALSE(report.estimate);
  CHECK(report.exposed == 0);
}

TEST_CASE("a permute is hidden by enough computation", "[nki][cost]") {
  int const cores = GENERATE(1, 2);
  Index const work = 4;
  REQUIRE(work * reciprocal > permute + load(cores));
  CostReport const report = report_of(ring(work, cores));
  CHECK(report.seconds == Approx((work + 1) * reciprocal));
  CHECK(report.exposed == 0);
  REQUIRE(report.sections.size() == 2);
  CHECK(report.sections[0].name == "step");
  CHECK(report.sections[1].number == 1);
  CHECK(report.sections[0].permute == Approx(permute));
  CHECK(report.sections[1].permute == 0);
  CHECK(report.sections[0].seconds == Approx(work * reciprocal));
  CHECK(report.sections[1].seconds == Approx(reciprocal));
  CHECK(report.sections[0].busy[static_cast<std::size_t>(Engine::vector)] == Approx(cores * work * reciprocal));
}

TEST_CASE("the part of a permute that is not hidden is exposed in the section that uses its data", "[nki][cost]") {
  int const cores = GENERATE(1, 2);
  Index const work = 1;
  REQUIRE(work * reciprocal > load(cores));
  REQUIRE(work * reciprocal < permute);
  CostReport const report = report_of(ring(work, cores));
  CHECK(report.seconds == Approx(permute + load(cores) + reciprocal));
  // Without the permute the load ends before the first reciprocal.
  double const exposed = permute + load(cores) - work * reciprocal;
  CHECK(report.exposed == Approx(exposed));
  CHECK(report.sections[0].exposed == 0);
  CHECK(report.sections[1].exposed == Approx(exposed));
  CHECK(report.estimate);
  CHECK(report.counts.permuted == 128 * 4096 * 4);
}

TEST_CASE("a permute without concurrent computation is exposed, including its latency", "[nki][cost]") {
  CostReport const report = report_of(ring(0));
  CHECK(report.seconds == Approx(permute + load(1) + reciprocal));
  CHECK(report.exposed == Approx(permute));
}

TEST_CASE("sections entered several times are summed, and all sections cover the time", "[nki][cost]") {
  Builder builder("sections", Target::trn2, 1, 1);
  TensorHandle const to = builder.tensor("to", {128, 512}, f32);
  TileHandle const tile = builder.tile("tile", Memory::sbuf, 128, 512, f32);
  builder.emit(Memset{tile.whole(), 1.0f});
  builder.loop("i", 3, [&](Affine i) {
    builder.section("both", 0);
    builder.emit(Reciprocal{tile.whole(), tile.whole()});
    builder.section("each", i);
    builder.emit(TensorTensor{tile.whole(), tile.whole(), tile.whole()});
  });
  builder.emit(DmaCopy{to.pattern(0, {{512, 128}, {1, 512}}), tile.whole()});
  CostReport const report = report_of(std::move(builder).finish());
  REQUIRE(report.sections.size() == 5);
  CHECK(report.sections[0].name.empty());
  CHECK(report.sections[1].name == "both");
  CHECK(report.sections[1].instructions == 3);
  CHECK(report.sections[1].seconds == Approx(3 * reciprocal));
  CHECK(report.sections[3].number == 1);
  CHECK(report.sections[3].seconds == Approx(1024 / 0.96e9));
  double sum = 0;
  for (SectionCost const& section : report.sections) sum += section.seconds;
  CHECK(sum == Approx(report.seconds));
  CHECK(report.sections[4].seconds > 1024 / 0.96e9 + 1.9e-6);
}

TEST_CASE("busy times by kind and idle times by cause add up to an engine's time", "[nki][cost]") {
  Builder builder("kinds", Target::trn2, 2, 1);
  TensorHandle const from = builder.tensor("from", {128, 512}, f32);
  TileHandle const tile = builder.tile("tile", Memory::sbuf, 128, 512, f32);
  builder.emit(DmaCopy{tile.whole(), from.pattern(0, {{512, 128}, {1, 512}})});
  builder.emit(TensorTensor{tile.whole(), tile.whole(), tile.whole()});
  builder.emit(Activation{.dst = tile.whole(), .op = Function::exp, .data = tile.whole()});
  builder.loop("i", 2, [&](Affine) { builder.emit(Reciprocal{tile.whole(), tile.whole()}); });
  CostReport const report = report_of(std::move(builder).finish());
  double const signal = 64 / 1.4e9, sum = 1024 / 0.96e9, exp = 512 / 1.2e9;
  EngineCost const& vector = report.cores[1].engines[static_cast<std::size_t>(Engine::vector)];
  CHECK(vector.instructions == 3);
  CHECK(vector.busy == Approx(sum + 2 * reciprocal));
  CHECK(vector.waited[static_cast<std::size_t>(Engine::dma)] == Approx(load(2)));
  CHECK(vector.waited[static_cast<std::size_t>(Engine::scalar)] == Approx(signal + exp + signal));
  CHECK(report.seconds == Approx(vector.busy + load(2) + signal + exp + signal));
  // Summed over both cores, busiest first.
  REQUIRE(report.kinds.size() == 4);
  CHECK(report.kinds[0].name == Reciprocal::name);
  CHECK(report.kinds[0].instructions == 4);
  CHECK(report.kinds[0].busy == Approx(4 * reciprocal));
  CHECK(report.kinds[1].name == TensorTensor::name);
  CHECK(report.kinds[2].engine == Engine::scalar);
  CHECK(report.kinds[3].engine == Engine::dma);
  CHECK(report.kinds[3].estimate);
  CHECK_FALSE(report.kinds[0].estimate);
}

TEST_CASE("on-chip memory counts every place of every tile", "[nki][cost]") {
  Builder builder("memory", Target::trn3, 1, 1);
  builder.declare("a", Memory::sbuf, 128, 512, f32, 3);
  builder.declare("b", Memory::sbuf, 1, 100, bf16);
  builder.declare("c", Memory::psum, 64, 512, f32, 2);
  builder.tensor("d", {4096, 4096}, f32);
  CostReport const report = report_of(std::move(builder).finish());
  CHECK(report.on_chip.sbuf == 3 * 2048 + 200);
  CHECK(report.on_chip.sbuf_limit == 256 * 1024 - 16 * 1024 - 8);
  CHECK(report.on_chip.psum_banks == 2);
  CHECK(report.on_chip.psum_banks_limit == 8);
  CHECK(report.seconds == 0);
  CHECK(report.tensor_utilisation == 0);
}

TEST_CASE("a PSUM tile counts as whole banks", "[nki][cost]") {
  Builder builder("banks", Target::trn2, 1, 1);
  builder.declare("narrow", Memory::psum, 128, 8, f32, 3);
  builder.declare("wide", Memory::psum, 128, 513, f32, 2);
  CostReport const report = report_of(std::move(builder).finish());
  CHECK(report.on_chip.psum_banks == 3 + 2 * 2);
  CHECK(table(report).find("7 of 8 banks  87.5 %") != std::string::npos);
}

TEST_CASE("a program that names undeclared buffers, variables or registers is refused", "[nki][cost]") {
  auto const refusal = [](auto const& change) -> std::string {
    Builder builder("broken", Target::trn2, 1, 1);
    TileHandle const tile = builder.tile("tile", Memory::sbuf, 32, 8, f32);
    builder.emit(Memset{tile.whole(), 0.0f});
    Program program = std::move(builder).finish();
    change(program, std::get<Memset>(std::get<Instruction>(program.body.back().content)));
    try {
      report_of(program);
    } catch (annulus::Error const& error) {
      return error.what();
    }
    return "none";
  };
  auto const contains = [](char const* text) { return Catch::Matchers::ContainsSubstring(text); };
  CHECK(refusal([](Program&, Memset&) {}) == "none");
  CHECK_THAT(refusal([](Program&, Memset& memset) { memset.dst.buffer = -1; }),
             contains("cost of program broken: memset: operand dst names buffer -1 of 1; accepted is a program that "
                      "passes validation"));
  CHECK_THAT(refusal([](Program&, Memset& memset) { memset.dst.buffer = 1; }), contains("buffer 1 of 1"));
  CHECK_THAT(refusal([](Program&, Memset& memset) { memset.dst = Access(0, {}); }), contains("dst has no axes"));
  CHECK_THAT(refusal([](Program&, Memset& memset) { memset.dst.offset = Affine::of(7); }), contains("variable 7 of 1"));
  CHECK_THAT(refusal([](Program&, Memset& memset) {
               memset.dst.register_offset = RegisterOffset{0, 0};
             }),
             contains("register 0 of 0"));
  CHECK_THAT(refusal([](Program& program, Memset&) { program.body.push_back({Allocate{3}}); }),
             contains("allocate names buffer 3 of 1"));
  CHECK_THAT(refusal([](Program& program, Memset&) {
               program.body.push_back({Loop{4, 2, {}}});
             }),
             contains("a loop names variable 4 of 1"));
  CHECK_THAT(refusal([](Program& program, Memset&) {
               program.body.push_back({OnCore{0, {Node{Instruction{ProcessingRank{2, 0}}}}}});
             }),
             contains("names register 2 of 0"));
}

TEST_CASE("percentages of an estimated time are marked individually", "[nki][cost]") {
  std::string const estimated = table(report_of(ring(2, 2)));
  auto const line_of = [](std::string const& text, std::string const& with) {
    auto const begin = text.find("\n" + with) + 1;
    return text.substr(begin, text.find('\n', begin) - begin);
  };
  // The busy time of VectorE is not an estimate, its percentage of the time is one.
  std::string const engine = line_of(estimated, "  vector ");
  CHECK(engine.find("~ ") < engine.find('%'));
  std::string const kind = line_of(estimated, "  reciprocal ");
  CHECK(kind.find("~ ") < kind.find('%'));
  // The begin of a section depends on earlier estimates, even if it contains none.
  Builder builder("sections", Target::trn2, 1, 1);
  TensorHandle const from = builder.tensor("from", {128, 512}, f32);
  TileHandle const tile = builder.tile("tile", Memory::sbuf, 128, 512, f32);
  builder.emit(DmaCopy{tile.whole(), from.pattern(0, {{512, 128}, {1, 512}})});
  builder.section("exact", 0);
  builder.emit(Reciprocal{tile.whole(), tile.whole()});
  CHECK(table(report_of(std::move(builder).finish())).find("\n~ exact 0") != std::string::npos);
  // A program without estimates has no such mark.
  std::string const exact = table(report_of(matmuls(3)));
  CHECK(exact.find("100.0 %") != std::string::npos);
  CHECK(exact.find("~ 100.0 %") == std::string::npos);
}

TEST_CASE("the table marks estimates, which depend on inferred constants", "[nki][cost]") {
  std::string const text = table(report_of(ring(2, 2)));
  CHECK(text == table(report_of(ring(2, 2))));
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  auto const starts = [&](std::string const& with) {
    return std::ranges::count_if(lines, [&](std::string const& line) { return line.starts_with(with); });
  };
  CHECK(lines.back() == "~ estimate: rests on inferred constants");
  CHECK(starts("~ time") == 1);
  CHECK(starts("~ dma ") == 2);
  CHECK(starts("~ collective ") == 1);
  CHECK(starts("  vector") == 2);
  CHECK(starts("~ vector") == 2);  // its idle time comes from DMA
  CHECK(starts("~ dma_copy") == 1);
  CHECK(starts("  reciprocal") == 1);
  CHECK(starts("~ step 0") == 1);
  CHECK(starts("  multiply-adds") == 1);
  // The only estimate is the limit of SBUF.
  std::string const exact = table(report_of(matmuls(3)));
  CHECK(exact.find("~ time") == std::string::npos);
  CHECK(exact.find("  time") != std::string::npos);
  CHECK(exact.find("~ SBUF") != std::string::npos);
}
