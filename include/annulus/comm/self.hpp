#pragma once
// Communicator of a ring of one rank, on which ring attention is plain attention.

#include <array>
#include <cstring>
#include <span>
#include <string>

#include "annulus/comm/communicator.hpp"
#include "annulus/core/error.hpp"

namespace annulus {

/// The only rank of its ring, in host memory. Shifts and all-gathers copy from the rank to itself.
class SelfRing {
 public:
  using memory_space = HostMemory;

  /// A transfer that start_shift has already completed.
  class Done {
   public:
    void wait() {}  ///< returns at once
  };

  Rank rank() const { return 0; }                                   ///< 0
  int size() const { return 1; }                                    ///< 1
  std::span<Rank const> near_ranks() const { return near_ranks_; }  ///< {0}

  /// Copies `out` to `in`; the ring loop makes no shift on one rank. Throws CommunicationError if the runs differ in
  /// number or length.
  Done start_shift(Channel, int, OutgoingBytes out, IncomingBytes in) {
    detail::check<CommunicationError>(out.size() == in.size(), "a shift sends ", out.size(), " runs and expects ",
                                      in.size());
    for (std::size_t p = 0; p < out.size(); ++p) {
      detail::check<CommunicationError>(out[p].size() == in[p].size(), "run ", p, " of a shift has ", out[p].size(),
                                        " bytes, expected ", in[p].size());
      if (!out[p].empty()) std::memmove(in[p].data(), out[p].data(), out[p].size());
    }
    return {};
  }

  /// Copies `mine` to `all`.
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    if (!mine.empty()) std::memmove(all.data(), mine.data(), mine.size());
  }

  void abandon(std::string const&) noexcept {}  ///< does nothing: there are no peers

 private:
  static constexpr std::array<Rank, 1> near_ranks_{0};
};

static_assert(Communicator<SelfRing> && TopologyAwareCommunicator<SelfRing>);

}  // namespace annulus
