// Names of older tiles of a buffer in printed kernels.
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/print/older_tiles.hpp"
#include "annulus/nki/program/builder.hpp"
#include "annulus/nki/program/walk.hpp"
#include "nki/print/printed_text.hpp"
#include "support/catch.hpp"

namespace annulus::nki {
namespace {

using Lines = std::vector<std::string>;

Lines printed(Builder const& b) {
  Lines kept;
  for (std::string const& line : statements_of(to_python(b.program()))) {
    std::size_t const text = line.find_first_not_of(' ');
    if (line.find("nl.ndarray") != std::string::npos)
      kept.push_back(line.substr(0, text) + "new " + line.substr(text, line.find(" =") - text));
    else if (line.find("nisa.memset") != std::string::npos)
      kept.push_back(line.substr(0, text) + "use " +
                     line.substr(line.find("dst=") + 4, line.find('[') - line.find("dst=") - 4));
    else
      kept.push_back(line);
  }
  return kept;
}

/// A program under construction with one buffer of 4 places.
struct TileBench {
  int cores;
  Builder b{"bench", Target::trn2, cores, 1};
  TensorHandle out = b.tensor("out", {1}, ElementType::float32, Role::output);
  TileHandle x = b.declare("x", Memory::sbuf, 1, 1, ElementType::float32, 4);

  explicit TileBench(int on_cores = 1) : cores(on_cores) {}
  void make() { b.allocate(x); }
  void use(int age = 0) { b.emit(Memset{x.before(age).whole(), 0.0f}); }
};

TEST_CASE("tiles that are not used later get no second name") {
  TileBench t;
  t.b.loop("i", 3, [&](Affine const&) {
    t.make();
    t.use();
    t.make();
    t.use();
  });
  CHECK(printed(t.b) == Lines{"for i_1 in range(3):", "    new x", "    use x", "    new x", "    use x"});
}

TEST_CASE("a tile of the current iteration is renamed where the next one is allocated") {
  TileBench t;
  t.b.loop("i", 3, [&](Affine const&) {
    t.make();
    t.make();
    t.use(1);
  });
  CHECK(printed(t.b) == Lines{"for i_1 in range(3):", "    new x", "    x_1 = x", "    new x", "    use x_1"});
}

TEST_CASE("a tile allocated before the loop, then by each iteration for the next") {
  TileBench t;
  t.make();
  t.b.loop("i", 3, [&](Affine const&) {
    t.make();
    t.use(1);
  });
  t.use(3);
  CHECK(printed(t.b) == Lines{"new x", "for i_1 in range(3):", "    if i_1 >= 2:", "        x_3 = x_2",
                              "    if i_1 >= 1:", "        x_2 = x_1", "    x_1 = x", "    new x", "    use x_1",
                              "use x_3"});
}

TEST_CASE("the first tile is allocated inside a loop") {
  TileBench t;
  t.b.loop("i", 3, [&](Affine const&) { t.make(); });
  t.use(1);
  CHECK(printed(t.b) == Lines{"for i_1 in range(3):", "    if i_1 >= 1:", "        x_1 = x", "    new x", "use x_1"});
}

TEST_CASE("cores that allocated equally many tiles share a line, others have separate lines") {
  TileBench t(2);
  t.b.on_core(0, [&] { t.make(); });
  t.make();
  t.b.on_core(0, [&] { t.use(1); });
  CHECK(printed(t.b) == Lines{"core = nl.program_id(0)", "if core == 0:", "    new x", "if core == 0:", "    x_1 = x",
                              "new x", "if core == 0:", "    use x_1"});
  TileBench both(2);
  both.b.on_core(0, [&] { both.make(); });
  both.b.on_core(1, [&] { both.make(); });
  both.make();
  both.use(1);
  CHECK(printed(both.b) == Lines{"core = nl.program_id(0)", "if core == 0:", "    new x", "if core == 1:", "    new x",
                                 "x_1 = x", "new x", "use x_1"});
}

TEST_CASE("older tiles are renamed if a buffer has their name") {
  TileBench t;
  auto const other = t.b.declare("x_1", Memory::sbuf, 1, 1, ElementType::float32);
  t.b.allocate(other);
  t.make();
  t.make();
  t.use(1);
  CHECK(printed(t.b) == Lines{"new x_1", "new x", "x_1_ = x", "new x", "use x_1_"});
}

/// Executes a program like its printed form: names are bound, rebound and read, without counting ages.
class Names {
 public:
  Names(Program const& program, int core) : program_(program), core_(core), values_(program.variables.size(), 0) {
    values_[core_variable] = core;
    run(program.body);
  }
  /// The sequence number of the tile of each use, in the order of execution.
  std::vector<std::optional<int>> const& uses() const { return uses_; }
  bool read_unbound() const { return read_unbound_; }

 private:
  void run(Body const& body) {
    for (Node const& node : body) {
      if (auto const* loop = node.as<Loop>()) {
        for (Index i = 0; i < loop->count; ++i) {
          values_[static_cast<std::size_t>(loop->variable)] = i;
          run(loop->body);
        }
      } else if (auto const* branch = node.as<OnCore>()) {
        if (branch->core == core_) run(branch->body);
      } else if (auto const* allocate = node.as<Allocate>()) {
        for (print_detail::TileShift const& shift : older_tiles_.before(*allocate)) {
          if (shift.only_core && *shift.only_core != core_) continue;
          if (shift.where && shift.where->index.at(values_) < shift.where->at_least) continue;
          auto const source = bound_.find({allocate->buffer, shift.age - 1});
          if (source == bound_.end())
            read_unbound_ = true;
          else
            bound_[{allocate->buffer, shift.age}] = source->second;
        }
        bound_[{allocate->buffer, 0}] = made_[allocate->buffer]++;
      } else if (auto const* instruction = node.as<Instruction>()) {
        for_each_access(*instruction, [&](std::string_view, Use, Access const& access) {
          auto const source = bound_.find({access.buffer, access.age});
          uses_.push_back(source == bound_.end() ? std::nullopt : std::optional(source->second));
        });
      }
    }
  }

  Program const& program_;
  print_detail::OlderTiles older_tiles_{program_};
  int core_;
  std::vector<Index> values_;
  std::map<std::pair<int, int>, int> bound_;
  std::map<int, int> made_;
  std::vector<std::optional<int>> uses_;
  bool read_unbound_ = false;
};

/// The sequence number of the tile of each use as its age defines it; none if there is no such tile. Adds the values
/// that the memsets of invalid uses write to `invalid`.
std::vector<std::optional<int>> tiles_by_age(Program const& program, int core, std::set<int>& invalid) {
  std::vector<std::optional<int>> uses;
  std::map<int, int> made;
  Walk walk(program, core);
  while (Node const* node = walk.next()) {
    if (auto const* allocate = node->as<Allocate>()) ++made[allocate->buffer];
    auto const* instruction = node->as<Instruction>();
    if (!instruction) continue;
    auto const& use = std::get<Memset>(*instruction);
    int const serial = made[use.dst.buffer] - 1 - use.dst.age;
    uses.push_back(serial < 0 ? std::nullopt : std::optional(serial));
    if (serial < 0) invalid.insert(std::get<int>(use.value));
  }
  return uses;
}

/// Random nested loops, core branches, allocations and uses, without the uses in `left_out`.
struct RandomProgram {
  std::mt19937 random;
  std::set<int> left_out = {};
  int next_use = 0;

  int pick(int below) { return static_cast<int>(random() % static_cast<unsigned>(below)); }

  void write(Builder& b, std::vector<TileHandle> const& tiles, int depth, bool one_core) {
    for (int count = 1 + pick(4); count > 0; --count) {
      int const kind = pick(depth > 0 ? 8 : 6);
      TileHandle const& tile = tiles[static_cast<std::size_t>(pick(2))];
      if (kind < 3) {
        b.allocate(tile);
      } else if (kind < 6) {
        int const age = pick(4), number = next_use++;
        if (!left_out.contains(number)) b.emit(Memset{tile.before(age).whole(), number});
      } else if (kind == 6 || one_core) {
        b.loop("i", pick(4), [&](Affine const&) { write(b, tiles, depth - 1, one_core); });
      } else {
        b.on_core(pick(2), [&] { write(b, tiles, depth - 1, true); });
      }
    }
  }

  static Program make(unsigned seed, std::set<int> left_out) {
    RandomProgram self{std::mt19937(seed), std::move(left_out)};
    Builder b("random", Target::trn2, 2, 1);
    b.tensor("out", {1}, ElementType::float32, Role::output);
    std::vector<TileHandle> const tiles{b.declare("x", Memory::sbuf, 1, 1, ElementType::int32, 4),
                                        b.declare("y", Memory::sbuf, 1, 1, ElementType::int32, 4)};
    for (int part = 0; part < 4; ++part) self.write(b, tiles, 3, false);
    return std::move(b).finish();
  }
};

TEST_CASE("in random programs every name refers to the tile of its age, and none is unbound") {
  int older_uses = 0, conditions = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    std::set<int> invalid;
    Program program = RandomProgram::make(seed, {});
    for (int core = 0; core < 2; ++core) tiles_by_age(program, core, invalid);
    program = RandomProgram::make(seed, invalid);
    INFO("seed " << seed << "\n" << to_python(program));
    for (int core = 0; core < 2; ++core) {
      std::set<int> none;
      auto const meant = tiles_by_age(program, core, none);
      REQUIRE(none.empty());
      Names const names(program, core);
      REQUIRE_FALSE(names.read_unbound());
      REQUIRE(names.uses() == meant);
    }
    std::string const text = to_python(program);
    older_uses += text.find("dst=x_3") != std::string::npos;
    conditions += text.find(">= ") != std::string::npos;
  }
  INFO("the random programs contain the cases to be tested");
  CHECK(older_uses > 40);
  CHECK(conditions > 40);
}

}  // namespace
}  // namespace annulus::nki
