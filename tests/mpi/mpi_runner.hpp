#pragma once
// Runner of the communicator suites on rings over MPI.

#include <mpi.h>

#include <annulus/comm/mpi.hpp>
#include <chrono>
#include <string>

namespace annulus_test {

inline int world_rank() { return annulus::detail::mpi_rank(MPI_COMM_WORLD); }
inline int world_size() { return annulus::detail::mpi_size(MPI_COMM_WORLD); }

/// The timeout is long enough for a busy machine; a case that ends only by it fails.
inline annulus::MpiRingOptions options_of_tests() { return {.timeout = std::chrono::seconds(60)}; }

/// A communicator that is freed at the end of the scope.
class ScopedCommunicator {
 public:
  explicit ScopedCommunicator(MPI_Comm communicator) : communicator_(communicator) {}
  ScopedCommunicator(ScopedCommunicator const&) = delete;
  ScopedCommunicator& operator=(ScopedCommunicator const&) = delete;
  ~ScopedCommunicator() {
    if (communicator_ != MPI_COMM_NULL) MPI_Comm_free(&communicator_);
  }
  MPI_Comm get() const { return communicator_; }

  /// The first `ranks` ranks of MPI_COMM_WORLD; MPI_COMM_NULL on the others.
  static MPI_Comm of_first(int ranks) {
    MPI_Comm part = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, world_rank() < ranks ? 0 : MPI_UNDEFINED, world_rank(), &part);
    return part;
  }

 private:
  MPI_Comm communicator_;
};

/// run(ranks, function) for communicator_suite: the first `ranks` ranks of MPI_COMM_WORLD form the ring; a barrier of
/// all ranks follows.
struct RunMpiRing {
  annulus::MpiRingOptions options = options_of_tests();

  template <class Function>
  bool operator()(int ranks, Function function) const {
    ScopedCommunicator const part(ScopedCommunicator::of_first(ranks));
    struct BarrierAtEnd {
      ~BarrierAtEnd() { MPI_Barrier(MPI_COMM_WORLD); }
    } const barrier;
    if (part.get() == MPI_COMM_NULL) return false;
    annulus::MpiRing ring(part.get(), options);
    function(ring);
    return true;
  }
};

/// The message of the E that function() throws; empty if it throws none.
template <class E, class Function>
std::string thrown(Function function) {
  try {
    function();
  } catch (E const& error) {
    return error.what();
  }
  return {};
}

}  // namespace annulus_test
