#pragma once
// Roll call of the ranks of a job after their ring has failed: which ranks still answer, and why each of them ends.

#include <annulus/core/index.hpp>
#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "exit_status.hpp"

namespace annulus_command {

/// Why a rank ends.
struct Reason {
  Ending ending;
  bool is_cause = false;  ///< false: a failure of the communication, which another rank may have caused
};

/// Constructed by each rank, at most once and shortly after the ring was closed on all ranks. A lost rank never does so
/// and is identified by its silence. Uses MPI directly, with messages that no rank has to wait for.
class MpiRollCall {
 public:
  explicit MpiRollCall(Reason const& mine);
  MpiRollCall(MpiRollCall const&) = delete;
  MpiRollCall& operator=(MpiRollCall const&) = delete;

  /// Receives the answers that have arrived. Does not block.
  void progress();
  /// Returns when all ranks have answered or `limit` has passed.
  void await(std::chrono::milliseconds limit);

  /// The ending to report: the cause of the lowest rank that knows one, else this rank's own with the silent ranks.
  Ending ending() const;
  /// True if this rank reports the ending: it is the lowest that answered, and no other has claimed it. Called once.
  bool speaks();

 private:
  /// Short enough that MPI delivers it without action of the receiver.
  struct Message {
    int status;
    bool is_cause, reports;
    std::array<char, 1000> line;  ///< null-terminated
  };

  bool complete() const;
  void send(Message const& message);

  annulus::Rank rank_;
  std::vector<std::optional<Reason>> reasons_;  ///< by rank; empty until it answers
  Message answer_{}, claim_{};
  bool another_reports_ = false;
};

}  // namespace annulus_command
