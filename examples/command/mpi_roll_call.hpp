#pragma once
// What the ranks of a job tell each other once their ring has failed: who is still there, and why each of them ends.

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

/// Each rank makes one, at most once and shortly after the ring was closed on all of them. A rank that is lost never
/// does, and is thereby known. Uses MPI directly, on messages that no rank has to wait for.
class MpiRollCall {
 public:
  explicit MpiRollCall(Reason const& mine);
  MpiRollCall(MpiRollCall const&) = delete;
  MpiRollCall& operator=(MpiRollCall const&) = delete;

  /// Receives the answers that have arrived. Does not block.
  void progress();
  /// Returns when all ranks have answered, and at the latest after `limit`.
  void await(std::chrono::milliseconds limit);

  /// The ending to report: the first rank's cause if any rank knows one, else this rank's own, with the silent ranks.
  Ending ending() const;
  /// Whether this is the rank to report it: the first that answered, unless another has begun to. Called once.
  bool speaks();

 private:
  /// Short enough that MPI delivers it without the receiver's help.
  struct Message {
    int status;
    bool is_cause, speaks;
    std::array<char, 1000> line;  ///< ends with a zero
  };

  bool complete() const;
  void send(Message const& message);

  annulus::Rank rank_;
  std::vector<std::optional<Reason>> reasons_;  ///< of each rank; empty: silent so far
  Message answer_{}, word_{};
  bool another_speaks_ = false;
};

}  // namespace annulus_command
