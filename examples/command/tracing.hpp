#pragma once
// Timeline of one rank: decorators of a communicator and a backend that record the time of each step.

#include <annulus/backend/backend.hpp>
#include <annulus/comm/communicator.hpp>
#include <annulus/core/index.hpp>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "progress.hpp"

namespace annulus_command {

/// A time interval of a rank, in seconds since the origin of its log.
struct Span {
  enum class Kind : std::int32_t { pass, compute, synchronize, wait, agree };

  Kind kind;
  annulus::Pass pass;
  std::int32_t step;         ///< of the ring; -1 outside of steps: a whole pass, the agreement, the final confirmation
  annulus::Channel channel;  ///< of a wait
  double begin, seconds;
  annulus::Index bytes;  ///< that the rank sent in the shift it waited for
  double in_flight;      ///< seconds from the start of that shift
};

/// The spans of one rank. Only that rank's thread writes.
class StepLog {
 public:
  using Clock = std::chrono::steady_clock;

  /// Logs of ranks of one process share an origin; `progress` (may be null) advances with each computed step.
  StepLog(Clock::time_point origin, Progress* progress) : origin_(origin), progress_(progress) {}

  double now() const { return std::chrono::duration<double>(Clock::now() - origin_).count(); }

  void begin_pass(annulus::Pass pass) {
    pass_ = pass;
    computed_ = 0;
    pass_begin_ = now();
  }
  void end_pass() { note({Span::Kind::pass, pass_, -1, {}, pass_begin_, now() - pass_begin_, 0, 0}); }

  void computed(double begin) {
    note({Span::Kind::compute, pass_, computed_++, {}, begin, now() - begin, 0, 0});
    if (progress_) progress_->advance();
  }
  void synchronized(double begin) {
    // A backend without pending work returns at once between steps, which is not recorded.
    if (double const seconds = now() - begin; computed_ > 0 && seconds > 1e-6)
      note({Span::Kind::synchronize, pass_, computed_ - 1, {}, begin, seconds, 0, 0});
  }
  void waited(double begin, annulus::Channel channel, annulus::Index bytes, double started) {
    double const end = now();
    note({Span::Kind::wait, pass_, computed_ - 1, channel, begin, end - begin, bytes, end - started});
  }
  void agreed(double begin) { note({Span::Kind::agree, pass_, -1, {}, begin, now() - begin, 0, 0}); }

  std::vector<Span> const& spans() const { return spans_; }
  std::vector<Span>& spans() { return spans_; }

 private:
  void note(Span const& span) { spans_.push_back(span); }

  Clock::time_point origin_;
  Progress* progress_;
  annulus::Pass pass_ = annulus::Pass::forward;
  std::int32_t computed_ = 0;
  double pass_begin_ = 0;
  std::vector<Span> spans_;
};

/// Communicator decorator that records how long its rank waits. It forwards messages only: a traced ring uses neither
/// zero-copy exchange nor progress() during compute.
template <annulus::Communicator C>
class TracedRing {
 public:
  using memory_space = typename C::memory_space;

  class Transfer {
   public:
    Transfer(annulus::TransferOf<C> transfer, StepLog& log, annulus::Channel channel, annulus::Index bytes,
             double started)
        : transfer_(std::move(transfer)), log_(&log), channel_(channel), bytes_(bytes), started_(started) {}

    void wait() {
      double const begin = log_->now();
      transfer_.wait();
      log_->waited(begin, channel_, bytes_, started_);
    }

   private:
    annulus::TransferOf<C> transfer_;
    StepLog* log_;
    annulus::Channel channel_;
    annulus::Index bytes_;
    double started_;
  };

  TracedRing(C& communicator, StepLog& log) : communicator_(&communicator), log_(&log) {}

  annulus::Rank rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }

  Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in) {
    annulus::Index bytes = 0;
    for (auto const& run : out) bytes += static_cast<annulus::Index>(run.size());
    double const started = log_->now();
    return {communicator_->start_shift(channel, hop, out, in), *log_, channel, bytes, started};
  }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    double const begin = log_->now();
    communicator_->all_gather(mine, all);
    log_->agreed(begin);
  }

  void abandon(std::string_view reason, annulus::Rank culprit = annulus::CommunicationError::unknown) noexcept {
    annulus::abandon_ring(*communicator_, reason, culprit);
  }

  annulus::FlightRecord& flight_record() requires annulus::CallRecordingCommunicator<C> {
    return communicator_->flight_record();
  }

 private:
  C* communicator_;
  StepLog* log_;
};

/// Backend decorator that records the time of each step; all other members are those of B.
template <annulus::Backend B>
class TracedBackend : public B {
 public:
  TracedBackend(B backend, StepLog& log) : B(std::move(backend)), log_(&log) {}

  template <class Step, class Operands, class State>
  void fold(Step const& step, Operands const& operands, State const& state) {
    double const begin = log_->now();
    B::fold(step, operands, state);
    log_->computed(begin);
  }

  template <class Step, class Operands, class Backward, class Gradients>
  void add_gradients(Step const& step, Operands const& operands, Backward const& backward, Gradients const& gradients) {
    double const begin = log_->now();
    B::add_gradients(step, operands, backward, gradients);
    log_->computed(begin);
  }

  void synchronize() {
    double const begin = log_->now();
    B::synchronize();
    log_->synchronized(begin);
  }

 private:
  StepLog* log_;
};

}  // namespace annulus_command
