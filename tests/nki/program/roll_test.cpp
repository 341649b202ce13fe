// Rolling of repeated code into loops: rolled programs execute the same instructions as unrolled ones.

#include <random>

#include "annulus/nki/program/roll.hpp"
#include "annulus/nki/program/walk.hpp"
#include "support/catch.hpp"

namespace {

using namespace annulus::nki;
using annulus::Index;

/// Builds bodies of one memset to a column of a tile.
struct Writer {
  Builder builder{"p", Target::trn2, 1, 1};
  TileHandle tile = builder.declare("t", Memory::sbuf, 128, 1 << 20, ElementType::float32, 2);

  Body memset(Index offset, float value = 0) {
    return builder.collect([&] { builder.emit(Memset{tile.column(offset), value}); });
  }
};

std::vector<std::pair<Index, float>> executed(Program const& program) {
  std::vector<std::pair<Index, float>> found;
  Walk walk(program, 0);
  while (Node const* node = walk.next())
    if (auto const* instruction = node->as<Instruction>()) {
      auto const& memset = std::get<Memset>(*instruction);
      found.emplace_back(walk.at(memset.dst.offset), memset.value);
    }
  return found;
}

TEST_CASE("Three bodies with a constant step become a loop, two do not", "[nki][roll]") {
  for (Index count : {2, 3, 7}) {
    Writer writer;
    std::vector<Body> bodies;
    for (Index i = 0; i < count; ++i) bodies.push_back(writer.memset(5 + 3 * i));
    append_rolled(writer.builder, "i", std::move(bodies));
    Program const program = std::move(writer.builder).finish();
    REQUIRE(program.body.size() == (count < 3 ? 2u : 1u));
    auto const found = executed(program);
    REQUIRE(static_cast<Index>(found.size()) == count);
    for (Index i = 0; i < count; ++i) REQUIRE(found[static_cast<std::size_t>(i)].first == 5 + 3 * i);
  }
}

TEST_CASE("Bodies that differ in more than indices are not rolled", "[nki][roll]") {
  Writer writer;
  std::vector<Body> bodies;
  for (Index i = 0; i < 6; ++i) bodies.push_back(writer.memset(i, static_cast<float>(i / 3)));
  append_rolled(writer.builder, "i", std::move(bodies));
  Program const program = std::move(writer.builder).finish();
  REQUIRE(program.body.size() == 2);
  REQUIRE(executed(program).back() == std::pair<Index, float>{5, 1.0f});
}

TEST_CASE("A period of two is found", "[nki][roll]") {
  Writer writer;
  std::vector<Body> bodies;
  for (Index i = 0; i < 9; ++i)
    bodies.push_back(writer.memset(i % 2 == 0 ? i : 1000 - 5 * i, static_cast<float>(i % 2)));
  append_rolled(writer.builder, "i", std::move(bodies), 2);
  Program const program = std::move(writer.builder).finish();
  REQUIRE(program.body.size() == 2);  // four iterations of two, and the last
  auto const found = executed(program);
  for (Index i = 0; i < 9; ++i) REQUIRE(found[static_cast<std::size_t>(i)].first == (i % 2 == 0 ? i : 1000 - 5 * i));
}

TEST_CASE("Rolled random nested code executes the same instructions", "[nki][roll]") {
  std::mt19937 random(7);
  auto const below = [&](int n) { return static_cast<Index>(random() % static_cast<unsigned>(n)); };
  int loops = 0;
  for (int round = 0; round < 200; ++round) {
    Writer plain, rolled;
    Index const outer_count = 1 + below(9), outer_step = below(4) * 100;
    std::vector<std::vector<std::pair<Index, float>>> lines;
    for (Index o = 0; o < outer_count; ++o) {
      std::vector<std::pair<Index, float>> line;
      Index const count = below(5) == 0 ? below(6) : 4;
      for (Index i = 0; i < count; ++i) line.emplace_back(o * outer_step + 7 * i + (below(12) == 0 ? 1 : 0), 0.0f);
      lines.push_back(line);
    }
    std::vector<Body> outer;
    for (auto const& line : lines) {
      for (auto const& [offset, value] : line) plain.builder.append(plain.memset(offset, value));
      outer.push_back(rolled.builder.collect([&] {
        std::vector<Body> inner;
        for (auto const& [offset, value] : line) inner.push_back(rolled.memset(offset, value));
        append_rolled(rolled.builder, "inner", std::move(inner), 3);
      }));
    }
    append_rolled(rolled.builder, "outer", std::move(outer), 2);
    Program const a = std::move(plain.builder).finish(), b = std::move(rolled.builder).finish();
    for (Node const& node : b.body) loops += node.as<Loop>() != nullptr;
    REQUIRE(executed(a) == executed(b));
  }
  REQUIRE(loops > 100);
}

TEST_CASE("A streaming Roller gives a program that executes the unrolled instructions", "[nki][roll]") {
  std::mt19937 random(11);
  int loops = 0;
  for (int round = 0; round < 300; ++round) {
    Writer plain, rolled;
    std::size_t const period = 1 + random() % 3;
    Roller roller(rolled.builder, "step", period);
    Index position = 0;
    for (int run = 0; run < 3; ++run) {
      std::vector<Index> steps(period);
      for (Index& step : steps) step = static_cast<Index>(random() % 50);
      std::size_t const count = random() % 20;
      for (std::size_t i = 0; i < count; ++i) {
        Index const offset =
            position + static_cast<Index>(i / period) * steps[i % period] + 1000 * static_cast<Index>(i % period);
        plain.builder.append(plain.memset(offset));
        roller.add(rolled.memset(offset));
      }
      position += 13;
    }
    roller.flush();
    Program const a = std::move(plain.builder).finish(), b = std::move(rolled.builder).finish();
    for (Node const& node : b.body) loops += node.as<Loop>() != nullptr;
    REQUIRE(executed(a) == executed(b));
  }
  REQUIRE(loops > 300);
}

}  // namespace
