#pragma once
// Staging for the foreign memory of the tests, and a communicator that refuses foreign memory, as an MPI does that is
// not aware of a device.

#include <algorithm>
#include <cstddef>
#include <span>
#include <stdexcept>
#include <string_view>

#include "annulus/comm/device_ring.hpp"
#include "annulus/core/host_memory.hpp"
#include "conformance/foreign_implementation.hpp"

namespace annulus_test {

/// Copies between foreign and host memory; refuses host memory in place of foreign memory.
struct ForeignStaging {
  annulus::Index copied = 0;  ///< bytes, both ways

  annulus::detail::HostBuffer allocate(annulus::Index bytes) { return annulus::detail::HostBuffer(bytes); }
  void to_host(std::span<std::byte const> from, std::span<std::byte> to) { copy(from, from, to); }
  void from_host(std::span<std::byte const> from, std::span<std::byte> to) { copy(to, from, to); }

 private:
  void copy(std::span<std::byte const> foreign, std::span<std::byte const> from, std::span<std::byte> to) {
    ForeignRegistry::instance().require(foreign.data(), foreign.size(), "stage");
    std::copy(from.begin(), from.end(), to.begin());
    copied += static_cast<annulus::Index>(from.size());
  }
};

/// Error: foreign memory passed to a communicator of host memory.
class ForeignMemoryRefused : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Wraps a communicator, which must outlive it.
template <annulus::Communicator Inner>
class HostOnlyRing {
 public:
  using memory_space = annulus::HostMemory;

  explicit HostOnlyRing(Inner& inner) : inner_(&inner) {}

  annulus::Rank rank() const { return inner_->rank(); }
  int size() const { return inner_->size(); }
  annulus::TransferOf<Inner> start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out,
                                         annulus::IncomingBytes in) {
    auto const refuse = [](auto const& runs) {
      for (auto const& run : runs)
        if (!run.empty() && ForeignRegistry::instance().contains(run.data(), 1))
          throw ForeignMemoryRefused("foreign memory is passed to a ring of host memory");
    };
    refuse(out);
    refuse(in);
    return inner_->start_shift(channel, hop, out, in);
  }
  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) { inner_->all_gather(mine, all); }
  void abandon(std::string_view reason, annulus::Rank culprit) noexcept {
    annulus::abandon_ring(*inner_, reason, culprit);
  }
  void abandon(std::string_view reason) noexcept { abandon(reason, rank()); }
  annulus::FlightRecord& flight_record() requires annulus::CallRecordingCommunicator<Inner> {
    return inner_->flight_record();
  }

 private:
  Inner* inner_;
};

}  // namespace annulus_test
