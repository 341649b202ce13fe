#pragma once
// Exchange by messages, between ranks that do not share memory: each hop is a shift, which copies the rows.

#include <cstdint>
#include <optional>
#include <utility>

#include "annulus/comm/communicator.hpp"
#include "annulus/ring/exchange_step.hpp"
#include "annulus/ring/ring_buffers.hpp"

namespace annulus {

/// The exchanges of one rank in one pass, called by the ring loop. Prefetched rows travel from rank to rank through two
/// alternating buffers. Carried results are sent from up to two alternating working buffers and arrive in a buffer of
/// their own. Members that wait throw CommunicationError for a lost or late peer and for corrupted rows.
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
        working_(&buffers.carried[1]),
        sending_(&buffers.carried[2]) {}

  /// The rows that this rank holds at the step. At step 0 only those of its own rows that are to be sent.
  Payload const& here() const { return *here_; }

  /// Callback that advances pending shifts while the backend works; empty if transfers advance by themselves.
  Progress progress() {
    if constexpr (ProgressingTransfer<TransferOf<C>>)
      return {[](void* context) { static_cast<CopiedExchange*>(context)->advance(); }, this};
    else
      return {};
  }

  /// Call before the work of step i: starts the shift that brings the rows of step i + 1.
  void fetch_next(int i) {
    next_->hold(plan_.step(rank_, i + 1).held);
    auto const out = here_->outgoing(plan_.step(rank_, i).sent, seed(Channel::prefetched, i));
    auto const in = next_->incoming(next_->rows());
    prefetched_shift_.emplace(communicator_.start_shift(Channel::prefetched, plan_.prefetched_hop(i), out, in));
  }

  /// Call at the end of step i: waits for the rows of step i + 1, which here() returns from then on.
  void await_next(int i) {
    prefetched_shift_->wait();
    prefetched_shift_.reset();
    require_intact(*next_, Channel::prefetched, i, plan_.prefetched_hop(i));
    std::swap(here_, next_);
  }

  /// Payload that receives the results of step i, with the rows held at that step.
  Payload& results(int i) {
    Payload& results = plan_.steps() == 1 || (plan_.carried_direct() && i == 0) ? own_results() : *working_;
    results.hold(plan_.step(rank_, i).held);
    return results;
  }

  /// Call after the work of step i has been started: waits for the results sent after the previous step and joins them
  /// to those of the same rows.
  template <class Join>
  void merge_arrived(int i, Payload& results, Join& join) {
    if (!carried_shift_) return;
    await_results(i - 1);
    join(plan_.carried_direct() ? own_results() : results, arriving());
  }

  /// Call after step i has been synchronized: starts sending its results.
  void send_results(int i, Payload& results) {
    if (!carries_ || plan_.carried_hop(i) == 0) return;
    PlannedStep const& step = plan_.step(rank_, i);
    arriving().hold(step.arriving);
    auto const out = results.outgoing(step.carried, seed(Channel::carried, i));
    auto const in = arriving().incoming(arriving().rows());
    carried_shift_.emplace(communicator_.start_shift(Channel::carried, plan_.carried_hop(i), out, in));
    if (plan_.carried_rows(rank_)[2] > 0) std::swap(working_, sending_);
  }

  /// Call after the last step: waits for and returns the results for this rank's own rows; unspecified if nothing is
  /// carried.
  template <class Join>
  Payload const& return_to_owner(Join& join) {
    if (!carried_shift_) return own_results();
    await_results(plan_.steps() - 1);
    if (!plan_.carried_direct()) return arriving();
    join(own_results(), arriving());
    return own_results();
  }

 private:
  /// Waits for the results that were sent after step `sent_in`.
  void await_results(int sent_in) {
    carried_shift_->wait();
    carried_shift_.reset();
    require_intact(arriving(), Channel::carried, sent_in, plan_.carried_hop(sent_in));
  }
  void require_intact(Payload const& payload, Channel channel, int sent_in, int hop) const {
    detail::require_intact(payload, payload.rows(), seed(channel, sent_in), Payload::arriving, channel, rank_,
                           ring_neighbour(rank_, -hop, plan_.ranks()));
  }
  std::uint64_t seed(Channel channel, int step) const { return detail::checksum_seed(buffers_.call, channel, step); }

  void advance() noexcept {
    if (prefetched_shift_) prefetched_shift_->progress();
    if (carried_shift_) carried_shift_->progress();
  }

  Payload& own_results() { return buffers_.carried[0]; }
  Payload& arriving() { return buffers_.carried[3]; }

  RingPlan const& plan_;
  C& communicator_;
  RingBuffers<C, B>& buffers_;
  Rank rank_;
  bool carries_;
  Payload *here_, *next_, *working_, *sending_;
  std::optional<TransferOf<C>> prefetched_shift_, carried_shift_;
};

}  // namespace annulus
