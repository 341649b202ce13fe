#pragma once
// Communicator over MPI. Not part of the umbrella header: it requires mpi.h and an MPI library (CMake target
// annulus::mpi).

#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/comm/zero_copy.hpp"
#include "annulus/comm/mpi/gather_records.hpp"
#include "annulus/comm/mpi/call.hpp"
#include "annulus/comm/mpi/endpoint.hpp"
#include "annulus/comm/mpi/window.hpp"
#include "annulus/comm/mpi/node_cores.hpp"
#include "annulus/comm/mpi/options.hpp"
#include "annulus/comm/mpi/replica_groups.hpp"
#include "annulus/comm/mpi/retired.hpp"

namespace annulus {

/// The ranks of an MPI communicator as a ring, in their order. Only the thread that constructed it calls it;
/// MPI_THREAD_SINGLE is enough. It uses a communicator of its own, so its messages never match those of the program.
///
/// If all ranks share memory (MpiRingOptions::zero_copy), the rows of a pass are not sent: ranks read each other's
/// buffers through windows, and a shift copies nothing. Otherwise messages advance while a backend computes and calls
/// Step::progress. Results are the same bits either way.
///
/// From construction on, processes of the communicator that run on one node and are bound to the same cores, or to
/// none, divide these cores (ProcessCores): a backend that chooses its number of threads takes no more than its share.
///
/// A failure closes the ring on all ranks: from then on every call throws the CommunicationError that closed it. A peer
/// that fails, or whose ring object is destroyed before its part is done, is noticed at once; one that computes for
/// longer than the timeout is given up. A wait that throws, and the destructor of a transfer that was not waited for,
/// return once no message reads or writes the caller's bytes any more. For messages that a peer has matched, this takes
/// until the peer next calls its ring, and at most the timeout. A peer that calls even later gets the error, and the
/// contents of a transfer that it had posted are unspecified.
class MpiRing {
 public:
  using memory_space = HostMemory;
  using Buffer = detail::MpiBuffer;
  using SharedWindow = detail::MpiWindow;

  /// A pending shift; models ProgressingTransfer.
  class Transfer {
   public:
    Transfer(Transfer&&) noexcept = default;
    Transfer& operator=(Transfer&& other) noexcept {
      std::swap(endpoint_, other.endpoint_);
      std::swap(exchange_, other.exchange_);
      std::swap(failed_, other.failed_);
      other.drop();
      return *this;
    }
    ~Transfer() { drop(); }

    void wait() {
      if (failed_) endpoint_->require_open();
      auto const exchange = std::exchange(exchange_, nullptr);
      if (!exchange) return;
      failed_ = true;
      endpoint_->complete(exchange);
      failed_ = false;
    }

    void progress() noexcept {
      if (exchange_) endpoint_->progress(*exchange_);
    }

   private:
    friend class MpiRing;
    Transfer(std::shared_ptr<detail::MpiEndpoint> endpoint, std::shared_ptr<detail::MpiExchange> exchange)
        : endpoint_(std::move(endpoint)), exchange_(std::move(exchange)) {}

    void drop() noexcept {
      if (auto const exchange = std::exchange(exchange_, nullptr)) endpoint_->drop(exchange);
    }

    std::shared_ptr<detail::MpiEndpoint> endpoint_;
    std::shared_ptr<detail::MpiExchange> exchange_;
    bool failed_ = false;
  };

  /// Collective over `communicator`, which may be freed afterwards. Throws CommunicationError if MPI is not running, for
  /// MPI_COMM_NULL and for inter-communicators. Throws on all ranks UnsupportedError for options of a rank that are out
  /// of range, CommunicationError if ranks differ in max_message_bytes or zero_copy, and UnsupportedError if zero_copy
  /// is `always` and the ranks do not share memory.
  explicit MpiRing(MPI_Comm communicator, MpiRingOptions const& options = {})
      : MpiRing(Adopted{duplicate_of(communicator)}, options) {}

  /// One ring for each group of ranks of `communicator`; the result is the ring of this rank's group, in the order of
  /// the group's list. Collective over `communicator`. Throws ShapeError unless each rank is in exactly one group,
  /// CommunicationError if ranks pass different groups, and whatever the constructor throws.
  static MpiRing from_replica_groups(MPI_Comm communicator, std::vector<std::vector<int>> const& groups,
                                     MpiRingOptions const& options = {}) {
    require_usable(communicator);
    detail::share_cores_of_node(communicator);
    return {Adopted{detail::communicator_of_replica_group(communicator, groups)}, options};
  }

  MpiRing(MpiRing&&) noexcept = default;
  MpiRing& operator=(MpiRing&& other) noexcept {
    std::swap(endpoint_, other.endpoint_);
    std::swap(exceptions_, other.exceptions_);
    return *this;
  }

  ~MpiRing() {
    if (!endpoint_) return;
    if (std::uncaught_exceptions() > exceptions_) endpoint_->abandon("an exception ended its ring");
    endpoint_->leave();
    detail::MpiRetired::add(std::move(endpoint_));
  }

  Rank rank() const { return endpoint_->rank(); }
  int size() const { return endpoint_->size(); }

  /// Throws CommunicationError if the ring is closed.
  Transfer start_shift(Channel channel, int hop, OutgoingBytes out, IncomingBytes in) {
    return {endpoint_, endpoint_->start_shift(channel, hop, out, in)};
  }

  /// True if the ranks read each other's buffers; if false, allocate, open_window and reclaim must not be called.
  bool shares_memory() const { return endpoint_->memory() != nullptr; }

  /// Memory that all ranks of the ring can map, aligned to 64 bytes. Throws std::bad_alloc.
  Buffer allocate(Index bytes) { return {endpoint_->memory(), bytes}; }

  /// Throws CommunicationError if the ring is closed, `out` is not within one Buffer, or too many windows are open.
  SharedWindow open_window(Channel channel, int hop, OutgoingBytes out) {
    return {endpoint_, endpoint_->open_window(channel, hop, out)};
  }

  /// Returns when no rank reads the Buffer at `first`. Throws CommunicationError if the ring is or becomes closed.
  void reclaim(std::byte const* first) { endpoint_->reclaim(first); }

  /// Throws CommunicationError if the ring is or becomes closed, or if `all` is not size() * mine.size() bytes long.
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) { endpoint_->all_gather(mine, all); }

  /// Closes the ring on all ranks; the errors of the others blame `culprit`, by default this rank.
  void abandon(std::string_view reason, Rank culprit) noexcept { endpoint_->abandon(reason, culprit); }
  void abandon(std::string_view reason) noexcept { abandon(reason, rank()); }

  FlightRecord& flight_record() { return endpoint_->flight_record(); }

 private:
  /// A communicator that the ring takes ownership of.
  struct Adopted {
    MPI_Comm communicator;
  };

  MpiRing(Adopted own, MpiRingOptions const& options)
      : endpoint_(std::make_shared<detail::MpiEndpoint>(own.communicator)),
        exceptions_(std::uncaught_exceptions()) {
    // All peers have reached this constructor, so they have left the rings that they destroyed before it.
    detail::MpiRetired::free_what_can_be_freed();
    try {
      if (options.timeout.count() >= 1) endpoint_->use({.timeout = options.timeout});
      detail::require_equal_options(*endpoint_, options);
      endpoint_->use(options);
      detail::share_memory(*endpoint_, options);
    } catch (...) {
      endpoint_->leave();
      detail::MpiRetired::add(endpoint_);
      throw;
    }
  }

  static void require_usable(MPI_Comm communicator) {
    check<CommunicationError>(detail::mpi_is_running(),
                              "MpiRing must be constructed after MPI_Init and before MPI_Finalize");
    check<CommunicationError>(communicator != MPI_COMM_NULL,
                              "MpiRing requires a communicator that contains this rank, got MPI_COMM_NULL");
    int between_groups = 0;
    detail::check_mpi(MPI_Comm_test_inter(communicator, &between_groups), "MPI_Comm_test_inter");
    check<CommunicationError>(between_groups == 0,
                              "MpiRing requires an intra-communicator, got an inter-communicator; merge it first");
  }

  static MPI_Comm duplicate_of(MPI_Comm communicator) {
    require_usable(communicator);
    detail::share_cores_of_node(communicator);
    MPI_Comm own = MPI_COMM_NULL;
    detail::check_mpi(MPI_Comm_dup(communicator, &own), "MPI_Comm_dup");
    return own;
  }

  std::shared_ptr<detail::MpiEndpoint> endpoint_;
  int exceptions_;
};

static_assert(ZeroCopyCommunicator<MpiRing> && CallRecordingCommunicator<MpiRing>);

}  // namespace annulus
