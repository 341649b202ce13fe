// Repeated calls on a RingAttention allocate nothing, on any thread. The tests use forward_into() and backward_into(),
// because forward() and backward() return new tensors.

#include <algorithm>
#include <annulus/annulus.hpp>
#include <annulus/backend/cpu/cpu.hpp>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/catch.hpp"
#include "support/counted_allocations.hpp"
#include "support/reserved_workspaces.hpp"

using namespace annulus;
using annulus_test::allocations;

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
constexpr Index heads = 4, kv_heads = 2, dim = 8, global = 96;

std::atomic<long> intervals = 0;
void count_interval(Interval const&) { ++intervals; }

/// Options and optional operands of a call.
struct Case {
  std::string name;
  Options options;
  bool documents = false, bias = false, sinks = false, joint = false;
  Index of_kv_heads = kv_heads;
};

std::vector<Case> cases(int ranks) {
  ExplicitMap map;
  for (int rank = 0; rank < ranks; ++rank)
    for (auto& rows = map.queries.emplace_back(); static_cast<Index>(rows.size()) < global / ranks;)
      rows.push_back(static_cast<Index>(rows.size()) * ranks + ranks - 1 - rank);
  std::vector<bool> recent;
  for (int block = 0; block < 6 * 12; ++block) recent.push_back(block / 12 - block % 12 / 2 <= 1);
  Options const plain, by_queries{.rotation = Rotation::queries};
  int const pair = ranks % 2 == 0 ? 2 : 1;
  return {
      {"full", plain},
      {"queries rotate", by_queries},
      {"causal", {.mask = causal(), .softmax_scale = 1.0 / 3}},
      {"causal zigzag", {.mask = causal(), .sharding = Zigzag{}}},
      {"causal striped", {.mask = causal(), .sharding = Striped{}}},
      // Many tiles, of which adjacent ones are joined.
      {"causal block-striped", {.mask = causal(), .sharding = Striped{.block = 2}, .rotation = Rotation::queries}},
      {"causal, positions by a map", {.mask = causal(), .sharding = map}},
      {"window with sink tokens", {.mask = {.causal = true, .window = {.left = 30}, .sink_tokens = 3}}},
      {"window that covers few ranks", {.mask = sliding_window(10, 0), .query_offset = 5}},
      {"packed", {.mask = causal()}, true},
      {"packed, queries rotate", by_queries, true},
      {"bias and sink logits", plain, false, true, true},
      {"block mask", {.mask = causal(), .block_mask = BlockMask(16, 8, 12, recent)}},
      {"observed", {.mask = causal(), .observer = count_interval}},
      {"two levels", {.schedule = Schedule::two_levels, .ranks_per_group = pair}, true, true, true},
      {"tiles",
       {.mask = causal(), .sharding = Zigzag{}, .schedule = Schedule::tiles, .ranks_per_group = pair},
       true,
       true},
      {"tiles, queries rotate", {.rotation = Rotation::queries, .schedule = Schedule::tiles, .ranks_per_group = pair}},
      {"all-gather", {.mask = causal(), .schedule = Schedule::all_gather, .checked = true}, true, true, true},
      {"wire type", {.mask = causal(), .wire = Wire::bfloat16}},
      {"wire type in two levels",
       {.schedule = Schedule::two_levels, .ranks_per_group = pair, .wire = Wire::half},
       true,
       true,
       true},
      {"wire type in tiles", {.schedule = Schedule::tiles, .ranks_per_group = pair, .wire = Wire::bfloat16}, true},
      {"wire type, all-gather", {.mask = causal(), .schedule = Schedule::all_gather, .wire = Wire::half}},
      {"joint keys", {.mask = causal()}, true, false, false, true},
      {"both directions", {.mask = causal(), .schedule = Schedule::both_directions}, true, true, true, true},
      {"both directions, queries rotate", {.rotation = Rotation::queries, .schedule = Schedule::both_directions}},
      {"halves of the rows",
       {.mask = causal(), .schedule = Schedule::both_directions, .wire = Wire::half},
       true,
       true,
       true,
       true,
       1},
      {"halves of the rows, reproducible",
       {.reproducible = true, .reproducible_leaf = 8, .schedule = Schedule::both_directions},
       true,
       true,
       true,
       false,
       1}};
}

/// Number of allocations of all ranks in the calls after the first ones.
template <class Ring, class Backend>
long repeated(Ring& ring, Backend& backend, Case const& one) {
  auto const ranks = static_cast<Index>(ring.size());
  Index const rows = global / ranks;
  Tensor q(1, rows, heads, dim), k(1, rows, one.of_kv_heads, dim), v = k, dout = q, output = q, dq = q, dk = k, dv = k;
  Tensor bias(1, 1, rows, global), dbias = bias;
  for (Tensor* x : {&q, &k, &v, &dout, &bias}) x->setRandom();
  Eigen::Tensor<float, 3, Eigen::RowMajor> lse(1, heads, rows);
  Eigen::Tensor<float, 2, Eigen::RowMajor> sinks(heads, 1), dsinks(heads, 1);
  sinks.setZero();
  Eigen::Tensor<std::int32_t, 2, Eigen::RowMajor> ids(1, rows);
  for (Index i = 0; i < rows; ++i) ids(0, i) = static_cast<std::int32_t>(1 + (ring.rank() * rows + i) / 17);
  Operands<float> operands;
  GradientViews<float, HostMemory> gradients{view_of(dq), view_of(dk), view_of(dv)};
  if (one.documents) operands.query_documents = operands.key_documents = view_of(std::as_const(ids));
  if (one.bias) {
    operands.bias = view_of(std::as_const(bias));
    operands.bias_gradient = true;
    gradients.dbias = view_of(dbias);
  }
  if (one.sinks) {
    operands.sinks = view_of(std::as_const(sinks));
    gradients.dsinks = view_of(dsinks);
  }

  Tensor joint(1, 5, one.of_kv_heads, dim), d_joint_keys = joint, d_joint_values = joint;
  joint.setConstant(0.5f);
  if (one.joint) {
    operands.joint_keys = operands.joint_values = view_of(std::as_const(joint));
    gradients.d_joint_keys = view_of(d_joint_keys);
    gradients.d_joint_values = view_of(d_joint_values);
  }

  RingAttention attention(ring, backend, one.options);
  auto const call = [&] {
    attention.forward_into(q, k, v, output, lse, operands);
    attention.backward_into(dout, output, lse, q, k, v, gradients, operands);
  };
  auto const synchronize_ranks = [&] {
    std::byte const mine{};
    std::array<std::byte, 8> all;
    ring.all_gather({&mine, 1}, std::span(all).first(static_cast<std::size_t>(ranks)));
  };
  call();
  synchronize_ranks();
  long const before = allocations;
  synchronize_ranks();
  for (int i = 0; i < 2; ++i) call();
  synchronize_ranks();
  long const made = allocations - before;
  synchronize_ranks();
  return made;
}

}  // namespace

TEST_CASE("allocations are counted", "[allocation]") {
  long const before = allocations;
  std::vector<int> const some(5);
  long const made = allocations - before;
  CHECK(made == 1);
  CHECK(some[4] == 0);
}

TEST_CASE("a repeated call of one rank allocates nothing", "[allocation]") {
  for (Case const& one : cases(1))
    for (int threads : {1, 2}) {
      INFO(one.name << ", " << threads << " threads");
      SelfRing ring;
      CpuBackend backend{.threads = threads};
      CHECK(repeated(ring, backend, one) == 0);
    }
}

TEST_CASE("a repeated call on a simulated ring allocates nothing", "[allocation]") {
  annulus_test::reserve_workspaces();
  for (auto const zero_copy : {ZeroCopy::never, ZeroCopy::automatic})
    for (int ranks : {1, 2, 3, 4})
      for (Case const& one : cases(ranks)) {
        INFO(one.name << ", " << ranks << " ranks, zero_copy " << name_of(zero_copy));
        auto const made = run_ring(ranks,
                                   [&](SimulatedRing& ring) {
                                     CpuBackend backend{.threads = 2};
                                     return repeated(ring, backend, one);
                                   },
                                   {.zero_copy = zero_copy});
        for (long allocated : made) CHECK(allocated == 0);
      }
}

TEST_CASE("after a call with other operands, a call with the first ones remakes the plan with the same output",
          "[allocation]") {
  SelfRing ring;
  CpuBackend backend{.threads = 1};
  Tensor q(1, 24, heads, dim), k(1, 24, kv_heads, dim);
  q.setRandom(), k.setRandom();
  Eigen::Tensor<std::int32_t, 2, Eigen::RowMajor> ids(1, 24);
  for (Index i = 0; i < 24; ++i) ids(0, i) = static_cast<std::int32_t>(1 + i / 7);
  Operands<float> packed;
  packed.query_documents = packed.key_documents = view_of(std::as_const(ids));
  RingAttention attention(ring, backend, {.mask = causal()});
  auto const whole = attention.forward(q, k, k), documents = attention.forward(q, k, k, packed);
  CHECK(attention.plan(Pass::forward)->request().document_ids);
  auto const again = attention.forward(q, k, k);
  CHECK(!attention.plan(Pass::forward)->request().document_ids);
  auto const differ = [](Tensor const& a, Tensor const& b) {
    return !std::equal(a.data(), a.data() + a.size(), b.data());
  };
  CHECK(!differ(whole.output, again.output));
  CHECK(differ(whole.output, documents.output));
}
