#pragma once
// Communicator decorator that reports a failure before the exception unwinds the call.

#include <annulus/comm/communicator.hpp>
#include <exception>
#include <functional>
#include <span>
#include <string_view>
#include <utility>

namespace annulus_command {

/// Non-owning decorator of a communicator C, which must outlive it. If a call throws CommunicationError, calls
/// on_failure() before it rethrows, while memory that messages of a lost rank may still reach is not freed yet.
template <annulus::Communicator C>
class ReportingRing {
 public:
  using memory_space = typename C::memory_space;
  using OnFailure = std::function<void()>;

  class Transfer {
   public:
    Transfer(annulus::TransferOf<C> transfer, OnFailure const& on_failure)
        : transfer_(std::move(transfer)), on_failure_(&on_failure) {}

    void wait() {
      reporting(*on_failure_, [this] { transfer_.wait(); });
    }

   private:
    annulus::TransferOf<C> transfer_;
    OnFailure const* on_failure_;
  };

  ReportingRing(C& communicator, OnFailure on_failure)
      : communicator_(communicator), on_failure_(std::move(on_failure)) {}

  annulus::Rank rank() const { return communicator_.rank(); }
  int size() const { return communicator_.size(); }

  Transfer start_shift(annulus::Channel channel, int hop, annulus::OutgoingBytes out, annulus::IncomingBytes in) {
    return reporting(on_failure_,
                     [&] { return Transfer(communicator_.start_shift(channel, hop, out, in), on_failure_); });
  }

  void all_gather(std::span<std::byte const> mine, std::span<std::byte> all) {
    reporting(on_failure_, [&] { communicator_.all_gather(mine, all); });
  }

  void abandon(std::string_view reason, annulus::Rank culprit) noexcept {
    annulus::abandon_ring(communicator_, reason, culprit);
  }
  void abandon(std::string_view reason) noexcept { abandon(reason, rank()); }

  annulus::FlightRecord& flight_record()
    requires annulus::CallRecordingCommunicator<C>
  {
    return communicator_.flight_record();
  }

 private:
  template <class Call>
  static decltype(auto) reporting(OnFailure const& on_failure, Call&& call) {
    try {
      return call();
    } catch (annulus::CommunicationError const&) {
      on_failure();
      throw;
    }
  }

  C& communicator_;
  OnFailure on_failure_;
};

}  // namespace annulus_command
