#pragma once
// Communicators of NCCL, one for each channel, as shifts of different channels are started in different orders on
// different ranks: their construction with a deadline, their errors, and their end.

#include <nccl.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "annulus/comm/communicator.hpp"
#include "annulus/comm/polling_timer.hpp"
#include "annulus/core/cuda/memory.hpp"
#include "annulus/core/cuda/queries.hpp"

namespace annulus::detail {

/// Throws Error if a call of NCCL failed, with its name.
inline void check_nccl(ncclResult_t result, std::string_view call) {
  if (result != ncclSuccess && result != ncclInProgress)
    throw Error(message_of(call, ": ", ncclGetErrorString(result)));
}

/// The communicators of a rank and a stream for each. They do not block: a call returns ncclInProgress, and settle()
/// waits until it has been carried out.
class NcclCommunicators {
 public:
  explicit NcclCommunicators(std::chrono::milliseconds timeout) : timeout_(timeout) {
    for (auto& stream : streams_) stream = cuda::detail::make_stream();
  }
  NcclCommunicators(NcclCommunicators const&) = delete;
  NcclCommunicators& operator=(NcclCommunicators const&) = delete;
  ~NcclCommunicators() { end(); }

  /// Collective. ids: one for each channel, the same on all ranks.
  void initialise(std::span<ncclUniqueId const> ids, Rank rank, int size) {
    for (std::size_t c = 0; c < num_channels; ++c) {
      ncclConfig_t config = without_blocking();
      check_nccl(ncclCommInitRankConfig(&communicators_[c], size, ids[c], rank, &config), "ncclCommInitRankConfig");
      settle(c, "ncclCommInitRankConfig");
    }
    connect(rank, size);
  }

  /// Collective. The ranks of `whole` in the same order; it is not used afterwards.
  void split(ncclComm_t whole, Rank rank, int size) {
    for (std::size_t c = 0; c < num_channels; ++c) {
      ncclConfig_t config = without_blocking();
      check_nccl(ncclCommSplit(whole, 0, rank, &communicators_[c], &config), "ncclCommSplit");
      wait_for(whole, "ncclCommSplit");
      settle(c, "ncclCommSplit");
    }
    connect(rank, size);
  }

  ncclComm_t communicator(Channel channel) const { return communicators_[static_cast<std::size_t>(channel)]; }
  cudaStream_t stream(Channel channel) const { return streams_[static_cast<std::size_t>(channel)]; }

  /// Sends and receives all runs as one call of NCCL on the stream of the channel.
  void exchange(Channel channel, OutgoingBytes out, Rank to, IncomingBytes in, Rank from) {
    check_nccl(ncclGroupStart(), "ncclGroupStart");
    ncclResult_t result = ncclSuccess;
    auto const note = [&](ncclResult_t one) {
      if (result == ncclSuccess && one != ncclInProgress) result = one;
    };
    for (auto const& run : out)
      if (!run.empty()) note(ncclSend(run.data(), run.size(), ncclUint8, to, communicator(channel), stream(channel)));
    for (auto const& run : in)
      if (!run.empty()) note(ncclRecv(run.data(), run.size(), ncclUint8, from, communicator(channel), stream(channel)));
    note(ncclGroupEnd());  // also after an error, as the group was begun
    check_nccl(result, "ncclSend and ncclRecv");
    settle(static_cast<std::size_t>(channel), "ncclGroupEnd");
  }

  /// The first error that NCCL has met since; empty if there is none.
  std::string_view error() const {
    for (ncclComm_t const communicator : communicators_) {
      ncclResult_t state = ncclSuccess;
      if (communicator) ncclCommGetAsyncError(communicator, &state);
      if (state != ncclSuccess && state != ncclInProgress) return ncclGetErrorString(state);
    }
    return {};
  }

  /// Ends exchanges that are not done, on this rank. Returns when they do not touch memory any more, at the timeout at
  /// the latest.
  void abort() noexcept {
    for (ncclComm_t& communicator : communicators_) {
      if (communicator) ncclCommAbort(communicator);
      communicator = nullptr;
    }
    wait_for_streams(timeout_);
  }

 private:
  static ncclConfig_t without_blocking() {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return config;
  }

  void settle(std::size_t channel, std::string_view call) const { wait_for(communicators_[channel], call); }

  /// Returns when the calls made so far have been carried out. Throws Error if one failed or the timeout has passed.
  void wait_for(ncclComm_t communicator, std::string_view call) const {
    ncclResult_t state = ncclInProgress;
    PollingTimer timer(PollingTimer::Of::device);
    for (;; timer.pause()) {
      check_nccl(ncclCommGetAsyncError(communicator, &state), "ncclCommGetAsyncError");
      check_nccl(state, call);
      if (state == ncclSuccess) return;
      check<Error>(!timer.exceeds(timeout_), call, " is not done after ", timeout_.count(), " ms");
    }
  }

  /// Sends a byte from each rank to each, on each channel. NCCL connects two ranks when they first exchange, and waits
  /// until both do: later, ranks that start different channels would wait for each other.
  void connect(Rank rank, int size) {
    auto const bytes = cuda::detail::allocate_device(2 * size);
    for (std::size_t c = 0; c < num_channels; ++c)
      for (int hop = 0; hop < size; ++hop) {
        Rank const to = ring_neighbour(rank, hop, size), from = ring_neighbour(rank, -hop, size);
        std::array const out{std::span<std::byte const>(bytes.data() + to, 1)};
        std::array const in{std::span<std::byte>(bytes.data() + size + from, 1)};
        exchange(static_cast<Channel>(c), out, to, in, from);
      }
    check<Error>(wait_for_streams(timeout_), "the first exchange of NCCL is not done after ", timeout_.count(), " ms");
  }

  /// True if the streams are idle, at the latest after `longest`.
  bool wait_for_streams(std::chrono::milliseconds longest) const noexcept {
    PollingTimer timer(PollingTimer::Of::device);
    for (auto const& stream : streams_)
      for (; !cuda::detail::is_idle(stream); timer.pause())
        if (timer.exceeds(longest)) return false;
    return true;
  }

  /// Returns soon, also if the peers still use theirs: they meet the end of the host's ring.
  void end() noexcept {
    constexpr std::chrono::milliseconds grace{2000};
    PollingTimer timer(PollingTimer::Of::device);
    bool idle = wait_for_streams(grace);
    for (ncclComm_t& communicator : communicators_) {
      if (!communicator) continue;
      ncclResult_t state = idle ? ncclCommFinalize(communicator) : ncclSystemError;
      for (; state == ncclInProgress && !timer.exceeds(grace); timer.pause())
        ncclCommGetAsyncError(communicator, &state);
      idle = state == ncclSuccess;
      idle ? ncclCommDestroy(communicator) : ncclCommAbort(communicator);
      communicator = nullptr;
    }
  }

  std::chrono::milliseconds timeout_;
  std::array<ncclComm_t, num_channels> communicators_{};
  std::array<cuda::detail::Stream, num_channels> streams_;
};

}  // namespace annulus::detail
