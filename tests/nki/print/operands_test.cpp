// Printed NKI text of operands and numbers.
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/program/builder.hpp"
#include "nki/print/printed_text.hpp"
#include "support/catch.hpp"

namespace annulus::nki {
namespace {

/// A program under construction, and the printed text of its operands.
struct OperandBench {
  int cores;
  Builder b{"bench", Target::trn2, cores, 1};
  TensorHandle out = b.tensor("out", {4, 128}, ElementType::float32, Role::output);
  TileHandle x = b.declare("x", Memory::sbuf, 128, 512, ElementType::float32);
  TileHandle y = b.declare("y", Memory::sbuf, 128, 512, ElementType::float32);

  explicit OperandBench(int on_cores = 2) : cores(on_cores) {}

  /// The printed text of `access` as the source of a copy on chip.
  std::string operand(Access const& access) {
    b.emit(TensorCopy{y.whole(), access});
    return between("src=", ", engine=");
  }
  std::string number(float value) {
    b.emit(Memset{x.whole(), value});
    return between("value=", ", engine=");
  }
  std::string between(std::string const& begin, std::string const& end) {
    std::string const line = statements_of(to_python(b.program())).back();
    std::size_t const first = line.find(begin) + begin.size();
    return line.substr(first, line.find(end, first) - first);
  }
};

TEST_CASE("consecutive elements: a slice") {
  OperandBench t;
  CHECK(t.operand(t.x.whole()) == "x[0:128, 0:512]");
  CHECK(t.operand(t.x.part(64, 32, 128, 128)) == "x[64:96, 128:256]");
  CHECK(t.operand(t.x.column(511)) == "x[0:128, 511:512]");
  INFO("several axes that form one run");
  CHECK(t.operand(t.x.pattern(0, 128, 64, {{128, 2}, {1, 128}})) == "x[0:128, 64:320]");
  INFO("the stride of an axis of one element does not matter");
  CHECK(t.operand(t.x.pattern(0, 128, 7, {{200, 1}, {300, 1}})) == "x[0:128, 7:8]");
  CHECK(t.operand(Access(t.x.buffer, {{1, 128}})) == "x[0:128, 0:1]");
}

TEST_CASE("other accesses on chip: a pattern from the start of the whole tile") {
  OperandBench t;
  CHECK(t.operand(t.x.pattern(0, 128, 3, {{2, 64}})) == "x.ap(pattern=[[512, 128], [2, 64]], offset=3)");
  CHECK(t.operand(t.x.pattern(32, 32, 3, {{0, 64}})) == "x.ap(pattern=[[512, 32], [0, 64]], offset=16387)");
  CHECK(t.operand(t.x.pattern(0, 64, 0, {{1, 16}, {16, 16}})) ==
        "x.ap(pattern=[[512, 64], [1, 16], [16, 16]], offset=0)");
  CHECK(t.operand(t.x.pattern(0, 64, 1, {{256, 2}, {64, 2}, {8, 4}, {1, 4}})) ==
        "x.ap(pattern=[[512, 64], [256, 2], [64, 2], [8, 4], [1, 4]], offset=1)");
}

TEST_CASE("indices in loop variables and the core") {
  OperandBench t;
  std::vector<std::string> found;
  t.b.loop("i", 3, [&](Affine const& i) {
    t.b.loop("j", 4, [&](Affine const& j) {
      t.b.emit(TensorCopy{t.y.whole(), t.x.columns(i * 128 + j - 5, 16)});
      t.b.emit(TensorCopy{t.y.whole(), t.x.columns(i * -2 + j * -1 + 10, 1)});
      t.b.emit(TensorCopy{t.y.whole(), t.x.pattern(64, 64, Affine::of(core_variable, 8), {{2, 4}})});
    });
  });
  auto const statements = statements_of(to_python(t.b.program()));
  REQUIRE(statements.size() == 6);
  CHECK(statements[0] == "core = nl.program_id(0)");
  CHECK_THAT(statements[3],
             Catch::Matchers::ContainsSubstring("src=x[0:128, 128 * i_1 + j_2 - 5:128 * i_1 + j_2 + 11]"));
  CHECK_THAT(statements[4],
             Catch::Matchers::ContainsSubstring("src=x[0:128, -2 * i_1 - j_2 + 10:-2 * i_1 - j_2 + 11]"));
  CHECK_THAT(statements[5],
             Catch::Matchers::ContainsSubstring("src=x.ap(pattern=[[512, 64], [2, 4]], offset=8 * core + 32768)"));
}

TEST_CASE("with one core, the core is 0") {
  OperandBench t(1);
  CHECK(t.operand(t.x.columns(Affine::of(core_variable, 64) + 3, 16)) == "x[0:128, 3:19]");
  CHECK_THAT(to_python(t.b.program()), !Catch::Matchers::ContainsSubstring("core"));
}

TEST_CASE("numbers are printed so that Python reads the same floats") {
  OperandBench t;
  CHECK(t.number(1.0f) == "1.0");
  CHECK(t.number(-0.0f) == "-0.0");
  CHECK(t.number(0.1f) == "0.1");
  CHECK(t.number(1e-5f) == "1e-05");
  CHECK(t.number(16777216.0f) == "16777216.0");
  CHECK(t.number(3e38f) == "3e+38");
  CHECK(t.number(lowest_float) == "-3.4028235e+38");
  for (float value : {1.0f / 3.0f, std::sqrt(2.0f), std::numeric_limits<float>::denorm_min(),
                      std::numeric_limits<float>::min(), std::numeric_limits<float>::max(), 0.08838834764831845f}) {
    std::string const text = t.number(value);
    CHECK(static_cast<float>(std::stod(text)) == value);
  }
  for (float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    OperandBench fresh;
    CHECK_THROWS_AS(fresh.number(value), UnsupportedError);
  }
}

}  // namespace
}  // namespace annulus::nki
