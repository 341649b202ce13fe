// Validator: VectorE reductions and range_select (R9).
#include "nki/validate/checks.hpp"

using namespace annulus;
using namespace annulus::nki;
using namespace annulus_test::validator_cases;

namespace {

/// A valid range_select, changed by `change` before it is emitted.
template <class Change>
Program range_select(Change change, ElementType bound_type = ElementType::float32,
                     ElementType maximum_type = ElementType::float32) {
  Draft draft;
  TileHandle const scores = draft.filled("scores", 64, 16);
  TileHandle const bound = draft.filled("bound", 64, 2, bound_type);
  TileHandle const low = draft.filled("low", 64, 1);
  TileHandle const maximum = draft.tile("maximum", Memory::sbuf, 64, 1, maximum_type);
  TileHandle const dst = draft.tile("masked", Memory::sbuf, 64, 16, ElementType::float32);
  RangeSelect select;
  select.dst = dst.whole();
  select.on_true_tile = scores.whole();
  select.bound0 = low.whole();
  select.bound1 = bound.column(0);
  select.reduce_res = maximum.whole();
  change(select);
  draft.emit(select);
  return draft.done();
}

}  // namespace

TEST_CASE("R9: operands of range_select", "[nki][validate]") {
  auto const as_it_is = [](RangeSelect&) {};
  check_accepted(range_select(as_it_is));
  check_refused(range_select(as_it_is, ElementType::bfloat16),
                {"R9", "range_select", "bound1", "is bfloat16; accepted: float32"});
  check_refused(range_select(as_it_is, ElementType::float32, ElementType::bfloat16),
                {"R9", "range_select", "reduce_res", "is bfloat16; accepted: float32"});
  check_refused(range_select([](RangeSelect& i) { i.range_start = (1 << 24) - 15; }),
                {"R9", "range_select", "range_start", "16777201..16777216 in float32; exact below 16777216"});
  check_accepted(range_select([](RangeSelect& i) { i.range_start = (1 << 24) - 16; }));
  check_refused(range_select([](RangeSelect& i) { i.bound0 = i.on_true_tile; }),
                {"R8", "range_select", "bound0", "is 64 x 16; accepted: 64 x 1"});
}

TEST_CASE("Reductions over the elements of a partition", "[nki][validate]") {
  auto const tensor_reduce = [](Operator op, int axis, Index results) {
    Draft draft;
    TileHandle const tile = draft.filled("tile", 64, 12);
    TileHandle const dst = draft.tile("results", Memory::sbuf, 64, 12, ElementType::float32);
    draft.emit(TensorReduce{dst.columns(0, results), op, tile.pattern(0, 64, 0, {{4, 3}, {1, 4}}), axis});
    return draft.done();
  };
  check_accepted(tensor_reduce(Operator::maximum, 2, 3));
  check_refused(tensor_reduce(Operator::greater, 2, 3), {"operator", "tensor_reduce", "op", "greater; accepted: add"});
  check_refused(tensor_reduce(Operator::maximum, 1, 3),
                {"shape", "tensor_reduce", "axis", "1; accepted: the last axis of data, 2"});
  check_refused(tensor_reduce(Operator::maximum, 2, 4),
                {"shape", "tensor_reduce", "dst", "is 64 x 4; data without its last axis is 64 x 3"});
}
