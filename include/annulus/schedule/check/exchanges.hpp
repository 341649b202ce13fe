#pragma once
// Exchanges between all ranks on the abstract machine of check_plan.hpp: each rank posts its side, which is compared
// with those of its peers.

#include <algorithm>
#include <array>
#include <cstddef>
#include <deque>
#include <vector>

#include "annulus/schedule/check/rows.hpp"

namespace annulus::detail::checker {

/// One rank's side of an exchange.
struct Posting {
  Shift const* shift = nullptr;  ///< null: not started
  int lane = 0;
  Slot const *out = nullptr, *in = nullptr;
  std::vector<SlotRow*> leaving{}, arriving{};
  std::vector<Content> sent{};             ///< what the rows that leave held at the start
  bool awaited = false, released = false;  ///< by the reader
};

/// An exchange that all ranks start, with the same hop.
struct Exchange {
  bool window = false;
  int hop = 0;
  std::vector<Posting> postings{};  ///< by rank

  Posting& of(Rank rank) { return at(postings, rank_at(rank, static_cast<int>(postings.size()))); }
  Posting& reader(Rank rank) { return of(rank + hop); }
  Posting& sender(Rank rank) { return of(rank - hop); }
  /// The peers of the rank have started their sides.
  bool can_end(Rank rank) { return sender(rank).shift && (window || reader(rank).shift); }
};

/// Compares what a rank sends with what its peer expects, if both have started.
inline void compare(Posting const& from, Posting const& to) {
  if (!from.shift || !to.shift) return;
  require(!from.out == !to.in, "one of the two ranks sends no rows, or expects none");
  if (!from.out) return;
  Index const sent = from.shift->out.rows.size(), expected = to.shift->in.rows.size();
  require(sent == expected, sent, " rows are sent, ", expected, " are expected");
  PayloadLayout const &leaving = from.out->layout, &arriving = to.in->layout;
  auto const same_part = [](PartLayout const& one, PartLayout const& other) {
    return one.part == other.part && one.row_bytes() == other.row_bytes();
  };
  bool const same =
      std::equal(leaving.parts.begin(), leaving.parts.end(), arriving.parts.begin(), arriving.parts.end(), same_part);
  require(same && leaving.checksums == arriving.checksums && from.out->nodes == to.in->nodes,
          "other parts are sent than are expected");
  int const code = from.shift->leaving_code, expected_code = to.shift->arriving_code;
  require(code == expected_code && from.lane == to.lane, "the checksum is of exchange ", code, " of lane ", from.lane,
          ", expected is that of exchange ", expected_code, " of lane ", to.lane);
}

/// The exchanges of one channel, by messages or through windows, in the order in which each rank starts them.
class Stream {
 public:
  explicit Stream(std::size_t ranks = 0) : started_(ranks) {}

  Exchange& start(Rank rank, Shift const& shift, bool window) {
    std::size_t const number = at(started_, rank)++;
    if (number == exchanges_.size()) exchanges_.push_back({window, shift.hop, std::vector<Posting>(started_.size())});
    Exchange& exchange = exchanges_[number];
    require(exchange.hop == shift.hop, "exchange ", number, " of the channel has hop ", shift.hop,
            ", another rank has started it with hop ", exchange.hop);
    exchange.of(rank).shift = &shift;
    return exchange;
  }
  void require_few_windows(Rank rank, int hop) {
    std::size_t open = 0;
    for (Exchange& one : exchanges_) open += one.hop == hop && one.of(rank).out && !one.of(rank).awaited;
    require(open <= max_open_windows, "more than ", max_open_windows, " open windows to a rank");
  }
  void require_end(Rank rank) const {
    require(at(started_, rank) == exchanges_.size(), "has started ", at(started_, rank),
            " exchanges of a channel, other ranks ", exchanges_.size());
  }

 private:
  std::vector<std::size_t> started_;  ///< by rank
  std::deque<Exchange> exchanges_;    ///< which stay where they are
};

}  // namespace annulus::detail::checker
