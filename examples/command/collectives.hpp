#pragma once
// What the ranks of the command exchange besides the passes: small values, agreements and shards.

#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "any_ring.hpp"

namespace annulus_command {

/// All members but rank(), size() and ring() are called by all ranks, in the same order. Every wait is one of the
/// ring's and has its deadline: where a rank is lost or late, they throw annulus::CommunicationError.
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

  /// `out` goes to the rank `hop` places on, `in` comes from the one `hop` places back; 1 <= hop < size(). Runs that
  /// meet have equal lengths, and both lists may be empty.
  void shift(int hop, std::vector<std::span<std::byte const>> const& out, std::vector<std::span<std::byte>> const& in) {
    ring_.start_shift(annulus::Channel::prefetched, hop, out, in).wait();
  }

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

 private:
  AnyRing ring_;
};

}  // namespace annulus_command
