#pragma once
// The processes of mpirun as seen by the command. In a build without MPI there is only the interface.

#include <cstddef>
#include <exception>
#include <functional>
#include <span>
#include <type_traits>
#include <vector>

#include "any_ring.hpp"
#include "exit_status.hpp"

namespace annulus_command {

/// MPI from its start to its end. All members but rank() and size() are called by all ranks, or by a pair of them.
class MpiSession {
 public:
  static bool is_built_in();

  /// Throws InputError in a build without MPI.
  MpiSession(int& argc, char**& argv);
  MpiSession(MpiSession const&) = delete;
  MpiSession& operator=(MpiSession const&) = delete;
  ~MpiSession();

  annulus::Rank rank() const { return rank_; }
  int size() const { return size_; }

  /// Returns if no rank brings an error; otherwise throws AgreedEnding, on all ranks that of the first rank with one.
  void agree(std::exception_ptr const& mine);

  /// Runs function() on this rank, then agrees.
  template <class Function>
  void together(Function&& function) {
    std::exception_ptr error;
    try {
      function();
    } catch (...) {
      error = std::current_exception();
    }
    agree(error);
  }

  /// Rank 0's bytes to all.
  void broadcast(std::span<std::byte> bytes);
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void broadcast(T& value) { broadcast(std::as_writable_bytes(std::span(&value, 1))); }

  /// Any number of bytes, also above 2 GiB; the pair calls with equal sizes, in the same order.
  void send(std::span<std::byte const> bytes, annulus::Rank to);
  void receive(std::span<std::byte> bytes, annulus::Rank from);

  void barrier();

  /// A ring of all ranks for the time of the call.
  void with_ring(std::function<void(AnyRing&)> const& function);

  /// Ends all ranks, where there is no other way to reach them.
  [[noreturn]] void abort(Ending const& ending);

 private:
  annulus::Rank rank_ = 0;
  int size_ = 1;
};

/// Does the command line ask for `--comm mpi`? MPI must start before the options are parsed, so that of all processes
/// only one complains about them.
bool asks_for_mpi(std::span<char* const> arguments);

}  // namespace annulus_command
