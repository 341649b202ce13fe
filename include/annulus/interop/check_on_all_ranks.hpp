#pragma once
// Checks of the adapters' own rules, which come before those of RingAttention: when they compile, and collective ones,
// with which all ranks throw if one rank violates a rule.

#include <concepts>

#include "annulus/attention/agreement.hpp"

namespace annulus::interop::detail {

/// Fails to compile, with a readable message, unless ring and backend have the same memory space.
template <class C, class B>
struct RequireOneSpace {
  static_assert(std::same_as<typename C::memory_space, typename B::memory_space>,
                "annulus: communicator and backend have different memory spaces");
  static constexpr bool value = true;
};

/// Calls check(CallRecord&) on every rank. If it throws on one rank, all ranks throw that error; if ranks record
/// different values of a field, all throw CommunicationError. Costs one all-gather of a small record.
template <Communicator C, class Check>
void check_on_all_ranks(C& communicator, Check&& check) {
  annulus::detail::CallRecord record;
  record.fill_or_refuse(check);
  annulus::detail::agree(communicator, record);
}

}  // namespace annulus::interop::detail
