#pragma once
// Wrappers of a communicator and a backend that inject one fault.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "annulus/backend/reference/reference.hpp"
#include "annulus/comm/communicator.hpp"
#include "faults/fault.hpp"

namespace annulus_test {

/// Wraps the communicator of one rank, which must outlive it, as must the script; models ZeroCopyCommunicator. The
/// receiver of a dropped message waits in the wrapped communicator for another message of the same sender, which never
/// comes, so that the deadline of that communicator ends the wait.
template <annulus::ZeroCopyCommunicator C>
class FaultInjectingCommunicator {
  using Runs = std::vector<std::vector<std::byte>>;

  /// The message and the record before those that are replaced by a duplicate.
  struct History {
    Runs message;
    std::vector<std::byte> record;
  };

 public:
  using memory_space = annulus::HostMemory;
  using Buffer = typename C::Buffer;

  class Transfer {
   public:
    void wait() {
      if (!inner_) return;
      if (damage_ == FaultKind::drop) owner_->wait_in_vain(place_, hop_);
      inner_->wait();
      inner_.reset();
      owner_->delay_if_damaged(damage_);
      if (damage_ == FaultKind::flip) flip_bit_of(runs_);
      if (damage_ == FaultKind::duplicate) overwrite(runs_, owner_->history_.message);
      if (keeps_) owner_->history_.message = copy_of(runs_);
    }

    void progress() noexcept requires annulus::ProgressingTransfer<annulus::TransferOf<C>> {
      if (inner_) inner_->progress();
    }

   private:
    friend class FaultInjectingCommunicator;
    FaultInjectingCommunicator* owner_ = nullptr;
    FaultKind damage_ = FaultKind::none;
    Place place_{};
    int hop_ = 1;
    bool keeps_ = false;
    Runs scratch_;                                 ///< receives a message that is withheld from the caller
    std::vector<std::span<std::byte>> runs_;       ///< the caller's; kept where the message is damaged or copied
    std::optional<annulus::TransferOf<C>> inner_;  // destroyed before the bytes it writes to
  };

  class SharedWindow {
   public:
    void wait() {
      if (damage_ == FaultKind::drop) owner_->wait_in_vain(place_, hop_);
      inner_.wait();
      owner_->delay_if_damaged(damage_);
      if (damage_ == FaultKind::flip || damage_ == FaultKind::stale || damage_ == FaultKind::duplicate) {
        altered_ = copy_of(inner_.runs());
        std::vector<std::span<std::byte>> const places(altered_.begin(), altered_.end());
        if (damage_ == FaultKind::flip) flip_bit_of(places);
        if (damage_ == FaultKind::duplicate) overwrite(places, owner_->history_.message);
        if (damage_ == FaultKind::stale)
          for (auto& run : altered_) std::fill(run.begin(), run.end(), std::byte{0});
        runs_.assign(altered_.begin(), altered_.end());
      }
      if (keeps_) owner_->history_.message = copy_of(inner_.runs());
    }
    annulus::WindowRuns runs() const { return altered_.empty() ? inner_.runs() : annulus::WindowRuns(runs_); }
    void release() noexcept { inner_.release(); }

   private:
    friend class FaultInjectingCommunicator;
    explicit SharedWindow(annulus::WindowOf<C> inner) : inner_(std::move(inner)) {}
    annulus::WindowOf<C> inner_;
    FaultInjectingCommunicator* owner_ = nullptr;
    FaultKind damage_ = FaultKind::none;
    Place place_{};
    int hop_ = 1;
    bool keeps_ = false;
    Runs altered_;
    std::vector<std::span<std::byte const>> runs_;
  };

  FaultInjectingCommunicator(C& inner, FaultScript& script) : inner_(&inner), script_(&script) {}

  annulus::Rank rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }

  Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in) {
    Transfer transfer;
    begin(transfer, channel, hop);
    if (transfer.damage_ != FaultKind::none || transfer.keeps_) transfer.runs_.assign(in.begin(), in.end());
    if (transfer.damage_ != FaultKind::stale) {
      transfer.inner_.emplace(inner_->start_shift(channel, hop, leaving(out), in));
      return transfer;
    }
    for (auto const& run : in) transfer.scratch_.emplace_back(run.size());
    std::vector<std::span<std::byte>> const places(transfer.scratch_.begin(), transfer.scratch_.end());
    transfer.inner_.emplace(inner_->start_shift(channel, hop, leaving(out), places));
    return transfer;
  }

  bool shares_memory() const { return inner_->shares_memory(); }
  Buffer allocate(annulus::Index bytes) { return inner_->allocate(bytes); }
  void reclaim(std::byte const* first) { inner_->reclaim(first); }

  SharedWindow open_window(annulus::Channel channel, int hop, annulus::OutgoingBytes out) {
    Numbered exchange;
    begin(exchange, channel, hop);
    SharedWindow window(inner_->open_window(channel, hop, leaving(out)));
    window.owner_ = exchange.owner_, window.damage_ = exchange.damage_, window.place_ = exchange.place_;
    window.hop_ = exchange.hop_, window.keeps_ = exchange.keeps_;
    return window;
  }

  /// Damages the record that the next rank receives from the culprit.
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    int const number = script_->arrive(Place::all_gather);
    if (script_->damage(Place::all_gather, number, rank()) == FaultKind::truncate) {
      std::size_t const half = mine.size() / 2;
      return inner_->all_gather(mine.first(half), all.first(half * static_cast<std::size_t>(size())));
    }
    annulus::Rank const sender = annulus::ring_neighbour(rank(), -1, size());
    FaultKind const damage = script_->damage(Place::all_gather, number, sender);
    auto const record = all.subspan(static_cast<std::size_t>(sender) * mine.size(), mine.size());
    std::vector<std::byte> before;
    if (damage == FaultKind::stale) before.assign(record.begin(), record.end());
    inner_->all_gather(mine, all);
    if (damage == FaultKind::drop) wait_in_vain(Place::all_gather, 1);
    delay_if_damaged(damage);
    if (damage == FaultKind::flip) flip_bit_of({record});
    if (damage == FaultKind::stale) std::copy(before.begin(), before.end(), record.begin());
    if (damage == FaultKind::duplicate)
      std::copy_n(history_.record.begin(), std::min(record.size(), history_.record.size()), record.begin());
    if (script_->is_before_duplicate(Place::all_gather, number)) history_.record.assign(record.begin(), record.end());
  }

  void abandon(std::string_view reason, annulus::Rank culprit) noexcept {
    annulus::abandon_ring(*inner_, reason, culprit);
  }
  void abandon(std::string_view reason) noexcept { abandon(reason, rank()); }
  annulus::FlightRecord& flight_record() requires annulus::CallRecordingCommunicator<C> {
    return inner_->flight_record();
  }

 private:
  struct Numbered {
    FaultInjectingCommunicator* owner_;
    FaultKind damage_;
    Place place_;
    int hop_;
    bool keeps_;
  };

  template <class Exchange>
  void begin(Exchange& exchange, annulus::Channel channel, int hop) {
    Place const place = place_of(channel);
    int const number = script_->arrive(place);
    exchange.owner_ = this;
    exchange.place_ = place;
    exchange.hop_ = hop;
    exchange.damage_ = script_->damage(place, number, annulus::ring_neighbour(rank(), -hop, size()));
    exchange.keeps_ = script_->is_before_duplicate(place, number);
    truncates_ = script_->damage(place, number, rank()) == FaultKind::truncate;
  }

  /// The runs to send: all of `out`, or with its last non-empty run cut to half.
  annulus::OutgoingBytes leaving(annulus::OutgoingBytes out) {
    if (!std::exchange(truncates_, false)) return out;
    shortened_.assign(out.begin(), out.end());
    for (auto run = shortened_.rbegin(); run != shortened_.rend(); ++run)
      if (!run->empty()) {
        *run = run->first(run->size() / 2);
        break;
      }
    return shortened_;
  }

  /// Injects a delay after a message has arrived.
  void delay_if_damaged(FaultKind damage) {
    if (damage == FaultKind::delay) std::this_thread::sleep_for(short_delay);
  }

  /// Replaces the wait for a dropped message.
  void wait_in_vain(Place place, int hop) {
    // A problem has sink logits, hence a reduction, only if the place of the fault is there: else that channel is free.
    auto const unused = place == Place::reduction ? annulus::Channel::carried : annulus::Channel::reduction;
    inner_->start_shift(unused, hop, {}, {}).wait();
  }

  template <class Bytes>
  static Runs copy_of(Bytes const& runs) {
    Runs copy;
    for (auto const& run : runs) copy.emplace_back(run.begin(), run.end());
    return copy;
  }
  static void overwrite(std::vector<std::span<std::byte>> const& runs, Runs const& with) {
    for (std::size_t p = 0; p < std::min(runs.size(), with.size()); ++p)
      std::copy_n(with[p].begin(), std::min(runs[p].size(), with[p].size()), runs[p].begin());
  }
  /// Inverts a bit in the middle of the longest run.
  static void flip_bit_of(std::vector<std::span<std::byte>> const& runs) {
    auto const longest =
        std::max_element(runs.begin(), runs.end(), [](auto const& a, auto const& b) { return a.size() < b.size(); });
    if (longest != runs.end() && !longest->empty()) (*longest)[longest->size() / 2] ^= std::byte{0x10};
  }

  C* inner_;
  FaultScript* script_;
  History history_;
  bool truncates_ = false;
  std::vector<std::span<std::byte const>> shortened_;
};

/// The reference backend with the faults of the script.
class FaultInjectingBackend : public annulus::ReferenceBackend {
 public:
  /// work: the minimum duration of each step.
  FaultInjectingBackend(FaultScript& script, std::chrono::milliseconds work) : script_(&script), work_(work) {}

  template <class... X>
  void fold(X const&... x) {
    begin_step();
    annulus::ReferenceBackend::fold(x...);
  }
  template <class... X>
  void add_gradients(X const&... x) {
    begin_step();
    annulus::ReferenceBackend::add_gradients(x...);
  }

 private:
  void begin_step() {
    script_->arrive(Place::compute);
    if (work_.count() > 0) std::this_thread::sleep_for(work_);
  }

  FaultScript* script_;
  std::chrono::milliseconds work_;
};
static_assert(annulus::Backend<FaultInjectingBackend>);

}  // namespace annulus_test
