#pragma once
// Collective operations of the command outside the passes: exchange of values and shards, agreement on errors.

#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "any_ring.hpp"

namespace annulus_command {

/// Collective operations over a ring. All ranks must call the members other than rank(), size() and ring(), in the same
/// order. Every wait has the ring's deadline: they throw annulus::CommunicationError if a rank is lost or late.
class Collectives {
 public:
  explicit Collectives(AnyRing ring) : ring_(std::move(ring)) {}

  annulus::Rank rank() const { return ring_.rank(); }
  int size() const { return ring_.size(); }
  AnyRing& ring() { return ring_; }

  /// The values of all ranks, in rank order.
  template <class T>
  requires(std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>) std::vector<T> all(T const& mine) {
    std::vector<T> all(static_cast<std::size_t>(size()));
    ring_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
    return all;
  }

  /// Texts of any lengths, in rank order.
  std::vector<std::string> all_texts(std::string const& mine);

  /// Rank 0's value.
  template <class T>
  requires std::is_trivially_copyable_v<T> T from_first(T const& mine) { return all(mine)[0]; }

  /// Returns when all ranks have called it.
  void barrier() { all(std::byte{}); }

  /// Sends `out` to rank() + hop and receives `in` from rank() - hop, modulo size(); 1 <= hop < size(). Matching runs
  /// must have equal lengths; both lists may be empty.
  void shift(int hop, std::vector<std::span<std::byte const>> const& out, std::vector<std::span<std::byte>> const& in) {
    ring_.start_shift(annulus::Channel::prefetched, hop, out, in).wait();
  }

  /// Returns if `mine` is null on all ranks; otherwise all ranks throw AgreedEnding with the error of the lowest rank.
  void agree(std::exception_ptr const& mine);

  /// Runs function() on this rank, then calls agree() with its exception, if any.
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

 private:
  AnyRing ring_;
};

}  // namespace annulus_command
