#pragma once
// DeviceRing and StagedRing: rings whose operands are in the memory of a device, over one that moves bytes of host
// memory, such as MpiRing. The bytes are passed on as they are, to a GPU-aware MPI, or staged in host memory. The ring
// below knows no queue, so the host waits: in start_shift for the work on the queue, and in wait for the messages.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/comm/communicator.hpp"

namespace annulus {

/// Copies between the memory of a device and host memory. Satisfied by S where
///  1. allocate(bytes) returns a movable buffer of host memory with data() and size(), such as pinned memory;
///  2. to_host(from, to) and from_host(from, to) copy as many bytes as both have, and return when that is done.
template <class S>
concept Staging = requires(S& staging, Index bytes, std::span<std::byte const> from, std::span<std::byte> to) {
  { staging.allocate(bytes).data() } -> std::convertible_to<std::byte*>;
  { staging.allocate(bytes).size() } -> std::convertible_to<Index>;
  staging.to_host(from, to);
  staging.from_host(from, to);
};

namespace detail {

/// Returns when the work on the queue of a device is done, before bytes that it writes are sent. Throws
/// UnsupportedError if the queue is captured in a graph, whose launches would send nothing.
template <class Space>
void wait_before_sending(QueueOf<Space> const& queue) {
  if constexpr (requires { queue.is_captured(); })
    check<UnsupportedError>(!queue.is_captured(),
                            "a ring whose messages pass through the host cannot be captured in a graph; accepted: "
                            "PeerRing, or one rank");
  if constexpr (!works_at_once<Space>) queue.wait();
}

/// What needs no memory of the device: records and failures go to the communicator below, which must outlive it.
template <class Space, Communicator Inner>
class RingOver {
  static_assert(std::same_as<typename Inner::memory_space, HostMemory>,
                "annulus: the ring below a DeviceRing or StagedRing moves bytes of host memory");

 public:
  using memory_space = Space;

  Rank rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }

  /// The records are in host memory.
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) { inner_->all_gather(mine, all); }
  /// Closes the ring on all ranks; the errors of the others blame `culprit`, by default this rank.
  void abandon(std::string_view reason, Rank culprit) noexcept { abandon_ring(*inner_, reason, culprit); }
  void abandon(std::string_view reason) noexcept { abandon(reason, rank()); }

  /// Those of the ring below.
  std::span<Rank const> near_ranks() const requires TopologyAwareCommunicator<Inner> { return inner_->near_ranks(); }

  FlightRecord& flight_record() requires CallRecordingCommunicator<Inner> { return inner_->flight_record(); }

  /// Returns when the work on the queue is done. No exchange is on it, so that its waits need no deadline.
  void finish(QueueOf<Space> const& queue) {
    if constexpr (!works_at_once<Space>) queue.wait();
  }

 protected:
  explicit RingOver(Inner& inner) : inner_(&inner) {}

  Inner* inner_;
};

}  // namespace detail

/// A ring of operands in memory `Space` over `Inner`, which reads and writes that memory, as a GPU-aware MPI does.
/// Exchanges are messages: there is no zero-copy exchange.
template <class Space, Communicator Inner>
class DeviceRing : public detail::RingOver<Space, Inner> {
 public:
  /// `inner` must outlive it.
  explicit DeviceRing(Inner& inner) : detail::RingOver<Space, Inner>(inner) {}

  /// A pending shift of the communicator below.
  class Transfer {
   public:
    /// Returns when it has ended, on the host.
    /// Waits on the host.
    void wait(QueueOf<Space> const&) { inner_.wait(); }
    /// The same, in a space with an empty queue.
    void wait() requires works_at_once<Space> { inner_.wait(); }

    /// Advances the messages, if the communicator below needs that.
    void progress() noexcept requires ProgressingTransfer<TransferOf<Inner>> { inner_.progress(); }

   private:
    friend class DeviceRing;
    explicit Transfer(TransferOf<Inner> inner) : inner_(std::move(inner)) {}
    TransferOf<Inner> inner_;
  };

  /// The shift of the communicator below, of these addresses. Waits on the host for the work on the queue, which writes
  /// the bytes of `out` and reads those that `in` replaces.
  Transfer start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in, QueueOf<Space> const& queue) {
    detail::wait_before_sending<Space>(queue);
    return Transfer(this->inner_->start_shift(channel, hop, out, in));
  }
  Transfer start_shift(Channel channel, int hop, OutgoingBytes out,
                       IncomingBytes in) requires works_at_once<Space> {  ///< in a space without a queue
    return start_shift(channel, hop, out, in, {});
  }
};

/// A ring of operands in memory `Space` over `Inner`, which does not read that memory: messages are staged in host
/// memory, which is kept and reused.
template <class Space, Communicator Inner, Staging S>
class StagedRing : public detail::RingOver<Space, Inner> {
  /// Host memory and runs of one shift.
  struct Stage {
    std::decay_t<decltype(std::declval<S&>().allocate(Index{}))> bytes;
    std::vector<std::span<std::byte const>> leaving{};
    std::vector<std::span<std::byte>> arriving{},
        targets{};  ///< the same runs, in host memory and in that of the device
  };
  using Stages = std::vector<std::unique_ptr<Stage>>;

 public:
  /// `inner` and `staging` must outlive it.
  StagedRing(Inner& inner, S& staging)
      : detail::RingOver<Space, Inner>(inner), staging_(&staging), unused_(std::make_shared<Stages>()) {}

  /// A pending shift. The bytes that arrive are copied to the device by wait().
  class Transfer {
   public:
    /// Returns when they have been copied.
    void wait(QueueOf<Space> const&) { complete(); }
    /// The same, in a space with an empty queue.
    void wait() requires works_at_once<Space> { complete(); }

    /// Advances the messages, if the communicator below needs that.
    void progress() noexcept requires ProgressingTransfer<TransferOf<Inner>> {
      if (inner_) inner_->progress();
    }

    /// Movable only.
    Transfer(Transfer&& other) noexcept
        : staging_(other.staging_),
          unused_(std::move(other.unused_)),
          stage_(std::move(other.stage_)),
          inner_(std::exchange(other.inner_, std::nullopt)) {}
    Transfer& operator=(Transfer&& other) noexcept {  ///< see the constructor
      std::swap(staging_, other.staging_);
      std::swap(unused_, other.unused_);
      std::swap(stage_, other.stage_);
      std::swap(inner_, other.inner_);
      return *this;
    }
    ~Transfer() = default;

   private:
    friend class StagedRing;
    Transfer(S* staging, std::shared_ptr<Stages> unused, std::unique_ptr<Stage> stage, TransferOf<Inner> inner)
        : staging_(staging), unused_(std::move(unused)), stage_(std::move(stage)), inner_(std::move(inner)) {}

    void complete() {
      if (!inner_) return;
      inner_->wait();
      for (std::size_t run = 0; run < stage_->targets.size(); ++run)
        if (!stage_->targets[run].empty()) staging_->from_host(stage_->arriving[run], stage_->targets[run]);
      inner_.reset();
      unused_->push_back(std::move(stage_));
    }

    S* staging_;
    std::shared_ptr<Stages> unused_;
    std::unique_ptr<Stage> stage_;
    std::optional<TransferOf<Inner>> inner_;  // destroyed before the bytes that it reads and writes
  };

  /// Waits on the host for the work on the queue, copies `out` to host memory, and starts to send it.
  Transfer start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in, QueueOf<Space> const& queue) {
    detail::wait_before_sending<Space>(queue);
    std::size_t bytes = 0;
    for (auto const& run : out) bytes += run.size();
    for (auto const& run : in) bytes += run.size();
    std::unique_ptr<Stage> stage = stage_for(static_cast<Index>(bytes));
    std::byte* place = stage->bytes.data();
    for (auto const& run : out) {
      if (!run.empty()) staging_->to_host(run, {place, run.size()});
      stage->leaving.emplace_back(place, run.size());
      place += run.size();
    }
    for (auto const& run : in) {
      stage->targets.push_back(run);
      stage->arriving.emplace_back(place, run.size());
      place += run.size();
    }
    auto inner = this->inner_->start_shift(channel, hop, stage->leaving, stage->arriving);
    return {staging_, unused_, std::move(stage), std::move(inner)};
  }
  Transfer start_shift(Channel channel, int hop, OutgoingBytes out,
                       IncomingBytes in) requires works_at_once<Space> {  ///< in a space without a queue
    return start_shift(channel, hop, out, in, {});
  }

 private:
  /// One that no shift uses, with room for so many bytes.
  std::unique_ptr<Stage> stage_for(Index bytes) {
    auto const fits = [&](auto const& stage) { return static_cast<Index>(stage->bytes.size()) >= bytes; };
    auto found = std::find_if(unused_->begin(), unused_->end(), fits);
    bool const replaces = found == unused_->end() && !unused_->empty();
    if (replaces) found = unused_->begin();
    std::unique_ptr<Stage> stage;
    if (found != unused_->end()) {
      std::swap(*found, unused_->back());
      stage = std::move(unused_->back());
      unused_->pop_back();
    }
    if (!stage || replaces) stage = std::make_unique<Stage>(Stage{staging_->allocate(bytes)});
    stage->leaving.clear();
    stage->arriving.clear();
    stage->targets.clear();
    return stage;
  }

  S* staging_;
  std::shared_ptr<Stages> unused_;
};

}  // namespace annulus
