#pragma once
// Zero-copy exchange: ranks sharing memory read each other's buffers directly.

#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "annulus/comm/zero_copy.hpp"
#include "annulus/ring/exchange_step.hpp"
#include "annulus/ring/ring_buffers.hpp"

namespace annulus {

/// The exchanges of one rank in one pass, with the members of CopiedExchange. Before its first step every rank opens
/// windows on its prefetched rows to all ranks that need them; each step reads the rows of its owner in the owner's
/// buffer. Results are read by the rank that adds to them next. They rotate through up to three buffers, so that this
/// rank writes new results while the other rank reads the previous ones.
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
    for (int later = 1; later < plan_.steps(); ++later) {
      int const hop = plan_.offset(later);
      auto const out =
          buffers_.prefetched[0].outgoing(plan_.step(ring_neighbour(rank_, hop, plan_.ranks()), later).held,
                                          seed(Channel::prefetched, later), later - 1);
      windows_.push_back(communicator_.open_window(Channel::prefetched, hop, out));
    }
  }

  void await_next(int i) {
    auto& window = windows_[static_cast<std::size_t>(i)];
    window.wait();
    PlannedStep const& next = plan_.step(rank_, i + 1);
    bind(here_, window, plan_.prefetched_layout(), next.held, Channel::prefetched, i + 1, next.owner);
  }

  Payload& results(int i) {
    bool const at_owner = plan_.steps() == 1 || (plan_.carried_direct() && i == 0);
    Payload& results = at_owner ? buffers_.carried[0] : *result_buffers_[next_buffer_];
    if (!at_owner) {
      communicator_.reclaim(results.buffer());
      next_buffer_ = (next_buffer_ + 1) % buffer_count_;
    }
    results.hold(plan_.step(rank_, i).held);
    return results;
  }

  template <class Join>
  void merge_arrived(int i, Payload& results, Join& join) {
    if (!carried_window_) return;
    await_results(i - 1);
    join(plan_.carried_direct() ? buffers_.carried[0] : results, arrived_);
  }

  void send_results(int i, Payload& results) {
    if (i > 0) windows_[static_cast<std::size_t>(i - 1)].release();
    if (carried_window_) carried_window_->release();
    carried_window_.reset();
    if (plan_.carried_layout().row_bytes.empty() || plan_.carried_hop(i) == 0) return;
    carried_window_.emplace(
        communicator_.open_window(Channel::carried, plan_.carried_hop(i),
                                  results.outgoing(plan_.step(rank_, i).carried, seed(Channel::carried, i))));
  }

  /// The results for this rank's own rows may be in another rank's memory: their window is released when this object is
  /// destroyed.
  template <class Join>
  Payload const& return_to_owner(Join& join) {
    Payload const& own_results = buffers_.carried[0];
    if (!carried_window_) return own_results;
    await_results(plan_.steps() - 1);
    if (!plan_.carried_direct()) return arrived_;
    join(own_results, arrived_);
    return own_results;
  }

 private:
  /// Waits for the results of step `sent_in` that another rank has shared with this one.
  void await_results(int sent_in) {
    carried_window_->wait();
    bind(arrived_, *carried_window_, plan_.carried_layout(), plan_.step(rank_, sent_in).arriving, Channel::carried,
         sent_in, ring_neighbour(rank_, -plan_.carried_hop(sent_in), plan_.ranks()));
  }

  std::uint64_t seed(Channel channel, int step) const { return detail::checksum_seed(buffers_.call, channel, step); }

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
    detail::require_intact(payload, rows, seed(channel, step), Payload::leaving, channel, rank_, owner);
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
};

}  // namespace annulus
