#pragma once
// Rotations whose payloads hold marks instead of tensors: each byte of prefetched rows names their owner, and each byte
// of carried results has a bit for every rank that has added to them.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/simulated_ring.hpp"
#include "annulus/ring/rotation_loop.hpp"
#include "support/observed_backend.hpp"

namespace annulus_test {

using MarkedBackend = ObservedBackend<annulus::ReferenceBackend>;

/// Carried results are the state if queries rotate forward, and gradients backward; forward with keys: none.
inline annulus::PlanRequest rotation_request(std::vector<annulus::Index> lengths, annulus::Pass pass,
                                             annulus::Rotation rotation, annulus::Mask const& mask = annulus::full()) {
  return {.pass = pass,
          .shape = {.batch = 1, .query_heads = 1, .kv_heads = 1, .head_dim = 3, .value_dim = 2},
          .query_lengths = lengths,
          .key_lengths = lengths,
          .rules = {.mask = mask},
          .rotation = rotation};
}

/// The bytes of rows of all parts, without the checksum.
template <class Payload>
std::vector<std::span<std::byte>> parts_of(Payload const& payload, annulus::RowRange rows,
                                           annulus::PayloadLayout const& layout) {
  auto const runs = payload.incoming(rows);
  return {runs.begin(), runs.begin() + static_cast<std::ptrdiff_t>(layout.parts.size())};
}

inline void fill(std::vector<std::span<std::byte>> const& parts, int mark) {
  for (auto const& part : parts) std::fill(part.begin(), part.end(), static_cast<std::byte>(mark));
}

inline bool all_are(std::vector<std::span<std::byte>> const& parts, int mark) {
  return std::ranges::all_of(parts, [&](auto const& part) {
    return std::ranges::all_of(part, [&](std::byte byte) { return byte == static_cast<std::byte>(mark); });
  });
}

/// Rotates once on this rank. note(word) is called at "visit", "join", "inspect" and "finish", with the step where
/// there is one, and may throw; check(step, here) at each visit. Complaints are added to `wrong`.
template <class Ring, class Note, class Check>
void rotate_marks(annulus::RingPlan const& plan, Ring& ring, MarkedBackend& backend,
                  annulus::detail::RingBuffers<Ring, MarkedBackend>& buffers, std::string& wrong, Note&& note,
                  Check&& check) {
  annulus::Rank const rank = ring.rank();
  auto const complain = [&](auto const&... what) {
    wrong += annulus::detail::message_of("rank ", rank, ": ", what..., "\n");
  };
  auto const& prefetched = plan.prefetched_layout();
  auto const& carried = plan.carried_layout();
  bool const carries = !carried.empty();
  buffers.reserve(backend, ring, plan);
  buffers.prefetched[0].hold(plan.step(rank, 0).sent);
  fill(parts_of(buffers.prefetched[0], plan.step(rank, 0).sent, prefetched), rank + 1);
  int visitors = 0;  // the ranks that this rank's rows visit
  for (int i = 0; i < plan.steps(); ++i) visitors |= 1 << annulus::ring_neighbour(rank, plan.offset(i), plan.ranks());

  using Payload = typename annulus::detail::RingBuffers<Ring, MarkedBackend>::Payload;
  auto const visit = [&](int i, Payload const& here, Payload const& results, annulus::Progress) {
    note("visit " + std::to_string(i));
    annulus::PlannedStep const& step = plan.step(rank, i);
    if (i > 0 && (here.rows().begin != step.held.begin || here.rows().end != step.held.end))
      complain("at step ", i, " other rows than planned");
    if (i > 0 && !all_are(parts_of(here, step.held, prefetched), step.owner + 1))
      complain("at step ", i, " the rows are not those of rank ", step.owner);
    if (carries) fill(parts_of(results, step.held, carried), 1 << rank);
    check(i, here);
  };
  auto const inspect = [&](int i, Payload const&) { note("inspect " + std::to_string(i)); };
  auto const join = [&](Payload const& into, Payload const& from, int) {
    note("join");
    auto const to = parts_of(into, from.rows(), carried), added = parts_of(from, from.rows(), carried);
    for (std::size_t p = 0; p < added.size(); ++p)
      for (std::size_t n = 0; n < added[p].size(); ++n) {
        if ((to[p][n] & added[p][n]) != std::byte{0}) complain("a share is added twice");
        to[p][n] |= added[p][n];
      }
  };
  auto const finish = [&](Payload const& own) {
    note("finish");
    // Direct results cover only the rows that a rank needs.
    if (carries && !plan.carried_direct() && !all_are(parts_of(own, plan.rotating_rows(rank), carried), visitors))
      complain("the results are not the shares of all ranks");
  };
  annulus::detail::Lane<Ring, MarkedBackend> const lane{plan, buffers, visit, inspect, join, finish};
  annulus::detail::rotate(ring, backend, std::span<annulus::detail::Lane<Ring, MarkedBackend> const>(&lane, 1));
}

}  // namespace annulus_test
