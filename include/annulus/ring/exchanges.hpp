#pragma once
// Exchanges of one rank in one pass: messages, each of which is a shift that copies rows, and (zero-copy) windows, by
// which ranks that share memory read each other's slots.

#include <cstdint>
#include <span>

#include "annulus/backend/backend.hpp"
#include "annulus/comm/communicator.hpp"
#include "annulus/core/error.hpp"
#include "annulus/ring/slots.hpp"

namespace annulus::detail {

/// Seed of the checksum of rows that a call sends on `channel`. `code`: Shift::leaving_code; `backwards`: by the lane
/// of a plan that travels backwards. Unique for code < 2^24, call < 2^37.
constexpr std::uint64_t checksum_seed(std::uint64_t call, Channel channel, int code, bool backwards = false) {
  std::uint64_t const lane = call << 1 | static_cast<std::uint64_t>(backwards);
  return (lane << 24 | static_cast<std::uint64_t>(code)) << 2 | static_cast<std::uint64_t>(channel);
}

template <Communicator C, Backend B>
class Exchanges {
 public:
  using Space = typename B::memory_space;
  using Pending = PendingExchange<C>;

  /// call: number of the call, which seeds the checksums.
  Exchanges(C& ring, B& backend, Slots<C, B>& slots, IntervalRecorder const& recorder, std::uint64_t call)
      : ring_(ring), queue_(queue_of(backend)), slots_(slots), recorder_(recorder), call_(call) {}
  Exchanges(Exchanges const&) = delete;
  Exchanges& operator=(Exchanges const&) = delete;
  /// Makes the peers' waits fail if exchanges are pending.
  ~Exchanges() {
    for (Pending& pending : slots_.pending) pending = {};
  }

  void start(Shift const& shift, Action const& action) {
    Pending& pending = begin_pending(shift, action);
    SlotRuns<std::byte const> out;
    SlotRuns<std::byte> in;
    if (shift.out.slot >= 0) out = leaving(shift, action.lane);
    if (shift.in.slot >= 0) in = slots_.memory(shift.in.slot).incoming(shift.in.rows, shift.arriving_slot);
    pending.transfer.emplace(start_shift(ring_, shift.channel, shift.hop, out, in, queue_));
    ++in_flight_;
  }

  void open(Open const& open, Action const& action) {
    if constexpr (ZeroCopyCommunicator<C>) {
      Shift const& shift = open.shift;
      auto const out = leaving(shift, action.lane);
      begin_pending(shift, action).window.emplace(open_window(ring_, shift.channel, shift.hop, out, queue_));
    }
  }

  /// Throws CommunicationError for a lost or late peer and for corrupted rows.
  void await(Await const& await, Action const& action) {
    auto const begin = recorder_.now();
    std::span<Pending> const awaited =
        std::span(slots_.pending)
            .subspan(static_cast<std::size_t>(await.exchange), static_cast<std::size_t>(await.count));
    for (Pending& pending : awaited) wait(pending);
    report(awaited, begin, action.step);
    for (Pending& pending : awaited) arrive(pending);
  }

  void release(Release const& release) {
    Pending& pending = slots_.pending[static_cast<std::size_t>(release.exchange)];
    if constexpr (ZeroCopyCommunicator<C>) {
      check<Error>(pending.window.has_value(), "a list releases a window that it has not opened");
      release_window(*pending.window, queue_);
    }
    pending = {};
  }

  void reclaim(Reclaim const& reclaim, Action const& action) {
    if constexpr (ZeroCopyCommunicator<C>) {
      auto const begin = recorder_.now();
      reclaim_buffer(ring_, slots_.memory(reclaim.slot).buffer(), queue_);
      bool const rows = slots_.slot(reclaim.slot).kind == SlotKind::rows;
      recorder_.report_reclaim(rows ? Channel::prefetched : Channel::carried, action.step, begin);
    }
  }

  /// Callback that advances pending shifts while the backend works; empty if transfers advance by themselves.
  Progress progress() {
    if constexpr (ProgressingTransfer<TransferOf<C>>)
      return {[](void* context) { static_cast<Exchanges*>(context)->advance(); }, this};
    else
      return {};
  }

 private:
  template <class Byte>
  using SlotRuns = typename SlotMemory<Space>::template PartList<std::span<Byte>>;

  Pending& begin_pending(Shift const& shift, Action const& action) {
    Pending& pending = slots_.pending[static_cast<std::size_t>(shift.exchange)];
    pending.shift = &shift;
    pending.step = action.step;
    pending.lane = action.lane;
    pending.started = recorder_.now();
    return pending;
  }

  std::uint64_t seed(Channel channel, int code, int lane) const {
    return checksum_seed(call_, channel, code, lane > 0);
  }
  SlotRuns<std::byte const> leaving(Shift const& shift, int lane) const {
    return slots_.memory(shift.out.slot)
        .outgoing(shift.out.rows, seed(shift.channel, shift.leaving_code, lane), shift.leaving_slot, shift.sealed);
  }

  void wait(Pending& pending) {
    if constexpr (ZeroCopyCommunicator<C>)
      if (pending.window) return wait_for(*pending.window, queue_);
    check<Error>(pending.transfer.has_value(), "a list awaits an exchange that it has not started");
    wait_for(*pending.transfer, queue_);
    pending.transfer.reset();
    --in_flight_;
  }

  /// Reports these ended exchanges as one interval.
  void report(std::span<Pending const> awaited, IntervalRecorder::Time begin, int step) const {
    Index bytes = 0;
    PayloadLayout const* layout = nullptr;
    for (Pending const& pending : awaited) {
      SlotRows const& out = pending.shift->out;
      if (out.slot >= 0) bytes += out.rows.size() * slots_.slot(out.slot).layout.bytes_per_row();
      int const slot = out.slot >= 0 ? out.slot : pending.shift->in.slot;
      if (slot >= 0) layout = &slots_.slot(slot).layout;
    }
    if (!layout) return;
    Channel const channel = awaited[0].shift->channel;
    // A window on prefetched rows is opened before the first step, for a later one.
    bool const opened_before = awaited[0].window && channel == Channel::prefetched;
    int const started_in = opened_before ? step : std::max(awaited[0].step, Action::before_steps);
    recorder_.report_exchange(channel, started_in, awaited[0].started, begin, *layout, bytes);
  }

  /// Checks the rows that have arrived. A slot refers to those in a window from now on.
  void arrive(Pending& pending) {
    Shift const& shift = *pending.shift;
    if (shift.in.slot < 0) return;
    SlotMemory<Space>& memory = slots_.memory(shift.in.slot);
    Index place = shift.arriving_slot;
    if constexpr (ZeroCopyCommunicator<C>)
      if (pending.window) {
        bind(memory, shift, pending.window->runs());
        place = SlotMemory<Space>::leaving;  // a window holds exactly one checksum
      }
    if (!memory.is_intact(shift.in.rows, seed(shift.channel, shift.arriving_code, pending.lane), place))
      fail(shift, " do not match the checksum that rank ", shift.sender, " computed");
  }

  /// Throws CommunicationError if the byte counts of a window differ from the plan.
  void bind(SlotMemory<Space>& memory, Shift const& shift, WindowRuns runs) const {
    auto const lengths = memory.run_lengths(shift.in.rows);
    if (lengths.size() != runs.size()) fail(shift, ": expected ", lengths.size(), " runs, got ", runs.size());
    for (std::size_t p = 0; p < lengths.size(); ++p)
      if (lengths[p] != runs[p].size())
        fail(shift, ": expected ", lengths[p], " bytes in run ", p, ", got ", runs[p].size());
    memory.bind_to(runs, shift.in.rows);
  }

  template <class... Parts>
  [[noreturn]] void fail(Shift const& shift, Parts const&... what) const {
    throw CommunicationError(
        message_of("rank ", ring_.rank(), ": ", name_of(shift.channel), " rows from rank ", shift.sender, what...),
        ring_.rank(), CommunicationError::unknown, shift.sender);
  }

  void advance() noexcept requires ProgressingTransfer<TransferOf<C>> {
    int left = in_flight_;
    for (Pending& pending : slots_.pending) {
      if (left == 0) return;
      if (!pending.transfer) continue;
      pending.transfer->progress();
      --left;
    }
  }

  C& ring_;
  QueueOf<Space> queue_;
  Slots<C, B>& slots_;
  IntervalRecorder const& recorder_;
  std::uint64_t call_;
  int in_flight_ = 0;  ///< transfers
};

}  // namespace annulus::detail
