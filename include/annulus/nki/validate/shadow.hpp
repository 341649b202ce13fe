#pragma once
// Shadow memory of the symbolic run: which elements of tiles and tensors are written, by whom, and since when.

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <cstdint>
#include <vector>

#include "annulus/nki/program/program.hpp"
#include "annulus/nki/validate/findings.hpp"

namespace annulus::nki::validate_detail {

/// One bit per element of a tensor, initially clear. Ranges are [begin, begin + count), not empty, inside the tensor.
class ElementBits {
 public:
  explicit ElementBits(Index elements) : words_(static_cast<std::size_t>((elements + 63) / 64), 0) {}

  void clear() { std::ranges::fill(words_, 0); }
  void set(Index begin, Index count) {
    for (Index at = begin; at < begin + count; at = next(at)) nth(words_, at / 64) |= mask(at, begin + count);
  }
  /// Index of the first clear (set) bit of the range, -1 if there is none.
  Index first_clear(Index begin, Index count) const { return first(begin, begin + count, all); }
  Index first_set(Index begin, Index count) const { return first(begin, begin + count, 0); }

 private:
  static constexpr std::uint64_t all = ~std::uint64_t{0};

  /// The first bit of the word after that of bit `at`.
  static Index next(Index at) { return (at / 64 + 1) * 64; }
  /// Bits [at, end) of the word of bit `at`.
  static std::uint64_t mask(Index at, Index end) {
    return (all << (at % 64)) & (end < next(at) ? all >> (next(at) - end) : all);
  }
  /// The first bit of [begin, end) that differs from the same bit of `expected`.
  Index first(Index begin, Index end, std::uint64_t expected) const {
    for (Index at = begin; at < end; at = next(at))
      if (std::uint64_t const different = (nth(words_, at / 64) ^ expected) & mask(at, end))
        return at / 64 * 64 + std::countr_zero(different);
    return -1;
  }

  std::vector<std::uint64_t> words_;
};

/// Fault of an access: an element never written (undefined), or one that another core or a collective wrote, read or
/// sent without synchronization in between.
enum class TensorFault { none, undefined, unseen_write, unseen_read, unseen_sending };

/// Fault of an access and its first faulty element; -1 without a fault.
struct TensorAnswer {
  TensorFault fault = TensorFault::none;
  Index element = -1;
};

/// A tensor used by one or two cores. The cores are run one after the other up to each synchronization point, so of two
/// conflicting accesses between two such points the second one in this order finds the trace of the first.
class TensorShadow {
 public:
  TensorShadow(Buffer const& buffer, int cores)
      : size_(buffer.size()),
        shared_(cores == 2 && buffer.role != Role::input),
        complete_(buffer.role == Role::input),
        written_(complete_ ? 0 : size_) {
    if (shared_)
      for (Trace& trace : traces_) trace.writes = trace.reads = ElementBits(size_);
  }

  /// Records a read or write at offset `begin`, in elements of the tensor. `certain` is false for one of several
  /// offsets that a register may select; elements written there do not count as written.
  TensorAnswer use(int core, bool writes, Access const& access, Index begin, bool certain) {
    TensorAnswer answer;
    if (!writes && complete_ && !shared_) return answer;
    if (writes && shared_ && sent_) return {TensorFault::unseen_sending, begin};
    Trace& other = nth(traces_, 1 - core);
    Trace& own = nth(traces_, core);
    Runs::adjacent(access.axes()).visit(begin, [&](Index first, Index count, Index) {
      if (shared_ && found(other.writes.first_set(first, count), TensorFault::unseen_write, answer)) return false;
      if (shared_ && writes && found(other.reads.first_set(first, count), TensorFault::unseen_read, answer))
        return false;
      if (!writes && !complete_ && found(written_.first_clear(first, count), TensorFault::undefined, answer))
        return false;
      if (shared_) (writes ? own.writes : own.reads).set(first, count);
      if (writes && certain && !complete_) {
        written_.set(first, count);
        complete_ = count == size_;
      }
      return true;
    });
    return answer;
  }

  /// A collective sends the whole tensor.
  TensorAnswer send(Assumptions const& assumptions) {
    TensorAnswer answer;
    for (Trace& trace : traces_)
      if (shared_ && found(trace.writes.first_set(0, size_), TensorFault::unseen_write, answer)) return answer;
    if (found(first_undefined(), TensorFault::undefined, answer)) return answer;
    sent_ = !assumptions.collectives_wait_for_both_cores;
    return answer;
  }

  /// A collective overwrites the whole tensor.
  TensorAnswer receive(Assumptions const& assumptions) {
    TensorAnswer answer;
    bool const waits = assumptions.collectives_wait_for_both_cores;
    for (Trace& trace : traces_)
      if (shared_ && !waits &&
          (found(trace.writes.first_set(0, size_), TensorFault::unseen_write, answer) ||
           found(trace.reads.first_set(0, size_), TensorFault::unseen_read, answer)))
        break;
    complete_ = true;
    meet();
    return answer;
  }

  /// Both cores are synchronized: forgets their accesses.
  void meet() {
    sent_ = false;
    for (Trace& trace : traces_) {
      trace.writes.clear();
      trace.reads.clear();
    }
  }

  /// First element never written, -1 if there is none.
  Index first_undefined() {
    if (complete_) return -1;
    Index const first = written_.first_clear(0, size_);
    complete_ = first < 0;
    return first;
  }

 private:
  struct Trace {
    ElementBits writes{0}, reads{0};
  };

  static bool found(Index element, TensorFault fault, TensorAnswer& answer) {
    if (element >= 0) answer = {fault, element};
    return element >= 0;
  }

  Index size_;
  bool shared_;
  bool complete_;  ///< every element was written; `written_` is then no longer updated
  bool sent_ = false;
  ElementBits written_;
  std::array<Trace, 2> traces_;
};

using PartitionSet = std::bitset<128>;
inline PartitionSet partitions_of(Access const& access) {
  return (~PartitionSet() >> static_cast<std::size_t>(128 - access.partitions()))
         << static_cast<std::size_t>(access.start_partition);
}

/// The partitions in which each element of a tile has a property, such as being defined, as stretches of elements with
/// equal sets. Most tiles are written and read whole, or filled from left to right, so there are few stretches.
class PartitionMap {
 public:
  explicit PartitionMap(Index elements) : elements_(elements), stretches_{{0, {}}} {}

  void clear() { stretches_.assign(1, {0, {}}); }

  /// First element of the pattern that lacks the property in a partition of `wanted`; -1 if none does. `begin` is the
  /// offset of the access, in elements of a partition.
  Index first_lacking(Access const& access, Index begin, PartitionSet const& wanted) const {
    if (stretches_.size() == 1) return holds(stretches_[0].set, wanted) ? -1 : begin;
    Index lacking = -1;
    for_each_run(access, begin, [&](Index first, Index count) {
      for (std::size_t i = stretch_of(first); i < stretches_.size() && stretches_[i].begin < first + count; ++i) {
        if (holds(stretches_[i].set, wanted)) continue;
        lacking = std::max(first, stretches_[i].begin);
        return false;
      }
      return true;
    });
    return lacking;
  }

  /// Gives the elements of the pattern the property in `partitions`, or takes it away.
  void set(Access const& access, Index begin, PartitionSet const& partitions, bool holds) {
    for_each_run(access, begin, [&](Index first, Index count) {
      change(first, first + count, partitions, holds);
      return true;
    });
  }

 private:
  /// Extends to the beginning of the next stretch, or to the end of the tile.
  struct Stretch {
    Index begin;
    PartitionSet set;
  };

  static bool holds(PartitionSet const& set, PartitionSet const& wanted) { return (wanted & ~set).none(); }

  /// Calls visit(begin, count) for the runs of adjacent elements of a partition, until it returns false.
  template <class Visit>
  static void for_each_run(Access const& access, Index begin, Visit&& visit) {
    if (access.contiguous())
      visit(begin, access.elements());
    else
      Runs::adjacent(access.free_axes()).visit(begin, [&](Index first, Index count, Index) {
        return visit(first, count);
      });
  }

  std::size_t stretch_of(Index element) const {
    if (stretches_.size() == 1) return 0;
    auto const after = std::ranges::upper_bound(stretches_, element, {}, &Stretch::begin);
    return static_cast<std::size_t>(after - stretches_.begin()) - 1;
  }
  auto at(std::size_t stretch) { return stretches_.begin() + static_cast<std::ptrdiff_t>(stretch); }

  /// Number of the stretch that begins at `element`, made by splitting the one that holds it if necessary.
  std::size_t split(Index element) {
    if (element == elements_) return stretches_.size();
    std::size_t const i = stretch_of(element);
    if (stretches_[i].begin == element) return i;
    stretches_.insert(at(i + 1), {element, stretches_[i].set});
    return i + 1;
  }

  /// The same for the elements [begin, end).
  void change(Index begin, Index end, PartitionSet const& partitions, bool holds) {
    auto const changed = [&](PartitionSet const& set) { return holds ? set | partitions : set & ~partitions; };
    std::size_t const i = stretch_of(begin);
    Index const end_of_first = i + 1 < stretches_.size() ? stretches_[i + 1].begin : elements_;
    if (end <= end_of_first && changed(stretches_[i].set) == stretches_[i].set) return;
    std::size_t const first = split(begin), last = split(end);
    for (std::size_t k = first; k < last; ++k) stretches_[k].set = changed(stretches_[k].set);
    auto const equal = [](Stretch const& a, Stretch const& b) { return a.set == b.set; };
    auto const beyond = at(std::min(last + 1, stretches_.size()));
    stretches_.erase(std::unique(at(first == 0 ? 0 : first - 1), beyond, equal), beyond);
  }

  Index elements_;
  std::vector<Stretch> stretches_;
};

/// A result that matmuls accumulate in a tile: elements [begin, end) of partitions.
struct AccumulationGroup {
  Index begin = 0, end = 0;
  std::size_t seen = 0;  ///< groups of the core that had begun when it was last accumulated onto
};

/// Shadow of one tile of one core.
struct TileShadow {
  explicit TileShadow(Index elements) : defined(elements), by_matmul(elements) {}
  void clear() {
    defined.clear();
    by_matmul.clear();
    groups.clear();
  }

  PartitionMap defined;
  PartitionMap by_matmul;                 ///< last written by a matmul, so another one may accumulate onto it
  std::vector<AccumulationGroup> groups;  ///< begun since the tile was made
};

/// The accumulation groups of a core, in the order in which they begin, with the number of groups that are open then. A
/// group is open from its first to its last matmul, so the numbers grow as groups are continued.
class OpenGroups {
 public:
  /// A matmul begins a group in this bank.
  void begin(TileShadow& tile, Index begin, Index end, Index bank) {
    std::erase_if(tile.groups, [&](AccumulationGroup const& other) { return other.begin < end && begin < other.end; });
    tile.groups.push_back({begin, end, begun_.size()});
    begun_.push_back({bank});
  }

  /// The largest numbers of groups, in all banks and in this one, that a matmul which continues a group shows to be
  /// open.
  struct Most {
    Index all = 0, in_bank = 0;
  };
  Most proceed(TileShadow& tile, Index begin, Index bank) {
    Most most;
    for (AccumulationGroup& group : tile.groups)
      if (group.begin == begin)
        for (; group.seen < begun_.size(); ++group.seen) {
          Begun& at = begun_[group.seen];
          most.all = std::max<Index>(most.all, ++at.open);
          if (at.bank == bank) most.in_bank = std::max<Index>(most.in_bank, ++at.open_in_bank);
        }
    return most;
  }

 private:
  struct Begun {
    Index bank;
    std::uint16_t open = 0, open_in_bank = 0;
  };
  std::vector<Begun> begun_;
};

}  // namespace annulus::nki::validate_detail
