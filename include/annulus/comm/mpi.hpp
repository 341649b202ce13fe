#pragma once
// Communicator over MPI. It requires mpi.h and an MPI library; the umbrella header includes it where the CMake target
// annulus::mpi is linked.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "annulus/comm/endpoint_ring.hpp"
#include "annulus/comm/mpi/construction.hpp"
#include "annulus/comm/mpi/endpoint.hpp"
#include "annulus/core/process.hpp"

namespace annulus {

namespace detail {

/// The records of all ranks, in rank order.
template <class Record>
std::vector<Record> gather_from_all(MpiEndpoint& endpoint, Record const& mine) {
  static_assert(std::is_trivially_copyable_v<Record>);
  std::vector<Record> all(static_cast<std::size_t>(endpoint.size()));
  endpoint.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// Throws on all ranks UnsupportedError for options of a rank that are out of range, and CommunicationError if ranks
/// differ in an option that must be the same. The endpoint does not use the options yet.
inline void require_equal_options(MpiEndpoint& endpoint, MpiRingOptions const& options) {
  auto const all = gather_from_all(endpoint, options);
  for (Rank rank = 0; rank < endpoint.size(); ++rank) validate(all[static_cast<std::size_t>(rank)], rank);
  auto const require_equal = [&](std::string_view name, auto option) {
    for (Rank other = 1; other < endpoint.size(); ++other)
      if (auto const theirs = option(all[static_cast<std::size_t>(other)]); theirs != option(all[0]))
        throw CommunicationError(message_of("MpiRingOptions: ", name, " is ", option(all[0]), " on rank 0 and ", theirs,
                                            " on rank ", other, "; it must be the same on all ranks"),
                                 endpoint.rank(), CommunicationError::unknown, other);
  };
  require_equal("max_message_bytes", [](MpiRingOptions const& one) { return one.max_message_bytes; });
  require_equal("zero_copy", [](MpiRingOptions const& one) { return name_of(one.zero_copy); });
}

/// Enables zero-copy exchange if the options and the machine allow it. Throws UnsupportedError, on all ranks, if
/// zero_copy is `always` and a rank cannot map memory of another.
inline void share_memory(MpiEndpoint& endpoint, MpiRingOptions const& options) {
  if (options.zero_copy == ZeroCopy::never) return;
  std::random_device random;
  std::uint64_t const key = std::uint64_t{random()} << 32 | random();
  auto const memory = std::make_shared<MpiSharedMemory>(endpoint.rank(), endpoint.size(), key);
  Rank const unreachable = memory->open(gather_from_all(endpoint, memory->address())).value_or(-1);
  auto const all = gather_from_all(endpoint, unreachable);
  for (Rank rank = 0; rank < endpoint.size(); ++rank)
    if (Rank const other = all[static_cast<std::size_t>(rank)]; other >= 0) {
      check<UnsupportedError>(options.zero_copy != ZeroCopy::always, "MpiRingOptions: zero_copy is always, but rank ",
                              rank, " cannot map memory of rank ", other,
                              "; all ranks must run on one Linux node, for one user and in one container");
      return;
    }
  endpoint.share(memory);
}

/// Endpoints of destroyed rings whose communicator is not freed yet. It can be freed only when all peers have left, and
/// a destructor must not wait for that. So communicators are freed when the next ring is constructed or destroyed.
class MpiRetired {
 public:
  static void add(std::shared_ptr<MpiEndpoint> endpoint) noexcept {
    update([&](auto& endpoints) { endpoints.push_back(std::move(endpoint)); });
    free_what_can_be_freed();
  }

  static void free_what_can_be_freed() noexcept {
    if (!mpi_is_running()) return;
    update([](auto& endpoints) { std::erase_if(endpoints, try_to_free); });
  }

 private:
  static bool try_to_free(std::shared_ptr<MpiEndpoint> const& endpoint) { return endpoint->try_to_free(); }

  template <class Change>
  static void update(Change change) noexcept {
    try {
      MpiRetired& retired = PerProcess<MpiRetired>::get();
      std::lock_guard const lock(retired.mutex_);
      change(retired.endpoints_);
    } catch (std::exception const&) {
      // No memory to keep an endpoint: MPI_Finalize frees its communicator. The others are tried again.
    }
  }

  std::mutex mutex_;
  /// Never destroyed: MPI holds addresses inside them until MPI_Finalize, which may run after destructors of statics.
  std::vector<std::shared_ptr<MpiEndpoint>> endpoints_;
};

/// Initializes MPI at the first call, unless the program has done so, and then finalizes it when the program ends.
inline void require_mpi() {
  struct Session {
    bool started = false;

    Session() {
      int running = 0, provided = 0;
      check_mpi(MPI_Initialized(&running), "MPI_Initialized");
      if (running) return;
      check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
      started = true;
    }
    ~Session() {
      int ended = 0;
      if (started && MPI_Finalized(&ended) == MPI_SUCCESS && !ended) MPI_Finalize();
    }
  };
  static Session const session;
}

}  // namespace detail

/// The ranks of an MPI communicator as a ring, in their order. Only the thread that constructed it calls it;
/// MPI_THREAD_SINGLE is enough. It uses a communicator of its own, so its messages never match those of the program.
///
/// If all ranks share memory (MpiRingOptions::zero_copy), the rows of a pass are not sent: ranks read each other's
/// buffers through windows, and a shift copies nothing. Otherwise messages advance while a backend computes and calls
/// Step::progress. Results are the same bits either way. Ranks are near each other if they run on one node
/// (MPI_Comm_split_type). The bytes are in host memory: for a device, DeviceRing and StagedRing (device_ring.hpp) wait
/// on the host for the work on its queue before a shift starts.
///
/// A failure closes the ring on all ranks: from then on every call throws the CommunicationError that closed it. A peer
/// that fails, or whose ring object is destroyed before its part is done, ends the waits of others at once; a rank that
/// computes throws at its next wait, and is given up if it computes for longer than the timeout. A wait that throws,
/// and the destructor of a transfer that was not waited for, return once no message reads or writes the caller's bytes
/// any more. For messages that a peer has matched, this takes until the peer next calls its ring, and at most the
/// timeout. A peer that calls even later gets the error, and the contents of a transfer that it had posted are
/// unspecified.
class MpiRing : public detail::EndpointRing<std::shared_ptr<detail::MpiEndpoint>> {
 public:
  /// Collective over `communicator`, which may be freed afterwards. Throws CommunicationError if MPI is not running,
  /// for MPI_COMM_NULL and for inter-communicators. Throws on all ranks UnsupportedError for options of a rank that are
  /// out of range, CommunicationError if ranks differ in max_message_bytes or zero_copy, and UnsupportedError if
  /// zero_copy is `always` and the ranks do not share memory.
  explicit MpiRing(MPI_Comm communicator, MpiRingOptions const& options = {})
      : MpiRing(Adopted{duplicate_of(communicator)}, options) {}

  /// One ring for each group of ranks of `communicator`; the result is the ring of this rank's group, in the order of
  /// the group's list. Collective over `communicator`. Throws ShapeError unless each rank is in exactly one group,
  /// CommunicationError if ranks pass different groups, and whatever the constructor throws.
  static MpiRing from_replica_groups(MPI_Comm communicator, std::vector<std::vector<int>> const& groups,
                                     MpiRingOptions const& options = {}) {
    require_usable(communicator);
    return {Adopted{detail::communicator_of_replica_group(communicator, groups)}, options};
  }

  /// Movable only.
  MpiRing(MpiRing&&) noexcept = default;
  /// Exchanges the rings, so that the other object closes this one's.
  MpiRing& operator=(MpiRing&& other) noexcept {
    std::swap(endpoint_, other.endpoint_);
    std::swap(exceptions_, other.exceptions_);
    return *this;
  }

  ~MpiRing() {
    if (!endpoint_) return;
    detail::leave_ring(*endpoint_, exceptions_);
    detail::MpiRetired::add(std::move(endpoint_));
  }

 private:
  /// A communicator that the ring takes ownership of.
  struct Adopted {
    MPI_Comm communicator;
  };

  MpiRing(Adopted own, MpiRingOptions const& options)
      : EndpointRing(std::make_shared<detail::MpiEndpoint>(own.communicator)) {
    // All peers have reached this constructor, so they have left the rings that they destroyed before it.
    detail::MpiRetired::free_what_can_be_freed();
    try {
      // Before the first exchange with a deadline, which ranks then begin together.
      endpoint_->place(detail::near_ranks_of(own.communicator));
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
    detail::check<CommunicationError>(detail::mpi_is_running(),
                                      "MpiRing must be constructed after MPI_Init and before MPI_Finalize");
    detail::check<CommunicationError>(communicator != MPI_COMM_NULL,
                                      "MpiRing requires a communicator that contains this rank, got MPI_COMM_NULL");
    int between_groups = 0;
    detail::check_mpi(MPI_Comm_test_inter(communicator, &between_groups), "MPI_Comm_test_inter");
    detail::check<CommunicationError>(
        between_groups == 0, "MpiRing requires an intra-communicator, got an inter-communicator; merge it first");
  }

  static MPI_Comm duplicate_of(MPI_Comm communicator) {
    require_usable(communicator);
    MPI_Comm own = MPI_COMM_NULL;
    detail::check_mpi(MPI_Comm_dup(communicator, &own), "MPI_Comm_dup");
    return own;
  }

  int exceptions_ = std::uncaught_exceptions();
};

static_assert(ZeroCopyCommunicator<MpiRing> && CallRecordingCommunicator<MpiRing> &&
              TopologyAwareCommunicator<MpiRing>);

/// Runs function(ring) on this process as one rank of MPI_COMM_WORLD, and returns what it returns. Unless the program
/// has initialized MPI, the first call does so, and MPI is finalized when the program ends. Throws what the constructor
/// of MpiRing throws; rethrows an exception of the function, upon which the other ranks throw CommunicationError
/// unless all throw the same error.
template <class Function>
decltype(auto) run_mpi_ring(Function&& function, MpiRingOptions const& options = {}) {
  detail::require_mpi();
  MpiRing ring(MPI_COMM_WORLD, options);
  try {
    return std::forward<Function>(function)(ring);
  } catch (std::exception const& error) {
    if (!ring.flight_record().fails_on_all_ranks()) ring.abandon(error.what());
    throw;
  }
}

}  // namespace annulus
