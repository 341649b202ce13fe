#pragma once
// The exchanges of one rank in one pass, called by the ring loop: by messages, or zero-copy through shared memory.

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/error.hpp"
#include "annulus/ring/offset_transfer.hpp"
#include "annulus/ring/ring_buffers.hpp"

namespace annulus::detail {

/// Seed of the checksum of the rows that step `step` of a call sends on `channel`. `backwards`: by the lane of a plan
/// that travels backwards. Unique for step < 2^24, call < 2^37.
constexpr std::uint64_t checksum_seed(std::uint64_t call, Channel channel, int step, bool backwards = false) {
  std::uint64_t const lane = call << 1 | static_cast<std::uint64_t>(backwards);
  return (lane << 24 | static_cast<std::uint64_t>(step)) << 2 | static_cast<std::uint64_t>(channel);
}

/// Throws CommunicationError if the checksum in `slot` shows that `rows` are not what `sender` sent.
template <class Payload>
void require_intact(Payload const& payload, RowRange rows, std::uint64_t seed, Index slot, Channel channel, Rank rank,
                    Rank sender) {
  if (!payload.is_intact(rows, seed, slot))
    throw CommunicationError(message_of("rank ", rank, ": ", name_of(channel), " rows from rank ", sender,
                                        " do not match the checksum that rank ", sender, " computed"),
                             rank, CommunicationError::unknown, sender);
}

/// Calls function(); adds the step to a CommunicationError that it throws.
template <class Function>
void in_step(Rank rank, int step, Function&& function) {
  try {
    function();
  } catch (CommunicationError const& error) {
    throw CommunicationError(message_of("step ", step, " of the ring: ", error.what()), rank, step, error.neighbour());
  }
}

/// Exchange by messages, between ranks that do not share memory or with ZeroCopy::never: each hop is a shift, which
/// copies the rows. Prefetched rows travel from rank to rank through two alternating buffers. Carried results are sent
/// from up to two alternating working buffers and arrive in a buffer of their own. Members that wait throw
/// CommunicationError for a lost or late peer and for corrupted rows.
template <Communicator C, Backend B>
class CopiedExchange {
 public:
  using Payload = typename RingBuffers<C, B>::Payload;

  CopiedExchange(RingPlan const& plan, C& communicator, RingBuffers<C, B>& buffers)
      : plan_(plan),
        communicator_(communicator),
        buffers_(buffers),
        rank_(communicator.rank()),
        carries_(!plan.carried_layout().empty()),
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
    prefetched_started_ = buffers_.recorder.now();
    prefetched_shift_.emplace(communicator_, plan_.rank_offsets(), Channel::prefetched, plan_.prefetched_hop(i), out,
                              in);
  }

  /// Call at the end of step i: waits for the rows of step i + 1, which here() returns from then on.
  void await_next(int i) {
    auto const begin = buffers_.recorder.now();
    prefetched_shift_->wait();
    prefetched_shift_.reset();
    buffers_.recorder.report_exchange(Channel::prefetched, i, prefetched_started_, begin, plan_.prefetched_layout(),
                                      plan_.step(rank_, i).prefetched_bytes);
    require_arrived(*next_, Channel::prefetched, i, plan_.prefetched_hop(i));
    std::swap(here_, next_);
  }

  /// Payload that receives the results of step i, with the rows held at that step.
  Payload& results(int i) {
    Payload& results = plan_.steps() == 1 || (plan_.carried_direct() && i == 0) ? own_results() : *working_;
    results.hold(plan_.step(rank_, i).held);
    return results;
  }

  /// Call after the work of step i has been started: waits for the results sent after the previous step. False if none
  /// were.
  bool await_arrived(int i) {
    if (!carried_shift_) return false;
    await_results(i - 1);
    return true;
  }

  /// Joins the results of step `sent_in`, which await_arrived has waited for, to those of the same rows.
  template <class Join>
  void join_arrived(int sent_in, Payload& results, Join const& join) {
    join(plan_.carried_direct() ? own_results() : results, arriving(), sent_in);
  }

  /// Call after step i has been synchronized: starts sending its results.
  void send_results(int i, Payload& results) {
    if (!carries_ || plan_.carried_hop(i) == 0) return;
    PlannedStep const& step = plan_.step(rank_, i);
    arriving().hold(step.arriving);
    auto const out = results.outgoing(step.carried, seed(Channel::carried, i));
    auto const in = arriving().incoming(arriving().rows());
    carried_started_ = buffers_.recorder.now();
    carried_shift_.emplace(communicator_, plan_.rank_offsets(), Channel::carried, plan_.carried_hop(i), out, in);
    if (plan_.carried_rows(rank_)[2] > 0) std::swap(working_, sending_);
  }

  /// Call after the last step: waits for and returns the results for this rank's own rows; unspecified if nothing is
  /// carried.
  template <class Join>
  Payload const& return_to_owner(Join const& join) {
    if (!carried_shift_) return own_results();
    await_results(plan_.steps() - 1);
    if (!plan_.carried_direct()) return arriving();
    join(own_results(), arriving(), plan_.steps() - 1);
    return own_results();
  }

 private:
  /// Waits for the results that were sent after step `sent_in`.
  void await_results(int sent_in) {
    auto const begin = buffers_.recorder.now();
    carried_shift_->wait();
    carried_shift_.reset();
    buffers_.recorder.report_exchange(Channel::carried, sent_in, carried_started_, begin, plan_.carried_layout(),
                                      plan_.step(rank_, sent_in).carried_bytes);
    require_arrived(arriving(), Channel::carried, sent_in, plan_.carried_hop(sent_in));
  }
  void require_arrived(Payload const& payload, Channel channel, int sent_in, int hop) const {
    require_intact(payload, payload.rows(), seed(channel, sent_in), Payload::arriving, channel, rank_,
                   plan_.rank_offsets().backward(rank_, hop));
  }
  std::uint64_t seed(Channel channel, int step) const {
    return checksum_seed(buffers_.call, channel, step, plan_.backwards());
  }

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
  std::optional<OffsetTransfer<C>> prefetched_shift_, carried_shift_;
  IntervalRecorder::Time prefetched_started_, carried_started_;
};

/// Zero-copy exchange, with the members of CopiedExchange: ranks sharing memory read each other's buffers. Before its
/// first step every rank opens windows on its prefetched rows to all ranks that need them; each step reads the rows of
/// its owner in the owner's buffer. Results are read by the rank that adds to them next. They rotate through up to
/// three buffers, so that this rank writes new results while the other rank reads the previous ones.
template <ZeroCopyCommunicator C, Backend B>
class ZeroCopyExchange {
 public:
  using Payload = typename RingBuffers<C, B>::Payload;
  static_assert(PayloadLayout::max_parts <= max_window_runs);

  ZeroCopyExchange(RingPlan const& plan, C& communicator, RingBuffers<C, B>& buffers)
      : plan_(plan),
        communicator_(communicator),
        buffers_(buffers),
        rank_(communicator.rank()),
        result_buffers_{&buffers.carried[1]},
        windows_(buffers.windows) {
    for (std::size_t i = 2; i < buffers.carried.size(); ++i)
      if (plan.carried_rows(rank_)[i] > 0) result_buffers_[buffer_count_++] = &buffers.carried[i];
  }

  ZeroCopyExchange(ZeroCopyExchange const&) = delete;
  ZeroCopyExchange& operator=(ZeroCopyExchange const&) = delete;
  ~ZeroCopyExchange() { windows_.clear(); }

  Payload const& here() const { return here_; }

  /// Empty: no transfer needs to be advanced.
  Progress progress() const { return {}; }

  void fetch_next(int i) {
    if (i > 0) return;
    windows_.reserve(static_cast<std::size_t>(plan_.steps() - 1));
    prefetched_opened_ = buffers_.recorder.now();
    for (int later = 1; later < plan_.steps(); ++later) {
      int const hop = plan_.offset(later);
      auto const out =
          buffers_.prefetched[0].outgoing(rows_read_at(later), seed(Channel::prefetched, later), later - 1);
      windows_.push_back(communicator_.open_window(Channel::prefetched, hop, out));
    }
  }

  void await_next(int i) {
    auto& window = windows_[static_cast<std::size_t>(i)];
    auto const begin = buffers_.recorder.now();
    window.wait();
    buffers_.recorder.report_exchange(Channel::prefetched, i, prefetched_opened_, begin, plan_.prefetched_layout(),
                                      rows_read_at(i + 1).size() * plan_.prefetched_layout().bytes_per_row());
    PlannedStep const& next = plan_.step(rank_, i + 1);
    bind(here_, window, plan_.prefetched_layout(), next.held, Channel::prefetched, i + 1, next.owner);
  }

  Payload& results(int i) {
    bool const at_owner = plan_.steps() == 1 || (plan_.carried_direct() && i == 0);
    Payload& results = at_owner ? buffers_.carried[0] : *result_buffers_[next_buffer_];
    if (!at_owner) {
      auto const begin = buffers_.recorder.now();
      communicator_.reclaim(results.buffer());
      buffers_.recorder.report_reclaim(Channel::carried, i, begin);
      next_buffer_ = (next_buffer_ + 1) % buffer_count_;
    }
    results.hold(plan_.step(rank_, i).held);
    return results;
  }

  bool await_arrived(int i) {
    if (!carried_window_) return false;
    await_results(i - 1);
    return true;
  }

  template <class Join>
  void join_arrived(int sent_in, Payload& results, Join const& join) {
    join(plan_.carried_direct() ? buffers_.carried[0] : results, arrived_, sent_in);
  }

  void send_results(int i, Payload& results) {
    if (i > 0) windows_[static_cast<std::size_t>(i - 1)].release();
    if (carried_window_) carried_window_->release();
    carried_window_.reset();
    if (plan_.carried_layout().empty() || plan_.carried_hop(i) == 0) return;
    carried_opened_ = buffers_.recorder.now();
    carried_window_.emplace(
        communicator_.open_window(Channel::carried, plan_.carried_hop(i),
                                  results.outgoing(plan_.step(rank_, i).carried, seed(Channel::carried, i))));
  }

  /// The results for this rank's own rows may be in another rank's memory: their window is released when this object is
  /// destroyed.
  template <class Join>
  Payload const& return_to_owner(Join const& join) {
    Payload const& own_results = buffers_.carried[0];
    if (!carried_window_) return own_results;
    await_results(plan_.steps() - 1);
    if (!plan_.carried_direct()) return arrived_;
    join(own_results, arrived_, plan_.steps() - 1);
    return own_results;
  }

 private:
  /// The rows of this rank that another one works on at the step.
  RowRange rows_read_at(int step) const {
    return plan_.step(ring_neighbour(rank_, plan_.offset(step), plan_.ranks()), step).held;
  }

  /// Waits for the results of step `sent_in` that another rank has shared with this one.
  void await_results(int sent_in) {
    auto const begin = buffers_.recorder.now();
    carried_window_->wait();
    buffers_.recorder.report_exchange(Channel::carried, sent_in, carried_opened_, begin, plan_.carried_layout(),
                                      plan_.step(rank_, sent_in).carried_bytes);
    bind(arrived_, *carried_window_, plan_.carried_layout(), plan_.step(rank_, sent_in).arriving, Channel::carried,
         sent_in, ring_neighbour(rank_, -plan_.carried_hop(sent_in), plan_.ranks()));
  }

  std::uint64_t seed(Channel channel, int step) const {
    return checksum_seed(buffers_.call, channel, step, plan_.backwards());
  }

  /// Makes `payload` refer to the rows in a window that has been waited for. Throws CommunicationError if their byte
  /// counts differ from the plan or their checksum does not match.
  void bind(Payload& payload, WindowOf<C> const& window, PayloadLayout const& layout, RowRange rows, Channel channel,
            int step, Rank owner) {
    WindowRuns const runs = window.runs();
    auto const require_equal = [&](std::size_t expected, std::size_t got, auto const&... what) {
      if (expected != got)
        throw CommunicationError(message_of("rank ", rank_, ": ", name_of(channel), " rows from rank ", owner,
                                            ": expected ", expected, what..., ", got ", got),
                                 rank_, CommunicationError::unknown, owner);
    };
    auto const lengths = Payload::run_lengths(layout, rows);
    require_equal(lengths.size(), runs.size(), " runs");
    for (std::size_t p = 0; p < lengths.size(); ++p) require_equal(lengths[p], runs[p].size(), " bytes in run ", p);
    payload.bind_to(runs, layout, rows);
    // A window holds exactly one checksum, whatever its slot in the owner's buffer.
    require_intact(payload, rows, seed(channel, step), Payload::leaving, channel, rank_, owner);
  }

  RingPlan const& plan_;
  C& communicator_;
  RingBuffers<C, B>& buffers_;
  Rank rank_;
  Payload here_, arrived_;
  std::array<Payload*, 3> result_buffers_;
  std::size_t buffer_count_ = 1, next_buffer_ = 0;
  std::vector<WindowOf<C>>& windows_;
  std::optional<WindowOf<C>> carried_window_;
  IntervalRecorder::Time prefetched_opened_, carried_opened_;
};

}  // namespace annulus::detail
