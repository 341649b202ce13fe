#pragma once
// Training steps of a tiny problem on a ring into which a fault is injected, and the report of each rank.

#include <annulus/attention/cache/cached_attention.hpp>
#include <annulus/attention/ring_attention.hpp>
#include <annulus/comm/simulated_ring.hpp>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "faults/fault_injection.hpp"

namespace annulus_test {

/// One run of the fault matrix.
struct Scenario {
  int ranks = 2;
  annulus::ZeroCopy zero_copy = annulus::ZeroCopy::never;
  annulus::Rotation rotation = annulus::Rotation::keys;
  annulus::Schedule schedule = annulus::Schedule::ring;
  int group = 0;
  annulus::Index kv_heads = 1;  ///< of two query heads
  annulus::Wire wire = annulus::Wire::as_stored;
  bool checked = true;
  bool reproducible = false;  ///< with leaves of one position
  /// The calls are those of serving instead of training, and partial results are merged in this way.
  std::optional<annulus::MergeMethod> serving{};
  bool documents = false;  ///< document ids travel with the rows of the cache
  Fault fault{};
  std::chrono::milliseconds deadline{std::chrono::seconds(20)};
  /// The minimum duration of a step. In scenarios that end by the deadline it is long enough that ranks begin to wait
  /// one after another, as they do with more work: the first one reports the right culprit.
  std::chrono::milliseconds work{0};

  /// Enough steps that calls follow the fault, which is in the first training step unless its place is `call`.
  int training_steps() const { return fault.place == Place::call ? 3 : 2; }

  /// Scenarios with equal keys make the same calls if there is no fault.
  auto faultless_key() const {
    return std::tuple(ranks, zero_copy, rotation, schedule, group, kv_heads, wire, reproducible, checked, serving,
                      documents, fault.place == Place::reduction, fault.place == Place::call);
  }

  /// The same calls without the fault, with a deadline that they do not reach.
  Scenario without_fault() const {
    Scenario same = *this;
    same.fault.kind = FaultKind::none;
    same.deadline = std::chrono::seconds(20);
    same.work = {};
    return same;
  }

  std::string text() const {
    return annulus::detail::message_of(
        name_of(fault.kind), " at ", name_of(fault.place), " ", fault.number, " of rank ", fault.culprit, " of ", ranks,
        ", zero_copy ", annulus::name_of(zero_copy), ", ",
        serving                               ? annulus::name_of(*serving)
        : rotation == annulus::Rotation::keys ? "keys rotate"
                                              : "queries rotate",
        ", schedule ", annulus::name_of(schedule), ", kv heads ", kv_heads, ", wire ", annulus::name_of(wire),
        reproducible ? ", reproducible"
        : documents  ? ", documents"
                     : "",
        ", checks ", checked ? "on" : "off");
  }
};

/// The bits of the results of each call that returned: output and lse, or the gradients.
using Results = std::vector<std::vector<float>>;

/// Outcome of a run on one rank. Trivially copyable, so that processes can send it to each other.
struct RankReport {
  enum End { returned, communication_error, own_failure, other_exception };
  End end = returned;
  bool right = true;  ///< no call returned other results than without faults
  annulus::Rank neighbour = annulus::CommunicationError::unknown;
  double seconds = 0;           ///< since the run began on this rank
  std::array<int, 6> counts{};  ///< number of times that the rank reached each Place in its first training step
  std::array<char, 600> text{};
};

/// The parameters of a rank's run, in addition to the ring.
struct RunContext {
  std::function<void()> die = [] {};  ///< see FaultScript
  Results const* expected = nullptr;  ///< of this rank, without faults
  Results* obtained = nullptr;        ///< receives the results, if not null
};

namespace training_run_detail {

using Tensor = Eigen::Tensor<float, 4, Eigen::RowMajor>;
using Matrix = Eigen::Tensor<float, 2, Eigen::RowMajor>;

/// Values that differ by element, rank, training step and tensor.
template <class X>
void fill(X& tensor, int tensor_number, annulus::Rank rank, int step) {
  std::uint32_t state = 12345u + 7919u * static_cast<std::uint32_t>(tensor_number) +
                        104729u * static_cast<std::uint32_t>(rank) + 1299709u * static_cast<std::uint32_t>(step);
  for (annulus::Index i = 0; i < tensor.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    tensor.data()[i] = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1.0f;
  }
}

template <class... X>
std::vector<float> bits_of(X const&... tensors) {
  std::vector<float> all;
  (all.insert(all.end(), tensors.data(), tensors.data() + tensors.size()), ...);
  return all;
}

inline bool same_bits(std::vector<float> const& a, std::vector<float> const& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace training_run_detail

/// The communicator and the backend of a rank, which inject its fault, and the judge of its results.
template <class Ring>
struct FaultyRank {
  Ring& plain_ring;
  FaultScript& script;
  FaultInjectingCommunicator<Ring> ring;
  FaultInjectingBackend backend;
  Scenario const& scenario;
  RunContext const& context;
  RankReport& report;
  std::size_t call = 0;

  bool strikes() const { return scenario.fault.place == Place::call && scenario.fault.culprit == ring.rank(); }
  void judge(std::vector<float> bits) {
    if (context.expected && !training_run_detail::same_bits(bits, (*context.expected)[call])) report.right = false;
    if (context.obtained) context.obtained->push_back(std::move(bits));
    ++call;
  }
  /// Call after the first step.
  void note_counts() {
    for (std::size_t place = 0; place < report.counts.size(); ++place)
      report.counts[place] = script.count(static_cast<Place>(place));
  }
};

/// Makes the calls of one rank, which has two rows. The calls of a training step have the same number; the operands
/// differ in every step.
template <class Ring>
void train(FaultyRank<Ring>& self) {
  using namespace training_run_detail;
  Fault const& fault = self.scenario.fault;
  annulus::Rank const rank = self.ring.rank();
  annulus::RingAttention attention(self.ring, self.backend,
                                   annulus::Options{.reproducible = self.scenario.reproducible,
                                                    .reproducible_leaf = 1,
                                                    .rotation = self.scenario.rotation,
                                                    .schedule = self.scenario.schedule,
                                                    .ranks_per_group = self.scenario.group,
                                                    .wire = self.scenario.wire,
                                                    .checked = self.scenario.checked});
  constexpr annulus::Index rows = 2, heads = 2, dim = 4;
  Tensor q(1, rows, heads, dim), k(1, rows, self.scenario.kv_heads, dim), v = k, dout = q;
  Matrix sinks(heads, 1);
  fill(sinks, 4, 0, 0);
  for (int step = 0; step < self.scenario.training_steps(); ++step) {
    fill(q, 0, rank, step), fill(k, 1, rank, step), fill(v, 2, rank, step), fill(dout, 3, rank, step);
    annulus::Operands<float> operands;
    if (fault.place == Place::reduction) operands.sinks = annulus::view_of(std::as_const(sinks));
    operands.call = step;
    if (self.strikes() && fault.kind == FaultKind::leave && fault.number == 2 * step) break;
    if (self.strikes() && fault.kind == FaultKind::skip && fault.number == step) {
      self.call += 2;
      continue;
    }
    auto const forward = attention.forward(q, k, v, operands);
    self.judge(bits_of(forward.output, forward.lse));
    if (self.strikes() && fault.kind == FaultKind::leave && fault.number == 2 * step + 1) break;
    auto const gradients = attention.backward(dout, forward, q, k, v, operands);
    auto bits = bits_of(gradients.dq, gradients.dk, gradients.dv);
    if (gradients.dsinks) bits.insert(bits.end(), gradients.dsinks->data(), gradients.dsinks->data() + heads);
    self.judge(std::move(bits));
    if (step == 0) self.note_counts();
  }
}

/// The same with calls of a cache: rows that are sharded, prefill, and decode.
template <class Ring>
void serve(FaultyRank<Ring>& self) {
  using namespace training_run_detail;
  annulus::Rank const rank = self.ring.rank();
  constexpr annulus::Index heads = 2, dim = 4;
  // With pages of one row every rank sends rows to every other one.
  annulus::Index const rows = self.ring.size();
  // Faults are those of the calls: the cache is made without.
  annulus::KvCache<float, FaultInjectingBackend> cache(self.plain_ring, self.backend,
                                                       {.kv_heads = 1,
                                                        .head_dim = dim,
                                                        .value_dim = dim,
                                                        .pages = 3 * self.ring.size() + 3,
                                                        .page_rows = 1,
                                                        .document_ids = self.scenario.documents});
  annulus::CachedAttention attention(
      self.ring, self.backend,
      annulus::CachedOptions{.merge = *self.scenario.serving, .checked = self.scenario.checked});
  std::array const sequence{cache.create()};
  Tensor q(1, rows, heads, dim), k(1, rows, 1, dim), v = k, q1(1, 1, heads, dim), k1(1, 1, 1, dim), v1 = k1;
  Eigen::Tensor<std::int32_t, 2, Eigen::RowMajor> ids(1, rows), first_id(1, 1);
  // Of one document: every rank has as many steps as every other.
  ids.setConstant(1);
  first_id.setConstant(1);
  for (int step = 0; step < self.scenario.training_steps(); ++step) {
    fill(q, 0, rank, step), fill(k, 1, rank, step), fill(v, 2, rank, step);
    fill(q1, 3, 0, step), fill(k1, 4, 0, step), fill(v1, 5, 0, step);
    annulus::CachedOperands<float> operands;
    annulus::AppendOperands<> appended;
    operands.call = appended.call = step;
    if (self.scenario.documents) operands.query_documents = appended.key_documents = ids;
    attention.append_shards(cache, sequence, k, v, appended);
    auto const prefilled = attention.prefill(cache, sequence, q, operands);
    self.judge(bits_of(prefilled.output, prefilled.lse));
    if (self.scenario.documents) operands.query_documents = operands.key_documents = first_id;
    auto const decoded = attention.decode(cache, sequence, q1, k1, v1, operands);
    self.judge(bits_of(decoded.output, decoded.lse));
    if (step == 0) self.note_counts();
  }
}

/// Makes the calls of one rank until one throws.
template <class Ring>
RankReport run_training(Ring& plain_ring, Scenario const& scenario, RunContext const& context) {
  auto const begin = std::chrono::steady_clock::now();
  Fault const& fault = scenario.fault;
  FaultScript script(fault, plain_ring.rank(), scenario.deadline, context.die);
  RankReport report;
  try {
    FaultyRank<Ring> self{plain_ring,
                          script,
                          FaultInjectingCommunicator<Ring>(plain_ring, script),
                          FaultInjectingBackend(script, scenario.work),
                          scenario,
                          context,
                          report};
    if (scenario.serving)
      serve(self);
    else
      train(self);
  } catch (annulus::CommunicationError const& error) {
    report.end = RankReport::communication_error;
    report.neighbour = error.neighbour();
    std::strncpy(report.text.data(), error.what(), report.text.size() - 1);
  } catch (InjectedFailure const&) {
    report.end = RankReport::own_failure;
  } catch (std::bad_alloc const&) {
    report.end = fault.kind == FaultKind::no_memory ? RankReport::own_failure : RankReport::other_exception;
  } catch (std::exception const& error) {
    report.end = RankReport::other_exception;
    std::strncpy(report.text.data(), error.what(), report.text.size() - 1);
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

}  // namespace annulus_test
