#pragma once
// Exchange by messages, between ranks that do not share memory: each hop is a shift, which copies.

#include <cstdint>
#include <optional>
#include <utility>

#include "annulus/comm/communicator.hpp"
#include "annulus/ring/exchange_step.hpp"
#include "annulus/ring/ring_buffers.hpp"

namespace annulus {

/// The exchanges of one rank in one pass, called by the ring loop. Rows travel from neighbour to neighbour: prefetched
/// ones through two buffers that take turns, carried ones from the fresh buffers of one rank into the arriving one of
/// another.
template <Communicator C, Backend B>
class CopiedExchange {
 public:
  using Payload = typename RingBuffers<C, B>::Payload;

  CopiedExchange(RingPlan const& plan, C& communicator, RingBuffers<C, B>& buffers)
      : plan_(plan),
        communicator_(communicator),
        buffers_(buffers),
        rank_(communicator.rank()),
        carries_(!plan.carried_layout().row_bytes.empty()),
        here_(&buffers.prefetched[0]),
        next_(&buffers.prefetched[1]),
        fresh_(&buffers.carried[1]),
        leaving_(&buffers.carried[2]) {}

  /// The rows that are here at the step. At step 0 they are the caller's own, and the payload holds what is to be sent.
  Payload const& here() const { return *here_; }

  /// What lets the shifts under way move on while the backend works; nothing, where they move by themselves.
  Progress progress() {
    if constexpr (ProgressingTransfer<TransferOf<C>>)
      return {[](void* context) { static_cast<CopiedExchange*>(context)->move_on(); }, this};
    else
      return {};
  }

  /// Before the work of step i: the rows of step i + 1 are on their way.
  void fetch_next(int i) {
    next_->hold(plan_.step(rank_, i + 1).held);
    auto const out = here_->outgoing(plan_.step(rank_, i).sent, seed(Channel::prefetched, i));
    auto const in = next_->incoming(next_->rows());
    ahead_.emplace(communicator_.start_shift(Channel::prefetched, plan_.prefetched_hop(i), out, in));
  }

  /// At the end of step i: the rows of step i + 1 are here.
  void await_next(int i) {
    ahead_->wait();
    ahead_.reset();
    require_intact(*next_, Channel::prefetched, i, plan_.prefetched_hop(i));
    std::swap(here_, next_);
  }

  /// Where the results of step i go.
  Payload& results(int i) {
    Payload& results = plan_.steps() == 1 || (plan_.carried_direct() && i == 0) ? home() : *fresh_;
    results.hold(plan_.step(rank_, i).held);
    return results;
  }

  /// After the work of step i has begun: joins to it the results that the step before has sent here.
  template <class Join>
  void join_arrived(int i, Payload& results, Join& join) {
    if (!behind_) return;
    await_results(i - 1);
    join(plan_.carried_direct() ? home() : results, arriving());
  }

  /// When the work of step i has come to rest: its results leave.
  void pass_on(int i, Payload& results) {
    if (!carries_ || plan_.carried_hop(i) == 0) return;
    PlannedStep const& step = plan_.step(rank_, i);
    arriving().hold(step.arriving);
    auto const out = results.outgoing(step.carried, seed(Channel::carried, i));
    auto const in = arriving().incoming(arriving().rows());
    behind_.emplace(communicator_.start_shift(Channel::carried, plan_.carried_hop(i), out, in));
    if (plan_.carried_rows(rank_)[2] > 0) std::swap(fresh_, leaving_);
  }

  /// After the last step: the results for this rank's own rows; without meaning where nothing is carried.
  template <class Join>
  Payload const& return_to_owner(Join& join) {
    if (!behind_) return home();
    await_results(plan_.steps() - 1);
    if (!plan_.carried_direct()) return arriving();
    join(home(), arriving());
    return home();
  }

 private:
  /// The results that left after step `sent_in`.
  void await_results(int sent_in) {
    behind_->wait();
    behind_.reset();
    require_intact(arriving(), Channel::carried, sent_in, plan_.carried_hop(sent_in));
  }
  void require_intact(Payload const& payload, Channel channel, int sent_in, int hop) const {
    detail::require_intact(payload, payload.rows(), seed(channel, sent_in), Payload::arriving, channel, rank_,
                           ring_neighbour(rank_, -hop, plan_.ranks()));
  }
  std::uint64_t seed(Channel channel, int step) const { return detail::checksum_seed(buffers_.call, channel, step); }

  void move_on() noexcept {
    if (ahead_) ahead_->progress();
    if (behind_) behind_->progress();
  }

  Payload& home() { return buffers_.carried[0]; }
  Payload& arriving() { return buffers_.carried[3]; }

  RingPlan const& plan_;
  C& communicator_;
  RingBuffers<C, B>& buffers_;
  Rank rank_;
  bool carries_;
  Payload *here_, *next_, *fresh_, *leaving_;
  std::optional<TransferOf<C>> ahead_, behind_;
};

}  // namespace annulus
