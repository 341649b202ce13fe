#pragma once
// A pass that moves marks in place of tensors: each byte of rows that travel names their owner, and each byte of sums
// that travel has a bit for every rank that has added to them.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "annulus/ring/executor.hpp"
#include "annulus/schedule/pass_actions.hpp"
#include "support/observed_backend.hpp"

namespace annulus_test {

using MarkedBackend = ObservedBackend<annulus::ReferenceBackend>;
template <class Ring>
using MarkedSlots = annulus::detail::Slots<Ring, MarkedBackend>;

/// Sums that travel are the state if queries rotate forward, and gradients backward; forward with keys: none.
inline annulus::PlanRequest rotation_request(std::vector<annulus::Index> lengths, annulus::Pass pass,
                                             annulus::Rotation rotation, annulus::Mask const& mask = annulus::full()) {
  return {.pass = pass,
          .shape = {.batch = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 3, .value_dim = 2},
          .query_lengths = lengths,
          .key_lengths = lengths,
          .rules = {.mask = mask},
          .rotation = rotation};
}

/// What a test sees of a marked pass.
struct MarkedCalls {
  /// Called at "work", with the step, "join" and "finish". It may throw.
  std::function<void(std::string const&)> note = [](std::string const&) {};
  /// Called at each Work on rows in a slot, with the step.
  std::function<void(int, annulus::WorkRows const&)> check = [](int, annulus::WorkRows const&) {};
};

/// Complaints are added to `wrong`.
template <class Ring>
class MarkedPass {
 public:
  MarkedPass(annulus::RingPlan const& plan, annulus::Rank rank, MarkedSlots<Ring>& slots, std::string& wrong,
             MarkedCalls const& calls)
      : plan_(plan), rank_(rank), slots_(slots), wrong_(wrong), calls_(calls) {}

  void perform(annulus::Pack const& pack, annulus::Action const&) { fill(pack.into, rank_ + 1); }

  void perform(annulus::Work const& work, annulus::Action const& action, annulus::Progress) {
    calls_.note("work " + std::to_string(action.step));
    bool const keys_rotate = plan_.rotation() == annulus::Rotation::keys;
    annulus::WorkRows const& rows = keys_rotate ? work.keys : work.queries;
    annulus::PlannedStep const& step = plan_.step(rank_, action.step);
    bool const as_planned = rows.rows.begin == step.held.begin && rows.rows.end == step.held.end;
    if (rows.owner != step.owner || !as_planned) complain("at step ", action.step, " other rows than planned");
    if (rows.from.slot >= 0) {
      if (!all_are(rows.from, step.owner + 1))
        complain("at step ", action.step, " the rows are not those of rank ", step.owner);
      calls_.check(action.step, rows);
    }
    for (auto const& [sums, opens] : {std::pair{work.query_sums, work.opens_queries}, {work.key_sums, work.opens_keys}})
      if (travels(sums)) {
        if (!opens) complain("sums that travel are not opened");
        fill(sums, 1 << rank_);
      }
  }

  void perform(annulus::Join const& join, annulus::Action const&) {
    calls_.note("join");
    auto const to = bytes(join.into), added = bytes(join.from);
    for (std::size_t p = 0; p < added.size(); ++p)
      for (std::size_t n = 0; n < added[p].size(); ++n) {
        if ((to[p][n] & added[p][n]) != std::byte{0}) complain("a share is added twice");
        to[p][n] |= added[p][n];
      }
  }

  void perform(annulus::Finish const& finish, annulus::Action const&) {
    calls_.note("finish");
    int visitors = 0;  // the ranks that this rank's rows visit
    for (int i = 0; i < plan_.steps(); ++i)
      visitors |= 1 << annulus::ring_neighbour(rank_, plan_.offset(i), plan_.ranks());
    // Results that go straight to their owner cover only the rows that a rank needs.
    if (travels(finish.from) && !plan_.transport().direct && !all_are(finish.from, visitors))
      complain("the results are not the shares of all ranks");
  }

  template <class What>
  void perform(What const&, annulus::Action const&) {}

 private:
  template <class... What>
  void complain(What const&... what) {
    wrong_ += annulus::detail::message_of("rank ", rank_, ": ", what..., "\n");
  }
  bool travels(annulus::SlotRows const& sums) const {
    return sums.slot >= 0 && slots_.slot(sums.slot).kind == annulus::SlotKind::results;
  }

  /// The bytes of rows of all parts, without the checksum.
  std::vector<std::span<std::byte>> bytes(annulus::SlotRows const& rows) const {
    auto const& memory = slots_.memory(rows.slot);
    auto const runs = memory.incoming(rows.rows, memory.arriving);
    return {runs.begin(), runs.begin() + static_cast<std::ptrdiff_t>(memory.layout().parts.size())};
  }
  void fill(annulus::SlotRows const& rows, int mark) const {
    for (auto const& part : bytes(rows)) std::fill(part.begin(), part.end(), static_cast<std::byte>(mark));
  }
  bool all_are(annulus::SlotRows const& rows, int mark) const {
    return std::ranges::all_of(bytes(rows), [&](auto const& part) {
      return std::all_of(part.begin(), part.end(), [&](std::byte b) { return b == static_cast<std::byte>(mark); });
    });
  }

  annulus::RingPlan const& plan_;
  annulus::Rank rank_;
  MarkedSlots<Ring>& slots_;
  std::string& wrong_;
  MarkedCalls const& calls_;
};

/// Executes the list of this rank once. `list` must outlive the slots' use.
template <class Ring>
void move_marks(annulus::RingPlan const& plan, annulus::ActionList const& list, Ring& ring, MarkedBackend& backend,
                MarkedSlots<Ring>& slots, std::string& wrong, MarkedCalls const& calls = {}, std::uint64_t call = 1) {
  slots.reserve(backend, ring, list);
  MarkedPass<Ring> pass(plan, ring.rank(), slots, wrong, calls);
  annulus::detail::execute(list, pass, slots, ring, backend, annulus::detail::IntervalRecorder(), call);
}

}  // namespace annulus_test
