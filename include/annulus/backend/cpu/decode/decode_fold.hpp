#pragma once
// Forward pass of a step with few query rows: keys and values are read once, where they are, and the query heads of a
// kv head share each load, so that the time is close to that of reading memory. Threads claim pieces of the keys; the
// partial results of the pieces are merged in the order of the keys.

#include <algorithm>
#include <array>
#include <cstdint>

#include "annulus/backend/cpu/decode/decode_heads.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// One call of Backend::fold for a step that accepts() returns true for.
template <class T>
class DecodeFold {
  using A = Accumulator<T>;
  using E = PackedElement<T>;
  using Scratch = DecodeHeads<T>;

 public:
  /// True if the step has few query rows for each kv head, and not too few keys: otherwise packed panels are faster.
  /// Products are summed in another order than in the backward pass, which must not need the same bits.
  static bool accepts(FoldArguments<T> const& call) {
    StepExtents<E> const extents(call.operands);
    Index const rows = extents.rows(0).count();
    return !call.step.recomputed && rows <= KeySplits::most_rows && extents.keys >= KeySplits::least_keys(rows);
  }

  /// All that `call` refers to must outlive the object.
  explicit DecodeFold(FoldArguments<T> const& call)
      : call_(call),
        extents_(call.operands),
        splits_(KeySplits::of(call.operands, extents_)),
        head_groups_(extents_.heads() / splits_.heads),
        pieces_(annulus::detail::ceil_divide(extents_.keys, splits_.piece)) {}

  void run() {
    if (call_.step.tiles.empty() || extents_.empty()) return;
    ThreadPool::Call call(ThreadPool::shared(), call_.threads);
    Index const rows = extents_.heads() * extents_.rows(0).count() * pieces_;
    auto const allocate = [&](Arena& arena) {
      statistics_ = arena.take<SoftmaxRow<A>>(rows);
      outputs_ = arena.take<A>(rows * extents_.value.padded());
    };
    Workspace const shared(WorkspaceStores::shared().of_calls, bytes_of(allocate));
    Arena arena(shared.data());
    allocate(arena);
    auto const scratch = [&](Arena& own) { return Scratch(own, call_, extents_, splits_); };
    Index const items = head_groups_ * pieces_;
    share_items<E>(call, std::min(call.most(), items), items, scratch, [&](Team const&, Scratch& own, Index item) {
      fold_piece(own, item / pieces_ * splits_.heads, item % pieces_ * splits_.piece);
    });
    constexpr Index bytes_of_thread = Index{1} << 20;  // with less, waking it up takes longer
    Index const threads = 1 + rows * extents_.value.padded() * static_cast<Index>(sizeof(A)) / bytes_of_thread;
    share_items<E>(call, std::min({call.most(), head_groups_, threads}), head_groups_, scratch,
                   [&](Team const&, Scratch& own, Index group) { merge(own, group * splits_.heads); });
  }

 private:
  /// Place of a row's partial result of the first piece; those of the other pieces follow.
  Index partial(Index head, Index row) const { return (head * extents_.rows(0).count() + row) * pieces_; }

  void fold_piece(Scratch& scratch, Index first_head, Index begin) {
    constexpr Index block = KeySplits::block;
    scratch.load(first_head);
    scratch.clear();
    for (Tile const& tile : call_.step.tiles) {
      RowRange const any = scratch.look_at(tile, {begin, std::min(begin + splits_.piece, extents_.keys)});
      for (Index first = any.begin / block * block; first < any.end; first += block) {
        if (scratch.progresses) call_.step.progress();
        scratch.fold(first, annulus::detail::intersection(any, {first, first + block}));
      }
    }
    for (Index h = 0; h < splits_.heads; ++h)
      for (Index row = 0; row < extents_.rows(0).count(); ++row) {
        Index const place = partial(first_head + h, row) + begin / splits_.piece;
        statistics_[place] = scratch.statistics(h, row);
        std::copy_n(scratch.output(h, row), extents_.value.padded(), outputs_ + place * extents_.value.padded());
      }
  }

  /// Merges the pieces of all rows of a group of heads into the state.
  void merge(Scratch& scratch, Index first_head) const {
    A* const output = scratch.output(0, 0);
    Index const dim = extents_.value.padded();
    for (Index head = first_head; head < first_head + splits_.heads; ++head)
      for (Index r = 0; r < extents_.rows(head).count(); ++r) {
        SoftmaxRow<A> row;
        for (Index place = partial(head, r); place < partial(head, r) + pieces_; ++place) {
          if (is_empty(statistics_[place])) continue;
          auto const factors = row.merge(statistics_[place]);
          combine(factors.own, output, factors.other, outputs_ + place * dim, dim);
        }
        if (!is_empty(row)) merge_into_state(extents_.rows(head), r, row, output);
      }
  }

  /// True for a row that saw no key, or none with a weight. A row whose logits are all NaN has a sum, but no maximum.
  static bool is_empty(SoftmaxRow<A> const& row) { return row.maximum == empty_row<A> && row.sum == A(0); }

  void merge_into_state(GroupedQueries const& rows, Index r, SoftmaxRow<A> row, A const* output) const {
    Index const batch = rows.batch, head = rows.head(r), query = rows.query(r);
    A &maximum = call_.state.maximum(batch, head, query), &sum = call_.state.sum(batch, head, query);
    A* const accumulator = call_.state.accumulator.data() + call_.state.accumulator.offset(batch, query, head, 0);
    SoftmaxRow<A> state{maximum, sum};
    typename SoftmaxRow<A>::Factors factors{A(1), A(1)};
    if (row.maximum == empty_row<A>) row.maximum = row.sum;
    if (row.maximum < state.maximum)
      factors = state.merge(row);
    else
      factors.own = state.extend(row);
    combine(factors.own, accumulator, factors.other, output, extents_.value.size);
    maximum = state.maximum;
    sum = state.sum;
  }

  /// into = own * into + other * from. What has the factor 0 is not read, as it may be infinite.
  static void combine(A own, A* into, A other, A const* from, Index dim) {
    if (own == A(0))
      for (Index d = 0; d < dim; ++d) into[d] = other == A(0) ? A(0) : other * from[d];
    else if (other != A(0))
      for (Index d = 0; d < dim; ++d) into[d] = own * into[d] + other * from[d];
    else if (own != A(1))
      for (Index d = 0; d < dim; ++d) into[d] *= own;
  }

  FoldArguments<T> const call_;
  StepExtents<E> const extents_;
  KeySplits const splits_;
  Index const head_groups_, pieces_;
  SoftmaxRow<A>* statistics_ = nullptr;
  A* outputs_ = nullptr;
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
