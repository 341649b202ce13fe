// Places of tiles in printed kernels, compared with those that a walk over the program finds.

#include <string>
#include <vector>

#include "annulus/nki/program/builder.hpp"
#include "annulus/nki/program/walk.hpp"
#include "nki/print/printed_text.hpp"
#include "support/catch.hpp"

namespace annulus::nki {
namespace {

using Lines = std::vector<std::string>;

/// A program under construction with one buffer of 4 places; `used` are the tiles of its memsets as printed.
struct TileBench {
  Builder b;
  TensorHandle out = b.tensor("out", {1}, ElementType::float32, Role::output);
  TileHandle x = b.declare("x", Memory::sbuf, 1, 1, ElementType::float32, 4);

  explicit TileBench(int cores = 1) : b("bench", Target::trn2, cores, 1) {}
  void make() { b.allocate(x); }
  void use(int age = 0) { b.emit(Memset{x.before(age).whole(), 0.0f}); }
  Lines used() const {
    Lines found;
    for (std::string const& line : statements_of(to_python(b.program())))
      if (std::size_t const at = line.find("dst="); at != std::string::npos)
        found.push_back(line.substr(at + 4, line.find("][") + 1 - at - 4));
    return found;
  }
};

TEST_CASE("tiles outside loops have fixed places") {
  TileBench t;
  t.make();
  t.make();
  t.use(1);
  t.make();
  t.use();
  CHECK(t.used() == Lines{"x[0]", "x[2]"});
}

TEST_CASE("places inside a loop depend on its variable, those after it do not") {
  TileBench t;
  t.make();
  t.b.loop("i", 3, [&](Affine const&) {
    t.make();
    t.use(1);
    t.make();
  });
  t.use();
  CHECK(t.used() == Lines{"x[(2 * i_1) % 4]", "x[2]"});
}

TEST_CASE("cores that made different numbers of tiles") {
  TileBench t(2);
  t.b.on_core(1, [&] { t.make(); });
  t.make();
  t.use();
  CHECK(t.used() == Lines{"x[core % 4]"});
}

}  // namespace
}  // namespace annulus::nki
