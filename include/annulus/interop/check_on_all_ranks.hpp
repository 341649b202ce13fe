#pragma once
// The adapters have rules of their own, beside those of RingAttention. Where one rank breaks one, no rank may go on.

#include <exception>

#include "annulus/attention/agreement.hpp"

namespace annulus::interop {

/// Calls check(CallRecord&) on every rank. Where it throws on one rank all ranks throw that error, and where it records
/// a field with different values all throw CommunicationError. One gathering of a small record.
template <Communicator C, class Check>
void check_on_all_ranks(C& communicator, Check&& check) {
  CallRecord record;
  try {
    check(record);
  } catch (...) {
    record.refuse(std::current_exception());
  }
  agree(communicator, record);
}

}  // namespace annulus::interop
