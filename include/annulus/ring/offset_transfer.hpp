#pragma once
// Exchange of messages at an offset: one shift, or two where the distance in ranks depends on the rank.

#include <optional>

#include "annulus/comm/communicator.hpp"
#include "annulus/schedule/rank_offsets.hpp"

namespace annulus::detail {

/// A pending exchange in which each rank sends to the rank that an offset leads to. Satisfies Transfer, and
/// ProgressingTransfer if the transfers of the communicator do. Ranks whose offset leads round the end of their inner
/// ring take part in a shift of their own, and send nothing in that of the others.
template <Communicator C>
class OffsetTransfer {
 public:
  /// Called by all ranks with the same channel and offset, which is not 0; otherwise as start_shift.
  OffsetTransfer(C& communicator, RankOffsets const& offsets, Channel channel, int offset, OutgoingBytes out,
                 IncomingBytes in) {
    Rank const rank = communicator.rank();
    int const to = offsets.distance(rank, offset), from = offsets.distance(offsets.backward(rank, offset), offset);
    auto const start = [&](int hop) {
      return communicator.start_shift(channel, hop, to == hop ? out : OutgoingBytes{},
                                      from == hop ? in : IncomingBytes{});
    };
    int const first = offsets.distance(0, offset), last = offsets.distance(offsets.inner() - 1, offset);
    first_.emplace(start(first));
    if (last != first) last_.emplace(start(last));
  }

  void wait() {
    first_->wait();
    if (last_) last_->wait();
  }
  void progress() noexcept requires ProgressingTransfer<TransferOf<C>> {
    first_->progress();
    if (last_) last_->progress();
  }

 private:
  std::optional<TransferOf<C>> first_, last_;
};

}  // namespace annulus::detail
