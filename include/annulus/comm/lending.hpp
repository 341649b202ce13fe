#pragma once
// An optional refinement of the communicator: ranks that share memory read each other's bytes where they lie.

#include <concepts>
#include <cstddef>
#include <span>
#include <string_view>
#include <utility>

#include "annulus/comm/communicator.hpp"

namespace annulus {

/// Whether ranks read each other's rows where they lie: no step then waits for a copy, and one prefetched buffer of two is
/// not needed. Results are the same bits either way.
enum class InPlace {
  automatic,  ///< where it is possible
  never,      ///< all bytes travel as messages
  always,     ///< refused where it is not possible
};

constexpr std::string_view name_of(InPlace choice) {
  return choice == InPlace::automatic ? "automatic" : choice == InPlace::never ? "never" : "always";
}

/// A run of a loan: bytes of the lender that the borrower may read.
using BorrowedBytes = std::span<std::span<std::byte const> const>;

/// A loan has at most this many runs.
constexpr std::size_t max_lent_runs = 8;
/// Loans of one channel from one rank to another that may be under way before the borrower has waited for the first.
constexpr std::size_t max_loans_under_way = 8;

/// One loan, as the borrower holds it. Satisfied by a movable T where
///  1. wait() returns when the lender has lent its bytes; it throws as Transfer's does, and does not wait for ever;
///  2. after wait(), runs() are the lender's bytes, in this rank's address space. They do not change, and stay readable
///     whatever becomes of the lender, until the loan is given back;
///  3. give_back() says that this rank has read them; so does destroying the loan, after wait();
///  4. destroying it without wait() (an exception is passing through) lets the peers' waits fail.
template <class T>
concept Loan = std::movable<T> && requires(T loan, T const& observed) {
  { loan.wait() } -> std::same_as<void>;
  { observed.runs() } -> std::same_as<BorrowedBytes>;
  { loan.give_back() }
  noexcept;
};

/// Satisfied by C where
///  1. lends() says whether the ranks of this ring can read each other's memory, the same on all ranks and for good;
///     where they cannot, nothing below is called;
///  2. allocate(bytes) returns a movable Buffer with data() and size(), aligned to 64 bytes, contents unspecified. It
///     may be destroyed at any time, and outlives the communicator: the communicator keeps lent bytes for the borrowers;
///  3. start_loan(channel, hop, out) is called as start_shift is, with an order of its own per channel: the runs `out`,
///     at most max_lent_runs of them and all (but empty ones) within one Buffer, are lent to rank() + hop, and
///     rank() - hop lends to this rank. It does not block. The bytes must not be written before a reclaim;
///  4. reclaim(first) returns when all loans of the Buffer whose data() is `first` have been given back. It throws
///     CommunicationError when they will not be, and does not wait for ever; the bytes must then not be written any
///     more.
template <class C>
concept LendingCommunicator = Communicator<C> &&
    requires(C& communicator, C const& observed, typename C::Buffer const& buffer, Channel channel, int hop,
             OutgoingBytes out, Index bytes, std::byte const* first) {
  { observed.lends() } -> std::same_as<bool>;
  { communicator.allocate(bytes) } -> std::same_as<typename C::Buffer>;
  { buffer.data() } -> std::same_as<std::byte*>;
  { buffer.size() } -> std::same_as<Index>;
  { communicator.start_loan(channel, hop, out) } -> Loan;
  communicator.reclaim(first);
};

template <class C>
using LoanOf = decltype(std::declval<C&>().start_loan(Channel{}, 1, OutgoingBytes{}));

/// Whether the ranks of this ring read each other's memory.
template <Communicator C>
bool lends(C const& communicator) {
  if constexpr (LendingCommunicator<C>)
    return communicator.lends();
  else
    return false;
}

}  // namespace annulus
