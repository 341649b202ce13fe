#pragma once
// Shadow of a tensor in HBM: elements written so far, and each core's reads and writes since the last synchronization.

#include <array>

#include "annulus/nki/validate/element_bits.hpp"
#include "annulus/nki/validate/element_runs.hpp"

namespace annulus::nki::validate_detail {

/// Assumptions about undocumented behaviour; the defaults are the conservative ones.
struct Assumptions {
  /// True if a collective waits until both cores of a pair have finished with the tensor it overwrites, and both wait
  /// until it has sent a tensor before they overwrite it. If false, each case requires a barrier.
  bool collectives_wait_for_both_cores = false;
};

/// Fault of an access: an element never written (undefined), or one that another core or a collective wrote, read or
/// sent without synchronization in between.
enum class TensorFault { none, undefined, unseen_write, unseen_read, unseen_sending };

/// Fault of an access and its first faulty element; -1 without a fault.
struct TensorAnswer {
  TensorFault fault = TensorFault::none;
  Index element = -1;
};

/// A tensor used by one or two cores. The cores are run one after the other up to each synchronization point, so of two
/// conflicting accesses between two such points the second one in this order finds the trace of the first.
class TensorShadow {
 public:
  TensorShadow(Buffer const& buffer, int cores)
      : size_(buffer.size()),
        shared_(cores == 2 && buffer.role != Role::input),
        complete_(buffer.role == Role::input),
        written_(complete_ ? 0 : size_) {
    if (shared_)
      for (Trace& trace : traces_) trace.writes = trace.reads = ElementBits(size_);
  }

  /// Records a read at offset `begin`, in elements of the tensor.
  TensorAnswer read(int core, Access const& access, Index begin) {
    TensorAnswer answer;
    if (complete_ && !shared_) return answer;
    Trace& other = traces_[other_of(core)];
    Trace& own = traces_[static_cast<std::size_t>(core)];
    own.has_read = true;
    Runs(access.axes()).visit(begin, [&](Index first, Index count) {
      if (shared_ && other.has_written &&
          found(other.writes.first_set(first, count), TensorFault::unseen_write, answer))
        return false;
      if (!complete_ && found(written_.first_clear(first, count), TensorFault::undefined, answer)) return false;
      if (shared_) own.reads.set(first, count);
      return true;
    });
    return answer;
  }

  /// Records a write. `certain` is false for one of several offsets that a register may select; the elements then do
  /// not count as written.
  TensorAnswer write(int core, Access const& access, Index begin, bool certain = true) {
    TensorAnswer answer;
    if (shared_ && sent_) return {TensorFault::unseen_sending, begin};
    Trace& other = traces_[other_of(core)];
    Trace& own = traces_[static_cast<std::size_t>(core)];
    own.has_written = true;
    Runs(access.axes()).visit(begin, [&](Index first, Index count) {
      if (shared_) {
        if (other.has_written && found(other.writes.first_set(first, count), TensorFault::unseen_write, answer))
          return false;
        if (other.has_read && found(other.reads.first_set(first, count), TensorFault::unseen_read, answer))
          return false;
        own.writes.set(first, count);
      }
      if (certain && !complete_) {
        written_.set(first, count);
        complete_ = count == size_;
      }
      return true;
    });
    return answer;
  }

  /// A collective sends the whole tensor.
  TensorAnswer send(Assumptions const& assumptions) {
    TensorAnswer answer;
    for (Trace& trace : traces_)
      if (shared_ && trace.has_written && found(trace.writes.first_set(0, size_), TensorFault::unseen_write, answer))
        return answer;
    if (found(first_undefined(), TensorFault::undefined, answer)) return answer;
    sent_ = !assumptions.collectives_wait_for_both_cores;
    return answer;
  }

  /// A collective overwrites the whole tensor.
  TensorAnswer receive(Assumptions const& assumptions) {
    TensorAnswer answer;
    bool const waits = assumptions.collectives_wait_for_both_cores;
    for (Trace& trace : traces_)
      if (shared_ && !waits &&
          ((trace.has_written && found(trace.writes.first_set(0, size_), TensorFault::unseen_write, answer)) ||
           (trace.has_read && found(trace.reads.first_set(0, size_), TensorFault::unseen_read, answer))))
        break;
    complete_ = true;
    meet();
    return answer;
  }

  /// Both cores are synchronized: forgets their accesses.
  void meet() {
    sent_ = false;
    for (Trace& trace : traces_) {
      if (shared_ && trace.has_written) trace.writes.clear();
      if (shared_ && trace.has_read) trace.reads.clear();
      trace.has_written = trace.has_read = false;
    }
  }

  /// First element never written, -1 if there is none.
  Index first_undefined() {
    if (complete_) return -1;
    Index const first = written_.first_clear(0, size_);
    complete_ = first < 0;
    return first;
  }

 private:
  struct Trace {
    ElementBits writes{0}, reads{0};
    bool has_written = false, has_read = false;
  };

  static std::size_t other_of(int core) { return static_cast<std::size_t>(1 - core); }
  static bool found(Index element, TensorFault fault, TensorAnswer& answer) {
    if (element >= 0) answer = {fault, element};
    return element >= 0;
  }

  Index size_;
  bool shared_;
  bool complete_;  ///< every element was written; `written_` is then no longer updated
  bool sent_ = false;
  ElementBits written_;
  std::array<Trace, 2> traces_;
};

}  // namespace annulus::nki::validate_detail
