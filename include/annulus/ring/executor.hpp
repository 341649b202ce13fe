#pragma once
// Executor: one loop over the actions of a list, for all passes and schedules, with messages or windows, on the host or
// on a device. It puts work on the backend's queue and hands exchanges to the communicator; the host waits once, at the
// end. Every error of the communicator names the step.

#include <exception>
#include <variant>

#include "annulus/ring/exchanges.hpp"

namespace annulus::detail {

/// Synchronizes the backend when an exception unwinds the stack: pending work must not read operands that the caller is
/// about to destroy.
template <class B>
class SynchronizeOnUnwind {
 public:
  explicit SynchronizeOnUnwind(B& backend) : backend_(backend), exceptions_(std::uncaught_exceptions()) {}
  SynchronizeOnUnwind(SynchronizeOnUnwind const&) = delete;
  SynchronizeOnUnwind& operator=(SynchronizeOnUnwind const&) = delete;
  ~SynchronizeOnUnwind() {
    if (std::uncaught_exceptions() == exceptions_) return;
    try {
      backend_.synchronize();
    } catch (...) {  // the first failure is the one to report
    }
  }

 private:
  B& backend_;
  int exceptions_;
};

/// Reports what a rank does, step by step, as intervals.
class StepIntervals {
 public:
  explicit StepIntervals(IntervalRecorder const& recorder) : recorder_(recorder) {}

  /// Call before each action.
  void enter(Action const& action) {
    bool const same = action.step == step_ && action.phase == phase_ && action.lane == lane_;
    if (same) return;
    leave(action.step, action.phase);
    if (action.step != step_) synchronized_ = action.step < 0 || action.phase == Phase::finish;
    step_ = action.step;
    phase_ = action.phase;
    lane_ = action.lane;
    bool const continues_join = phase_ == Phase::join_results && begin_ != IntervalRecorder::Time{};
    if ((phase_ == Phase::compute || phase_ == Phase::join_results) && !continues_join) begin_ = recorder_.now();
  }
  void add_work(Index multiply_adds) { work_ += multiply_adds; }
  void end() { leave(Action::in_group, Phase::finish); }

 private:
  /// Ends the interval of the phase before one of `step`. A step is synchronized once, after it has joined results.
  void leave(int step, Phase phase) {
    if (phase_ == Phase::compute && step_ >= 0) {
      recorder_.report(IntervalKind::compute, begin_, step_, work_);
      work_ = 0;
      begin_ = {};
    }
    bool const join_follows = step == step_ && phase <= Phase::join_results;
    if (synchronized_ || join_follows) return;
    recorder_.report(IntervalKind::synchronize, phase_ == Phase::join_results ? begin_ : recorder_.now(), step_);
    synchronized_ = true;
    begin_ = {};
  }

  IntervalRecorder const& recorder_;
  int step_ = Action::in_group;
  Phase phase_{};
  int lane_ = 0;
  bool synchronized_ = true;
  Index work_ = 0;
  IntervalRecorder::Time begin_{};
};

/// Performs the actions of a list. A pass does the work: it has an overload perform(what, action) for each kind of
/// action but exchanges, and perform(work, action, progress).
template <class Pass, Communicator C, Backend B>
class Executor {
 public:
  Executor(ActionList const& list, Pass& pass, Slots<C, B>& slots, C& ring, B& backend,
           IntervalRecorder const& recorder, std::uint64_t call)
      : list_(list),
        pass_(pass),
        ring_(ring),
        backend_(backend),
        intervals_(recorder),
        exchanges_(ring, backend, slots, recorder, call) {}

  void run() {
    // Abandons while the exchanges exist: their destruction would notify the peers without the reason of the failure.
    or_abandon(ring_, [&] {
      int step = Action::before_steps;
      for (Action const& action : list_.actions) {
        if (action.step >= 0 && action.step != step) begin_step(step = action.step);
        intervals_.enter(action);
        perform(action);
      }
      intervals_.end();
      finish_queue(ring_, queue_of(backend_));
    });
  }

 private:
  void begin_step([[maybe_unused]] int step) {
    if constexpr (CallRecordingCommunicator<C>) ring_.flight_record().step(step, list_.steps);
  }

  /// Adds the step to an error of the communicator.
  void perform(Action const& action) {
    try {
      std::visit([&](auto const& what) { (*this)(what, action); }, action.what);
    } catch (CommunicationError const& error) {
      if (action.step == Action::before_steps) throw;
      if (action.step == Action::in_group)
        throw CommunicationError(message_of("exchange between the ranks of a group: ", error.what()), ring_.rank(),
                                 error.step(), error.neighbour());
      throw CommunicationError(message_of("step ", action.step, " of the ring: ", error.what()), ring_.rank(),
                               action.step, error.neighbour());
    }
  }

  void operator()(Shift const& what, Action const& action) { exchanges_.start(what, action); }
  void operator()(Open const& what, Action const& action) { exchanges_.open(what, action); }
  void operator()(Await const& what, Action const& action) { exchanges_.await(what, action); }
  void operator()(Release const& what, Action const&) { exchanges_.release(what); }
  void operator()(Reclaim const& what, Action const& action) { exchanges_.reclaim(what, action); }
  void operator()(Work const& what, Action const& action) {
    intervals_.add_work(what.multiply_adds);
    if constexpr (requires { pass_.perform(what, action, Progress{}); })
      pass_.perform(what, action, exchanges_.progress());
    else
      throw Error("a list has work that its pass does not do");
  }
  template <class What>
  void operator()(What const& what, Action const& action) {
    if constexpr (requires { pass_.perform(what, action); })
      pass_.perform(what, action);
    else
      throw Error("a list has an action that its pass does not perform");
  }

  ActionList const& list_;
  Pass& pass_;
  C& ring_;
  B& backend_;
  StepIntervals intervals_;
  Exchanges<C, B> exchanges_;
};

/// Performs the actions of a list; see Executor.
template <class Pass, Communicator C, Backend B>
void execute(ActionList const& list, Pass& pass, Slots<C, B>& slots, C& ring, B& backend,
             IntervalRecorder const& recorder, std::uint64_t call) {
  SynchronizeOnUnwind const synchronize(backend);
  Executor<Pass, C, B>(list, pass, slots, ring, backend, recorder, call).run();
}

}  // namespace annulus::detail
