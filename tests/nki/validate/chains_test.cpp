// Validator: reduction chains in the accumulator registers (R15).
#include "nki/validate/checks.hpp"

using namespace annulus;
using namespace annulus::nki;
using namespace annulus_test::validator_cases;

namespace {

/// Instructions that use the accumulator registers of ScalarE ("activation") and VectorE, on one filled tile.
struct Chains : Draft {
  TileHandle scores = filled("scores", 64, 16), bound = filled("bound", 64, 1);
  TileHandle results = tile("results", Memory::sbuf, 64, 1, ElementType::float32);

  explicit Chains(Target target = Target::trn2) : Draft(1, 1, target) {}

  Chains& sum(ReduceCommand command, bool take, Index partitions = 64) {
    Access const part = scores.part(0, partitions, 0, 16);
    Activation exp{part, Function::exp, part, 0.0f, 1.0f, Operator::add, std::nullopt, command};
    if (take) exp.reduce_res = results.part(0, partitions, 0, 1);
    emit(exp);
    return *this;
  }
  Chains& plain_activation() {
    emit(Activation{scores.whole(), Function::exp, scores.whole()});
    return *this;
  }
  Chains& maximum(ReduceCommand command, bool take) {
    RangeSelect select;
    select.dst = select.on_true_tile = scores.whole();
    select.bound0 = select.bound1 = bound.whole();
    select.reduce_cmd = command;
    if (take) select.reduce_res = results.whole();
    emit(select);
    return *this;
  }
};

constexpr auto idle = ReduceCommand::idle, reset = ReduceCommand::reset, reduce = ReduceCommand::reduce,
               reset_reduce = ReduceCommand::reset_reduce;

}  // namespace

TEST_CASE("R15: reduction chains of ScalarE begin with a reset", "[nki][validate]") {
  check_refused(Chains().sum(reduce, true).done(),
                {"R15", "activation", "reduce_cmd", "reduce before any reset; chains begin with reset_reduce"});
  check_accepted(Chains().sum(reset_reduce, true).done());
  check_accepted(Chains().sum(reset, false).sum(reduce, true).done());
  check_refused(Chains().sum(idle, true).done(), {"R15", "activation", "reduce_cmd", "idle before any reset"});
  check_accepted(Chains().sum(reset_reduce, false).sum(idle, true).done());
}

TEST_CASE("R15: chains continue on the same partitions and do not interleave", "[nki][validate]") {
  check_accepted(Chains().sum(reset_reduce, false).sum(reduce, false).plain_activation().sum(reduce, true).done());
  check_refused(Chains().sum(reset_reduce, false).sum(reduce, true, 32).done(),
                {"R15", "activation", "reduce_cmd",
                 "reduce on 32 partitions from 0; the sums hold a chain on 64 partitions from 0"});
  check_refused(Chains().sum(reset_reduce, false).sum(reset_reduce, true).done(),
                {"R15", "activation", "reduce_cmd", "while the sums of a chain on 64 partitions from 0 were not read"});
  check_accepted(Chains().sum(reset_reduce, true).sum(reset_reduce, true).done());
}

TEST_CASE("R15: an idle reduction may change the accumulator registers", "[nki][validate]") {
  check_refused(Chains().sum(reset_reduce, false).sum(idle, false).sum(reduce, true).done(),
                {"R15", "activation", "reduce_cmd", "reduce after an idle use that may have changed the sums"});
  check_refused(Chains().maximum(reset_reduce, false).maximum(idle, false).maximum(reduce, true).done(),
                {"R15", "range_select", "reduce_cmd", "reduce after an idle use that may have changed the sums"});
  check_accepted(Chains().maximum(reset_reduce, false).maximum(reduce, true).maximum(idle, false).done());
}

TEST_CASE("R15: reduction chains of VectorE begin with a reset, and may end unread after one instruction",
          "[nki][validate]") {
  check_refused(Chains().maximum(reduce, true).done(),
                {"R15", "range_select", "reduce_cmd", "reduce before any reset"});
  check_accepted(Chains().maximum(reset_reduce, true).maximum(reduce, true).done());
  // A range_select without reduce_res leaves a chain of length 1 that need not be read.
  check_accepted(Chains().maximum(reset_reduce, false).maximum(reset_reduce, true).done());
  check_refused(
      Chains().maximum(reset_reduce, false).maximum(reduce, false).maximum(reset_reduce, true).done(),
      {"R15", "range_select", "reduce_cmd", "while the sums of a chain on 64 partitions from 0 were not read"});
  check_accepted(Chains().sum(reset_reduce, false).maximum(reset_reduce, true).sum(reduce, true).done());
}
