#pragma once
// Data hazards of one core: when the last reads and writes of each piece of each memory place end.

#include <algorithm>
#include <limits>
#include <vector>

#include "annulus/core/index.hpp"

namespace annulus::nki {

/// The waiting instruction's engine and delays. In-order engines need not wait for themselves; DMA and collectives give
/// `nobody`.
struct Waiting {
  static constexpr int nobody = -1;

  int engine = nobody;
  double signal = 0;     ///< seconds until the end of another engine's instruction is visible
  double dependent = 0;  ///< seconds to wait for what the same engine has just written
};

/// End time in seconds, and the engine whose instruction ends then.
struct End {
  static constexpr double never = std::numeric_limits<double>::lowest() / 2;

  double seconds = never;
  int engine = Waiting::nobody;

  void wait_for(End const& other) {
    if (other.seconds > seconds) *this = other;
  }
  End after(double delay) const { return {seconds + delay, engine}; }
};

/// The latest of many ends, and the latest among the other engines.
class LatestEnds {
 public:
  void note(End const& end) {
    if (end.engine == latest_.engine) {
      latest_.wait_for(end);
    } else if (end.seconds > latest_.seconds) {
      others_ = latest_;
      latest_ = end;
    } else {
      others_.wait_for(end);
    }
  }
  /// The latest end as seen by `engine`: delayed by own_delay for its own instructions, by signal for others.
  End seen_by(int engine, double own_delay, double signal) const {
    if (engine != latest_.engine) return latest_.after(signal);
    End seen = latest_.after(own_delay);
    seen.wait_for(others_.after(signal));
    return seen;
  }

 private:
  End latest_{End::never, Waiting::nobody - 1}, others_;
};

/// Ends of the reads and writes of one piece of memory.
struct Uses {
  LatestEnds reads, writes;

  /// When a read or write may begin: readers wait for writers, writers for both.
  End free_for(bool write, Waiting const& waiting) const {
    End end = writes.seen_by(waiting.engine, write ? 0 : waiting.dependent, waiting.signal);
    if (write) end.wait_for(reads.seen_by(waiting.engine, 0, waiting.signal));
    return end;
  }
  void note(bool write, End const& end) { (write ? writes : reads).note(end); }
};

/// One place: a tensor in HBM, or one of the tiles in the rotation of an on-chip buffer. Uses of an older tile in the
/// same place are waited for as well, piece by piece. Uses of the whole place are stored separately, so that they cost
/// nothing per piece.
class Place {
 public:
  Place(Index elements, Index piece)
      : piece_(piece), pieces_(static_cast<std::size_t>(piece == 0 ? 0 : ceil_divide(elements, piece))) {}

  End all_free_for(bool write, Waiting const& waiting) const { return any_.free_for(write, waiting); }
  void note_all(bool write, End const& end) {
    any_.note(write, end);
    whole_.note(write, end);
  }

  /// Elements [begin, begin + length).
  End free_for(bool write, Index begin, Index length, Waiting const& waiting) const {
    End free = whole_.free_for(write, waiting);
    for (std::size_t i = first(begin); i <= last(begin, length); ++i)
      free.wait_for(pieces_[i].free_for(write, waiting));
    return free;
  }
  void note(bool write, Index begin, Index length, End const& end) {
    for (std::size_t i = first(begin); i <= last(begin, length); ++i) pieces_[i].note(write, end);
    any_.note(write, end);
  }

 private:
  std::size_t first(Index begin) const { return static_cast<std::size_t>(begin / piece_); }
  std::size_t last(Index begin, Index length) const { return static_cast<std::size_t>((begin + length - 1) / piece_); }

  Index piece_;  // 0: always used as a whole
  Uses whole_, any_;
  std::vector<Uses> pieces_;
};

}  // namespace annulus::nki
