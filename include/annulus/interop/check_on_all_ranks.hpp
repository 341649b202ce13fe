#pragma once
// Collective check of the adapters' own rules, which come before those of RingAttention: if one rank violates a rule,
// all ranks throw.

#include "annulus/attention/agreement.hpp"

namespace annulus::interop::detail {

/// Calls check(CallRecord&) on every rank. If it throws on one rank, all ranks throw that error; if ranks record
/// different values of a field, all throw CommunicationError. Costs one all-gather of a small record.
template <Communicator C, class Check>
void check_on_all_ranks(C& communicator, Check&& check) {
  annulus::detail::CallRecord record;
  record.fill_or_refuse(check);
  annulus::detail::agree(communicator, record);
}

}  // namespace annulus::interop::detail
