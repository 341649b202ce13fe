#pragma once
// Messages between GPUs, with the events that order their copies.

#include "annulus/comm/threads/message.hpp"
#include "annulus/core/cuda/memory.hpp"

namespace annulus::detail {

/// One end of a message, on a queue of its rank. The events belong to the rank's GPU.
struct PeerEnd {
  cuda::detail::Event ready;    ///< where the shift was started: `out` is written, or `in` may be overwritten
  cuda::detail::Event waiting;  ///< where the queue waits for the copy
  bool waited = false;          ///< `waiting` is of this message

  static PeerEnd on(int gpu) {
    cuda::detail::CurrentDevice const current(gpu);
    return {cuda::detail::make_event(), cuda::detail::make_event()};
  }
};

/// A message that is copied by the sender's GPU.
struct PeerMessage : ThreadMessage {
  /// Enough that those that are done show for what a queue waits.
  static constexpr int made_at_once = 16;

  PeerEnd sender, receiver;
  cuda::detail::Event copied;  ///< on the copy stream: `out` has been read and `in` written

  PeerMessage(int sending_gpu, int receiving_gpu)
      : sender(PeerEnd::on(sending_gpu)), receiver(PeerEnd::on(receiving_gpu)) {
    cuda::detail::CurrentDevice const current(sending_gpu);
    copied = cuda::detail::make_event();
  }

  void renew(Address const& renewed) {
    ThreadMessage::renew(renewed);
    sender.waited = receiver.waited = false;
  }
};

}  // namespace annulus::detail
