#pragma once
// The collective calls of one RingAttention or CachedAttention: numbered, compared across ranks, and guarded, so that a
// rank that fails alone abandons the ring.

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "annulus/attention/agreement.hpp"
#include "annulus/attention/debug_checks.hpp"
#include "annulus/backend/backend.hpp"
#include "annulus/core/host_memory.hpp"
#include "annulus/ring/observer.hpp"

namespace annulus::detail {

/// A call of this rank, from its entry to its return.
struct CollectiveCall {
  Pass pass;
  std::optional<Index> label;  ///< Operands::call
  bool checked;
  IntervalRecorder recorder{};
  std::uint64_t number = 0;
  bool fails_on_all_ranks = false;     ///< all ranks throw the same error: no peer waits, the ring stays open
  bool meets_other_operation = false;  ///< of other ranks, such as a gather
  std::string_view name = name_of(pass);
};

/// True if calls on operands in Space are checked. `asked`: Options::checked, or CachedOptions::checked.
template <class Space>
bool is_checked(std::optional<bool> asked) {
  if (asked) return *asked;
  return std::same_as<Space, HostMemory> && is_checked_by_default();
}

/// Runs function(), which depends only on what all ranks know: an error that it throws is thrown by all ranks.
template <class Function>
void on_all_ranks(CollectiveCall& call, Function&& function) {
  try {
    function();
  } catch (ShapeError const&) {
    call.fails_on_all_ranks = true;
    throw;
  } catch (UnsupportedError const&) {
    call.fails_on_all_ranks = true;
    throw;
  }
}

/// Flag of an object that allows one call at a time. Stays with the object: a moved one has no call.
class CallInProgress {
 public:
  CallInProgress() = default;
  CallInProgress(CallInProgress&&) noexcept {}
  CallInProgress& operator=(CallInProgress&&) noexcept { return *this; }

  bool begin() { return !flag_.test_and_set(std::memory_order_acquire); }
  void end() { flag_.clear(std::memory_order_release); }

 private:
  std::atomic_flag flag_;
};

/// Executes the calls of one object on one rank.
template <Communicator C, Backend B>
class CollectiveCalls {
 public:
  /// `caller`: name of the class whose calls these are.
  CollectiveCalls(C& communicator, B& backend, std::string_view caller)
      : communicator_(&communicator), backend_(&backend), caller_(caller) {}

  /// Executes body(call), the part of this rank in a collective call. If it throws and the other ranks do not throw the
  /// same, abandons the ring, so that the peers fail at once instead of waiting. Throws Error while another call runs.
  template <class Body>
  void execute(CollectiveCall call, Body&& body) {
    check<Error>(in_progress_.begin(), "rank ", communicator_->rank(), ": ", call.name, " was called on a ", caller_,
                 " while another call of it runs, on another thread or in a predicate; accepted: one call at a time");
    struct End {
      CallInProgress& call;
      ~End() { call.end(); }
    } const at_end{in_progress_};
    auto const end = [&](bool failed) noexcept {
      if constexpr (CallRecordingCommunicator<C>) {
        communicator_->flight_record().end(failed);
        communicator_->flight_record().set_fails_on_all_ranks(failed && call.fails_on_all_ranks);
        if (call.meets_other_operation) communicator_->flight_record().reuse_number();
      } else if (call.meets_other_operation) {
        --calls_;
      }
    };
    auto const abandon = [&](char const* reason, Rank culprit = CommunicationError::unknown) noexcept {
      if (call.fails_on_all_ranks) return;
      synchronize_quietly();
      abandon_ring(*communicator_, reason, culprit);
    };
    last_calls_ = tail();
    if constexpr (CallRecordingCommunicator<C>)
      call.number = communicator_->flight_record().begin(call.pass, call.label);
    else
      call.number = ++calls_;
    call.recorder.set_call(call.number);
    auto const begin = call.recorder.now();
    try {
      body(call);
      call.recorder.report(IntervalKind::call, begin);
      if (call.checked) confirm_end(call);
      end(false);
    } catch (CommunicationError const& error) {
      abandon(error.what(), error.neighbour());
      FlightRecord::Tail const calls = tail();
      end(true);
      if (call.fails_on_all_ranks || calls.empty()) throw;
      throw CommunicationError(
          message_of(error.what(), ". Last calls of rank ", communicator_->rank(), ": ", calls.view()), error.rank(),
          error.step(), error.neighbour());
    } catch (std::exception const& error) {
      abandon(error.what());
      end(true);
      throw;
    } catch (...) {
      abandon("an exception of unknown type");
      end(true);
      throw;
    }
  }

  /// Compares the calls of all ranks: all throw the same error or none does. fill(record) validates the arguments of
  /// this rank and adds them; an error that it throws, such as std::bad_alloc, makes all ranks throw. Returns the
  /// record of this rank.
  template <class Fill>
  CallRecord compare(CollectiveCall& call, Fill&& fill) {
    CallRecord record;
    record.identify(call.number, call.label, call.pass, last_calls_);
    record.fill_or_refuse(fill);
    record.seal(call.checked);
    auto const begin = call.recorder.now();
    gather_records(*communicator_, record, records_);
    CallRecord::require_intact(records_, communicator_->rank());
    CallRecord::require_same_number(records_);
    call.meets_other_operation = !CallRecord::all_are_calls(records_);
    call.fails_on_all_ranks = true;
    CallRecord::compare(records_);
    call.fails_on_all_ranks = false;
    call.recorder.report(IntervalKind::agreement, begin);
    confirmations_.resize(records_.size());
    return record;
  }

  /// The records of all ranks for the current call.
  std::span<CallRecord const> records() const { return records_; }

 private:
  FlightRecord::Tail tail() const {
    if constexpr (CallRecordingCommunicator<C>) return communicator_->flight_record().tail();
    return {};
  }

  /// Final confirmation of a checked call: no rank returns before all ranks have finished. Throws CommunicationError.
  void confirm_end(CollectiveCall const& call) {
    communicator_->all_gather(std::as_bytes(std::span(&call.number, 1)),
                              std::as_writable_bytes(std::span(confirmations_)));
    for (std::size_t r = 0; r < confirmations_.size(); ++r)
      if (confirmations_[r] != call.number)
        throw CommunicationError(message_of("rank ", communicator_->rank(), ": rank ", r, " confirms the end of call ",
                                            confirmations_[r], "; expected call ", call.number),
                                 communicator_->rank(), CommunicationError::unknown, static_cast<Rank>(r));
  }

  void synchronize_quietly() noexcept {
    try {
      backend_->synchronize();
    } catch (...) {  // the first failure is the one to report
    }
  }

  C* communicator_;
  B* backend_;
  std::string_view caller_;
  std::vector<CallRecord> records_;
  std::vector<std::uint64_t> confirmations_;  ///< of all ranks, at the end of a checked call
  FlightRecord::Tail last_calls_;             ///< before the current call
  std::uint64_t calls_ = 0;                   ///< used if the communicator keeps no flight record
  CallInProgress in_progress_;
};

}  // namespace annulus::detail
