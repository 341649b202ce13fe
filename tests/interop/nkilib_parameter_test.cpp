// Every parameter of the nkilib functions changes the result, or is refused with a reason on all ranks.

#include <annulus/annulus.hpp>
#include <annulus/interop/nkilib.hpp>
#include <functional>
#include <random>
#include <type_traits>

#include "support/refusal.hpp"

namespace nkilib = annulus::nkilib;
using annulus::Index;
using namespace annulus_test;
using nkilib::BackwardParameters;
using nkilib::ForwardParameters;

namespace {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Values = std::vector<float>;

constexpr int ranks = 2;

/// An operand with s = d, so that it is valid in either layout.
Tensor operand(int rank, unsigned seed) {
  Tensor tensor(1, 2, 6, 6);
  std::mt19937 engine(seed + static_cast<unsigned>(rank));
  for (Index i = 0; i < tensor.size(); ++i) tensor.data()[i] = static_cast<float>(engine() % 2001) / 1000.0f - 1.0f;
  return tensor;
}

/// Local rows 0 to 3 are one document, the others another one.
template <class Bound>
Bound bound_of(Bound bound, float first, float second) {
  for (Index i = 0; i < bound.size(); ++i) bound.data()[i] = i % 6 < 4 ? first : second;
  return bound;
}
auto const bound_min_3 = bound_of(Eigen::Tensor<float, 3, Eigen::RowMajor>(2, 6, 1), 0, 4);
auto const bound_max_3 = bound_of(Eigen::Tensor<float, 3, Eigen::RowMajor>(2, 6, 1), 4, 6);
auto const bound_min_2 = bound_of(Eigen::Tensor<float, 2, Eigen::RowMajor>(1, 6), 0, 4);
auto const bound_max_2 = bound_of(Eigen::Tensor<float, 2, Eigen::RowMajor>(1, 6), 4, 6);

/// Values returned by every rank, and what it threw.
template <class Function>
std::vector<std::pair<Values, Thrown>> on_every_rank(Function&& function) {
  return annulus::run_ring(ranks, [&](annulus::SimulatedRing& ring) {
    annulus::ReferenceBackend backend;
    std::pair<Values, Thrown> seen;
    seen.second = attempt([&] { seen.first = function(ring, backend); });
    return seen;
  });
}

Values forward(annulus::SimulatedRing& ring, annulus::ReferenceBackend& backend, ForwardParameters const& parameters) {
  auto const result = nkilib::ring_attention_spmd_fwd(ring, backend, operand(ring.rank(), 1), operand(ring.rank(), 2),
                                                      operand(ring.rank(), 3), parameters);
  Values values(result.o.data(), result.o.data() + result.o.size());
  if (result.lse) values.insert(values.end(), result.lse->data(), result.lse->data() + result.lse->size());
  return values;
}

Values backward(annulus::SimulatedRing& ring, annulus::ReferenceBackend& backend,
                BackwardParameters const& parameters) {
  Tensor lse(1, 2, 128, 1);
  lse.setConstant(2.0f);
  auto const result = nkilib::ring_attention_spmd_bwd(ring, backend, operand(ring.rank(), 1), operand(ring.rank(), 2),
                                                      operand(ring.rank(), 3), operand(ring.rank(), 4),
                                                      operand(ring.rank(), 5), lse, parameters);
  Values values;
  for (Tensor const* tensor : {&result.dq, &result.dk, &result.dv})
    values.insert(values.end(), tensor->data(), tensor->data() + tensor->size());
  return values;
}

template <class Parameters>
using Change = std::function<void(Parameters&)>;

/// Sets a parameter.
template <class Parameters, class T>
Change<Parameters> set(T Parameters::*parameter, std::type_identity_t<T> value) {
  return [=](Parameters& p) { p.*parameter = value; };
}

template <class Parameters>
Change<Parameters> both(Change<Parameters> first, Change<Parameters> second) {
  return [=](Parameters& p) { first(p), second(p); };
}

template <class Parameters>
struct Case {
  char const* name;
  Change<Parameters> base;  ///< parameters that both calls have
  Change<Parameters> set;
  char const* refusal = nullptr;  ///< words of the message; nullptr: accepted, and the result changes
  char const* type = "UnsupportedError";
};

template <class Parameters, class Run>
void check_parameter(Case<Parameters> const& tested, Run&& run) {
  Parameters without{.num_workers = ranks};
  if (tested.base) tested.base(without);
  Parameters with = without;
  tested.set(with);
  if (tested.refusal) {
    // Only the last rank sets the refused parameter; both ranks must throw with the reason.
    for (auto const& [values, thrown] : on_every_rank(
             [&](auto&ring, auto&backend) { return run(ring, backend, ring.rank() + 1 == ranks ? with : without); }))
      check_thrown(thrown, tested.type, tested.refusal);
    return;
  }
  auto const before = on_every_rank([&](auto& ring, auto& backend) { return run(ring, backend, without); });
  auto const after = on_every_rank([&](auto& ring, auto& backend) { return run(ring, backend, with); });
  for (auto const* results : {&before, &after})
    for (auto const& [values, thrown] : *results) CHECK(thrown == Thrown{});
  CHECK(before != after);
}

void causal_forward(ForwardParameters& p) { p.use_causal_mask = true; }
void striped_forward(ForwardParameters& p) { p.use_causal_mask = p.striped_input = true; }
void causal_backward(BackwardParameters& p) { p.use_causal_mask = true; }
void striped_backward(BackwardParameters& p) { p.use_causal_mask = p.striped_attention = true; }

}  // namespace

TEST_CASE("nkilib forward: each parameter is honoured or refused", "[nkilib][C40]") {
  using P = ForwardParameters;
  std::vector<Case<P>> const cases{
      {"replica_groups of another size", {}, set(&P::replica_groups, {{0}}), "must have num_workers = 2"},
      {"replica_groups that overlap",
       {},
       set(&P::replica_groups, {{0, 1}, {1, 2}}),
       "rank 1 is in the replica groups twice"},
      {"replica_groups with a gap",
       {},
       set(&P::replica_groups, {{0, 1}, {2, 9}}),
       "names rank 9; the groups together name 0 to 3"},
      {"replica_groups with a negative rank", {}, set(&P::replica_groups, {{-1, 0}}), "names rank -1"},
      {"replica_groups in another order than the ring",
       {},
       set(&P::replica_groups, {{1, 0}}),
       "the only replica group is [1, 0]"},
      {"num_workers", {}, set(&P::num_workers, 3), "num_workers is 3, the communicator has 2 ranks"},
      {"softmax_scale", {}, set(&P::softmax_scale, 0.9)},
      {"softmax_scale with a causal mask", causal_forward, set(&P::softmax_scale, 0.9)},
      {"softmax_scale that is no number", {}, set(&P::softmax_scale, std::nan("")), "softmax scale is nan"},
      {"use_causal_mask", {}, set(&P::use_causal_mask, true)},
      {"striped_input", causal_forward, set(&P::striped_input, true)},
      {"striped_input without a mask", {}, set(&P::striped_input, true), "striped_input without use_causal_mask"},
      {"training", {}, set(&P::training, true)},
      {"tp_q", {}, set(&P::tp_q, true)},
      {"tp_k", {}, set(&P::tp_k, true)},
      {"bound_min and bound_max", striped_forward,
       both(set(&P::bound_min, bound_min_3), set(&P::bound_max, bound_max_3))},
      {"bound_min alone", striped_forward, set(&P::bound_min, bound_min_3), "only one of bound_min and bound_max"},
      {"bound_max alone", striped_forward, set(&P::bound_max, bound_max_3), "only one of bound_min and bound_max"},
      {"bounds without striped_input", causal_forward,
       both(set(&P::bound_min, bound_min_3), set(&P::bound_max, bound_max_3)), "need striped_input = true"},
      {"bound_max of other extents", striped_forward,
       both(set(&P::bound_min, bound_min_3), set(&P::bound_max, annulus::view_of(bound_max_3).slice(0, 0, 1))),
       "rank 1: bound_max has extents [1, 6, 1]; expected [2, 6, 1]", "ShapeError"},
  };
  for (auto const& tested : cases) DYNAMIC_SECTION(tested.name) {
      check_parameter(tested, forward);
    }
}

TEST_CASE("nkilib backward: each parameter is honoured or refused", "[nkilib][C40]") {
  using P = BackwardParameters;
  std::vector<Case<P>> const cases{
      {"use_causal_mask", {}, set(&P::use_causal_mask, true)},
      {"mixed_precision", {}, set(&P::mixed_precision, false), "mixed_precision = false"},
      {"softmax_scale", causal_backward, set(&P::softmax_scale, 0.9)},
      {"num_workers", {}, set(&P::num_workers, 1), "num_workers is 1, the communicator has 2 ranks"},
      {"lnc_size", {}, set(&P::lnc_size, 2), "lnc_size is 2; it is"},
      {"lnc_size of 0", {}, set(&P::lnc_size, 0), "lnc_size is 0"},
      {"replica_groups", {}, set(&P::replica_groups, {{0, 1}, {2}}), "must have num_workers = 2"},
      {"striped_attention", causal_backward, set(&P::striped_attention, true)},
      {"striped_attention without a mask",
       {},
       set(&P::striped_attention, true),
       "striped_attention without use_causal_mask"},
      {"bound_min and bound_max", striped_backward,
       both(set(&P::bound_min, bound_min_2), set(&P::bound_max, bound_max_2))},
      {"segment_cu_seqlens", striped_backward, set(&P::segment_cu_seqlens, {0, 4, 12})},
      {"segment_cu_seqlens and wider bounds", striped_backward,
       both(both(set(&P::segment_cu_seqlens, {0, 4, 12}), set(&P::bound_min, bound_min_2)),
            set(&P::bound_max, bound_max_2))},
      {"segment_cu_seqlens inside a document's positions", striped_backward, set(&P::segment_cu_seqlens, {0, 3, 12}),
       "segment_cu_seqlens is [0, 3, 12]; accepted: ascending"},
      {"segment_cu_seqlens without striped_attention", causal_backward, set(&P::segment_cu_seqlens, {0, 4, 12}),
       "segment_cu_seqlens needs striped_attention = true"},
      {"segment_cu_seqlens and one bound", striped_backward,
       both(set(&P::segment_cu_seqlens, {0, 12}), set(&P::bound_min, bound_min_2)),
       "only one of bound_min and bound_max"},
      {"bound_min alone", striped_backward, set(&P::bound_min, bound_min_2), "only one of bound_min and bound_max"},
      {"bounds without striped_attention", causal_backward,
       both(set(&P::bound_min, bound_min_2), set(&P::bound_max, bound_max_2)), "need striped_attention = true"},
      {"bound_min of other extents", striped_backward,
       both(set(&P::bound_max, bound_max_2), set(&P::bound_min, annulus::view_of(bound_min_2).slice(1, 0, 5))),
       "rank 1: bound_min has extents [1, 5]; expected [1, 6]", "ShapeError"},
  };
  for (auto const& tested : cases) DYNAMIC_SECTION(tested.name) {
      check_parameter(tested, backward);
    }
}

TEST_CASE("nkilib backward: segment_cu_seqlens is the bounds of its documents, within the bounds given", "[nkilib]") {
  auto const run = [](BackwardParameters p) {
    p.num_workers = ranks;
    striped_backward(p);
    return on_every_rank([&](auto& ring, auto& backend) { return backward(ring, backend, p); });
  };
  BackwardParameters const bounds{.bound_min = bound_min_2, .bound_max = bound_max_2};
  CHECK(run({.segment_cu_seqlens = {0, 8, 12}}) == run(bounds));
  BackwardParameters both = bounds;
  both.segment_cu_seqlens = {0, 4, 12};
  CHECK(run(both) == run({.segment_cu_seqlens = {0, 4, 8, 12}}));
}

TEST_CASE("nkilib: replica groups that match the ring are accepted", "[nkilib]") {
  auto const alone =
      on_every_rank([](auto& ring, auto& backend) { return forward(ring, backend, {.num_workers = 2}); });
  for (nkilib::ReplicaGroups const& groups : {nkilib::ReplicaGroups{{0, 1}}, {{0, 2}, {3, 1}}}) {
    auto const grouped = on_every_rank([&](auto& ring, auto& backend) {
      return forward(ring, backend, {.replica_groups = groups, .num_workers = 2});
    });
    CHECK(grouped == alone);
  }
}

TEST_CASE("nkilib: only training determines whether lse is returned", "[nkilib]") {
  annulus::SelfRing ring;
  annulus::ReferenceBackend backend;
  auto const x = operand(0, 1);
  CHECK_FALSE(nkilib::ring_attention_spmd_fwd(ring, backend, x, x, x).lse.has_value());
  auto const trained = nkilib::ring_attention_spmd_fwd(ring, backend, x, x, x, {.training = true});
  REQUIRE(trained.lse.has_value());
  CHECK(trained.lse->dimension(2) == 128);
  CHECK(trained.lse->dimension(3) == 1);
  CHECK((*trained.lse)(0, 1, 6, 0) == 0.0f);
}

TEST_CASE("nkilib: shapes that do not match are refused", "[nkilib]") {
  annulus::SelfRing ring;
  annulus::ReferenceBackend backend;
  auto const x = operand(0, 1);
  Tensor const narrow(1, 2, 5, 6), three_heads(1, 3, 6, 6);
  Tensor lse(1, 2, 6, 1);
  lse.setZero();
  auto const forward_of = [&](Tensor const& q, Tensor const& k) {
    return [&ring, &backend, &q, &k] { nkilib::ring_attention_spmd_fwd(ring, backend, q, k, k); };
  };
  check_refused({{"lse_ref", "ShapeError", "lse_ref has extents [1, 2, 6, 1]; expected [1, 2, 128, 1]",
                  [&] { nkilib::ring_attention_spmd_bwd(ring, backend, x, x, x, x, x, lse); }},
                 {"head_dim", "ShapeError", "k has head_dim 6, q has 5", forward_of(narrow, x)},
                 {"heads", "ShapeError", "heads", forward_of(x, three_heads)}});
}
