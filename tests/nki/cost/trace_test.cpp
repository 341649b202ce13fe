// Trace of a timeline: valid JSON, no overlapping events on an engine, limited number of events.

#include <algorithm>
#include <map>
#include <sstream>

#if __has_include(<nlohmann/json.hpp>)
#include <nlohmann/json.hpp>
#define ANNULUS_TEST_PARSES_JSON 1
#endif

#include "annulus/nki/cost/trace.hpp"
#include "annulus/nki/program/builder.hpp"
#include "annulus/nki/program/walk.hpp"
#include "support/catch.hpp"

using namespace annulus::nki;
using annulus::Index;

namespace {

Program pair_of_cores() {
  Builder builder("pair", Target::trn2, 2, 4);
  ElementType const type = ElementType::float32;
  TensorHandle const a = builder.tensor("a \"quoted\\\n", {128, 4096}, type), b = builder.tensor("b", {128, 4096}, type);
  TileHandle const loaded = builder.declare("loaded", Memory::sbuf, 128, 512, type, 3);
  TileHandle const result = builder.tile("result", Memory::sbuf, 128, 512, type);
  builder.section("step", 7);
  builder.emit(CollectivePermute{a.whole(), b.whole()});
  builder.loop("i", 8, [&](Affine i) {
    builder.allocate(loaded);
    builder.emit(DmaCopy{loaded.whole(), a.pattern(i * 512, {{4096, 128}, {1, 512}})});
    builder.emit(TensorTensor{result.whole(), loaded.whole(), loaded.whole()});
  });
  builder.emit(CoreBarrier{b.whole()});
  return std::move(builder).finish();
}

std::string text_of(Program const& program, Index most_events) {
  std::ostringstream out;
  write_trace(out, program, hardware_of(program.target), most_events);
  return out.str();
}

Index occurrences(std::string const& text, std::string const& of) {
  Index count = 0;
  for (auto at = text.find(of); at != std::string::npos; at = text.find(of, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("a trace has one event per instruction up to its limit", "[nki][cost]") {
  Program const program = pair_of_cores();
  std::string const all = text_of(program, 1000), ten = text_of(program, 10);
  CHECK(occurrences(all, "\"ph\":\"X\"") == count(program).instructions() - 1);  // one event for the permute
  CHECK(occurrences(all, "left out") == 0);
  CHECK(occurrences(ten, "\"ph\":\"X\"") == 10);
  CHECK(occurrences(ten, "\"25 events left out\"") == 1);
  for (std::string const& text : {all, ten}) {
    CHECK(occurrences(text, "{") == occurrences(text, "}"));
    CHECK(text.substr(text.size() - 4) == "\n]}\n");
  }
}

#ifdef ANNULUS_TEST_PARSES_JSON

namespace {

nlohmann::json traced(Program const& program, Index most_events) {
  return nlohmann::json::parse(text_of(program, most_events));
}

}  // namespace

TEST_CASE("a trace holds every instruction once, without overlap on each engine", "[nki][cost]") {
  Program const program = pair_of_cores();
  nlohmann::json const trace = traced(program, 1000);
  std::map<std::pair<int, int>, double> ends;
  std::map<std::pair<int, int>, std::string> threads;
  std::map<std::string, int> seen;
  for (auto const& event : trace.at("traceEvents")) {
    std::pair<int, int> const thread{event.at("pid"), event.at("tid")};
    if (event.at("ph") == "M") {
      if (event.at("name") == "thread_name") threads[thread] = event.at("args").at("name");
      continue;
    }
    REQUIRE(event.at("ph") == "X");
    std::string const name = event.at("name");
    ++seen[name];
    REQUIRE(threads.count(thread) == 1);
    CHECK(threads[thread].substr(0, 3) == event.at("cat").get<std::string>().substr(0, 3));
    double const begin = event.at("ts"), duration = event.at("dur");
    CHECK(duration > 0);
    // Times are written with four decimal places.
    CHECK(begin >= ends[thread] - 2e-4);
    ends[thread] = begin + duration;
    CHECK(event.at("args").at("section") == "step 7");
    auto const& operands = event.at("args").at("operands");
    if (name == TensorTensor::name) {
      CHECK(operands == nlohmann::json{{"dst", "result"}, {"data1", "loaded"}, {"data2", "loaded"}});
      CHECK(duration == Approx(1024 / 0.96e9 * 1e6).margin(1e-4));
      CHECK_FALSE(event.at("args").contains("estimate"));
    }
    if (name == DmaCopy::name) {
      CHECK(operands.at("src") == "a \"quoted\\\n");
      CHECK(event.at("args").at("estimate") == true);
    }
  }
  // A collective is one event of both cores, every other instruction one event per core.
  CHECK(seen == std::map<std::string, int>{
                    {"dma_copy", 16}, {"tensor_tensor", 16}, {"core_barrier", 2}, {"collective_permute_implicit", 1}});
}

TEST_CASE("a trace marks begins that depend on estimates", "[nki][cost]") {
  ElementType const f32 = ElementType::float32;
  Builder builder("mixed", Target::trn2, 2, 2);
  TensorHandle const a = builder.tensor("a", {128, 512}, f32), b = builder.tensor("b", {128, 512}, f32);
  TileHandle const tile = builder.tile("tile", Memory::sbuf, 128, 512, f32);
  builder.emit(Reciprocal{tile.whole(), tile.whole()});
  builder.on_core(0, [&] { builder.emit(DmaCopy{tile.whole(), a.pattern(0, {{512, 128}, {1, 512}})}); });
  builder.emit(TensorTensor{tile.whole(), tile.whole(), tile.whole()});
  builder.emit(CollectivePermute{a.whole(), b.whole()});
  builder.emit(Memset{tile.whole(), 0.0f});
  nlohmann::json const trace = traced(std::move(builder).finish(), 1000);
  CHECK(trace.at("otherData").at("program") == "mixed");
  CHECK(trace.at("otherData").at("target") == "trn2");
  CHECK(trace.at("otherData").contains("estimate"));
  CHECK(trace.at("otherData").contains("begin estimate"));
  auto const marked = [&](std::string_view name, int core) {
    for (auto const& event : trace.at("traceEvents"))
      if (event.at("ph") == "X" && event.at("name") == name && event.at("pid") == core)
        return event.at("args").contains("begin estimate");
    FAIL("no event " << name << " of core " << core);
    return false;
  };
  // Before any estimated instruction; after one on the same core; on the other core after a collective.
  CHECK_FALSE(marked(Reciprocal::name, 0));
  CHECK_FALSE(marked(DmaCopy::name, 0));
  CHECK(marked(TensorTensor::name, 0));
  CHECK_FALSE(marked(TensorTensor::name, 1));
  CHECK(marked(Memset::name, 0));
  CHECK(marked(Memset::name, 1));
}

TEST_CASE("a trace gives the number of events left out", "[nki][cost]") {
  nlohmann::json const events = traced(pair_of_cores(), 10).at("traceEvents");
  CHECK(std::count_if(events.begin(), events.end(), [](auto const& event) { return event.at("ph") == "X"; }) == 10);
  CHECK(events.back().at("ph") == "i");
  CHECK(events.back().at("name") == "25 events left out");
}

#endif
