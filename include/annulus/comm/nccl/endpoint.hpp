#pragma once
// One rank's end of a ring over NCCL: the runs of a shift travel by NCCL, and a note about them by a communicator of
// host memory, whose waits have a deadline.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/comm/nccl/communicators.hpp"
#include "annulus/comm/polling_timer.hpp"
#include "annulus/comm/ring_failure.hpp"
#include "annulus/core/cuda/queries.hpp"
#include "annulus/core/digest.hpp"

namespace annulus {

/// Options of NcclRing.
struct NcclRingOptions {
  /// The longest wait for NCCL, and for the work of a call, after which the ring is closed; at least 1 ms. The
  /// communicator of the host has a deadline of its own.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

namespace detail {

/// What a rank tells the receiver of its runs.
struct NcclNote {
  std::uint64_t runs = 0, bytes = 0;
  std::uint64_t lengths = 0;  ///< digest

  template <class Runs>
  static NcclNote of(Runs const& runs) {
    NcclNote note;
    for (auto const& run : runs) {
      std::uint64_t const length = run.size();
      ++note.runs;
      note.bytes += length;
      note.lengths = digest_of(std::as_bytes(std::span(&length, 1)), note.lengths);
    }
    return note;
  }
  bool operator==(NcclNote const&) const = default;
};

/// An exchange by NCCL. Kept and reused, as its events are.
struct NcclExchange {
  NcclNote leaving{}, expected{}, got{};
  Rank from = 0;
  cuda::detail::Event ready = cuda::detail::make_event();  ///< where the shift was started, on the caller's queue
  cuda::detail::Event done = cuda::detail::make_event();   ///< the end of NCCL's work
};

template <Communicator Host>
class NcclEndpoint {
  using Queue = CudaMemory::Queue;

 public:
  struct Shift {
    std::unique_ptr<NcclExchange> exchange;
    TransferOf<Host> note;  // destroyed before the memory that it reads and writes
  };

  /// Collective. `whole`: the communicator to split; null: new ones are made.
  NcclEndpoint(Host& host, NcclRingOptions const& options, ncclComm_t whole)
      : host_(host), timeout_(options.timeout), nccl_(options.timeout) {
    or_close([&] {
      check<UnsupportedError>(timeout_.count() >= 1, "NcclRingOptions: timeout is ", timeout_.count(),
                              " ms; at least 1 ms is accepted");
      whole ? split(whole) : initialise();
    });
  }

  Shift start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in, Queue const& queue) {
    return or_close([&]() -> Shift {
      auto exchange = spare_exchange();
      Rank const to = ring_neighbour(host_.rank(), hop, host_.size());
      exchange->from = ring_neighbour(host_.rank(), -hop, host_.size());
      exchange->leaving = NcclNote::of(out);
      exchange->expected = NcclNote::of(in);
      std::array const leaving{std::as_bytes(std::span(&exchange->leaving, 1))};
      std::array const arriving{std::as_writable_bytes(std::span(&exchange->got, 1))};
      auto note = host_.start_shift(channel, hop, leaving, arriving);
      cudaStream_t const stream = nccl_.stream(channel);
      cuda::detail::check(cudaEventRecord(exchange->ready, queue.stream), "cudaEventRecord");
      cuda::detail::check(cudaStreamWaitEvent(stream, exchange->ready, 0), "cudaStreamWaitEvent");
      nccl_.exchange(channel, out, to, in, exchange->from);
      cuda::detail::check(cudaEventRecord(exchange->done, stream), "cudaEventRecord");
      return {std::move(exchange), std::move(note)};
    });
  }

  /// Returns when the note has arrived. The exchange of NCCL may be still to be done.
  void complete(Shift& shift, Queue const& queue) {
    or_close([&] {
      shift.note.wait();
      NcclExchange const& exchange = *shift.exchange;
      if (exchange.got != exchange.expected) fail(exchange);
      cuda::detail::check(cudaStreamWaitEvent(queue.stream, exchange.done, 0), "cudaStreamWaitEvent");
    });
    started_.push_back(std::move(shift.exchange));
  }

  void drop(Shift&) noexcept { abandon("it dropped a pending transfer", host_.rank()); }

  /// Returns when the work on the queue is done.
  void finish(Queue const& queue) {
    or_close([&] {
      cuda::detail::check(cudaEventRecord(finished_, queue.stream), "cudaEventRecord");
      // When all ranks have come here, no rank fails before it has started what the others wait for.
      std::vector<std::byte> all(static_cast<std::size_t>(host_.size()));
      host_.all_gather(std::span(all).first(1), all);
      for (PollingTimer timer(PollingTimer::Of::device); !cuda::detail::is_reached(finished_); timer.pause()) {
        if (auto const error = nccl_.error(); !error.empty()) fail(Complaint("NCCL: ", error));
        if (timer.exceeds(timeout_)) fail(Complaint("the work of a call is not done after ", timeout_.count(), " ms"));
      }
    });
    std::move(started_.begin(), started_.end(), std::back_inserter(spare_));
    started_.clear();
  }

  /// Closes the ring on all ranks, and returns when NCCL touches no memory of this rank, at the timeout at the latest.
  void abandon(std::string_view reason, Rank culprit) noexcept {
    abandon_ring(host_, reason, culprit);
    nccl_.abort();
  }

  /// Throws the failure that closed the ring, if it is closed.
  void require_open() { host_.all_gather({}, {}); }

 private:
  /// Closes the ring if function() fails.
  template <class Function>
  std::invoke_result_t<Function&> or_close(Function&& function) {
    try {
      return function();
    } catch (CommunicationError const& error) {
      abandon(error.what(), error.neighbour());
      throw;
    } catch (std::exception const& error) {
      abandon(error.what(), host_.rank());
      throw;
    }
  }

  void initialise() {
    using Ids = std::array<ncclUniqueId, num_channels>;
    Ids mine{};
    if (host_.rank() == 0)
      for (auto& id : mine) check_nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
    std::vector<Ids> all(static_cast<std::size_t>(host_.size()));
    host_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    nccl_.initialise(all[0], host_.rank(), host_.size());
  }

  void split(ncclComm_t whole) {
    int rank = -1, size = -1;
    check_nccl(ncclCommUserRank(whole, &rank), "ncclCommUserRank");
    check_nccl(ncclCommCount(whole, &size), "ncclCommCount");
    check<UnsupportedError>(rank == host_.rank() && size == host_.size(), "NcclRing: NCCL's communicator has rank ",
                            rank, " of ", size, " here, and that of the host rank ", host_.rank(), " of ",
                            host_.size());
    nccl_.split(whole, rank, size);
  }

  std::unique_ptr<NcclExchange> spare_exchange() {
    if (spare_.empty()) return std::make_unique<NcclExchange>();
    auto exchange = std::move(spare_.back());
    spare_.pop_back();
    return exchange;
  }

  [[noreturn]] void fail(NcclExchange const& exchange) const {
    NcclNote const &expected = exchange.expected, &got = exchange.got;
    bool const only_lengths = expected.runs == got.runs && expected.bytes == got.bytes;
    Complaint const complaint("expected ", expected.runs, " runs of ", expected.bytes, " bytes in all, got ", got.runs,
                              " of ", got.bytes, only_lengths ? " whose lengths differ" : "");
    RingFailure::received(host_.rank(), complaint.view(), exchange.from, exchange.from).raise(host_.rank());
  }

  /// For work that fails or is late when all ranks have posted it. NCCL does not say which rank an exchange waits for.
  [[noreturn]] void fail(Complaint const& complaint) const {
    auto const late = [](auto const& exchange) { return !cuda::detail::is_over(exchange->done); };
    auto const found = std::find_if(started_.begin(), started_.end(), late);
    bool const by_peer = found != started_.end() && cuda::detail::is_over((*found)->ready);
    Rank const rank = host_.rank(), culprit = by_peer ? (*found)->from : rank;
    FixedText<300> text("rank ", rank, ": ", complaint.view());
    if (by_peer)
      text.add("; NCCL does not receive from rank ", culprit, ", or another rank that it waits for is late");
    else
      text.add("; its own work before the exchanges is late");
    throw CommunicationError(text.c_str(), rank, CommunicationError::unknown, culprit);
  }

  Host& host_;
  std::chrono::milliseconds timeout_;
  NcclCommunicators nccl_;
  cuda::detail::Event finished_ = cuda::detail::make_event();
  std::vector<std::unique_ptr<NcclExchange>> started_, spare_;  ///< since the last finish(), and those of no shift
};

}  // namespace detail
}  // namespace annulus
