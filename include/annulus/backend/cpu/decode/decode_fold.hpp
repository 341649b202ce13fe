#pragma once
// Forward pass of a step with few query rows: keys and values are read once, where they are, and the query heads of a
// kv head share each load, so that the time is close to that of reading memory. Threads claim pieces of the keys; the
// partial results of the pieces are merged in the order of the keys. A row that is not cut into pieces has the bits of
// ForwardFold.

#include <algorithm>
#include <array>
#include <cstdint>

#include "annulus/backend/cpu/decode/decode_panel.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// One call of Backend::fold for a step that accepts() returns true for.
template <class T>
class DecodeFold {
  using A = Accumulator<T>;
  using E = BlockElement<T>;

 public:
  /// True if the step has few query rows for each kv head, and not too few keys: otherwise packed panels are faster.
  static bool accepts(FoldArguments<T> const& call) {
    StepExtents<E> const extents(call.operands);
    Index const rows = extents.rows(0).count();
    return rows <= KeySplits::most_rows<A> && extents.keys >= KeySplits::least_keys(rows);
  }

  /// All that `call` refers to must outlive the object.
  explicit DecodeFold(FoldArguments<T> const& call) : call_(call), extents_(call.operands) {}

  void run() {
    if (call_.step.tiles.empty() || extents_.empty()) return;
#if defined(ANNULUS_CPU_HAS_AMX)
    if constexpr (PackedGroup<E>::tiled)
      if (amx_is_permitted()) return run_in<SumsInTiles>();
#endif
    run_in<SumsInOrder<PackedElement<T>>>();
  }

 private:
  template <class Order>
  void run_in() {
    using Panel = DecodePanel<T, Order>;
    ThreadPool::Call call(ThreadPool::shared(), call_.threads);
    KeySplits const splits = KeySplits::of(call_, extents_, call.most());
    Index const groups = extents_.heads() / splits.heads;
    pieces_ = annulus::detail::ceil_divide(extents_.keys, splits.piece);
    auto const allocate = [&](Arena& arena) { allocate_partial(arena); };
    Workspace const shared(WorkspaceStores::shared().of_calls, bytes_of(allocate));
    Arena arena(shared.data());
    allocate(arena);
    std::fill_n(maxima_, pieces_ > 1 ? pieces_ * rows() : 0, empty_row<A>);
    std::fill_n(sums_, pieces_ > 1 ? pieces_ * rows() : 0, A(0));
    auto const scratch = [&](Arena& own) { return Panel(own, call_, extents_, splits); };
    share_items<A>(call, std::min(call.most(), groups * pieces_), groups * pieces_, scratch,
                   [&](Team const&, Panel& own, Index item) {
                     Index const begin = item % pieces_ * splits.piece;
                     own.fold(item / pieces_ * splits.heads, {begin, std::min(begin + splits.piece, extents_.keys)},
                              partial(item % pieces_));
                   });
    if (pieces_ == 1) return;
    constexpr Index bytes_of_thread = Index{1} << 20;  // with less, waking it up takes longer
    Index const threads = 1 + pieces_ * rows() * extents_.value.size * static_cast<Index>(sizeof(A)) / bytes_of_thread;
    share_items<A>(call, std::min({call.most(), extents_.heads(), threads}), extents_.heads(), scratch,
                   [&](Team const&, Panel const&, Index head) { merge(head); });
  }

  /// Rows of the state.
  Index rows() const { return extents_.heads() * extents_.rows(0).count(); }

  void allocate_partial(Arena& arena) {
    if (pieces_ == 1) return;
    maxima_ = arena.take<A>(pieces_ * rows());
    sums_ = arena.take<A>(pieces_ * rows());
    outputs_ = arena.take<A>(pieces_ * rows() * extents_.value.size);
  }

  /// The state of a piece: that of the step if it is the only one.
  RunningState<A, HostMemory> partial(Index piece) const {
    if (pieces_ == 1) return call_.state;
    Index const heads = extents_.kv_heads * extents_.group, first = piece * rows();
    std::array<Index, 3> const extents{extents_.batches, heads, extents_.queries};
    return {{outputs_ + first * extents_.value.size, {extents_.batches, extents_.queries, heads, extents_.value.size}},
            {maxima_ + first, extents},
            {sums_ + first, extents}};
  }

  /// Merges the pieces of a head into the state.
  void merge(Index head) const {
    GroupedQueries const rows = extents_.rows(head);
    for (Index piece = 0; piece < pieces_; ++piece) {
      RunningState<A, HostMemory> const from = partial(piece);
      for (Index r = 0; r < rows.count(); ++r) merge_row(from, rows.batch, rows.head(r), rows.query(r));
    }
  }

  void merge_row(RunningState<A, HostMemory> const& from, Index batch, Index head, Index query) const {
    SoftmaxRow<A> const part{from.maximum(batch, head, query), from.sum(batch, head, query)};
    if (part.maximum == empty_row<A>) return;  // the row saw no key: its output is unspecified
    A &maximum = call_.state.maximum(batch, head, query), &sum = call_.state.sum(batch, head, query);
    SoftmaxRow<A> state{maximum, sum};
    typename SoftmaxRow<A>::Factors factors{A(1), A(1)};
    if (part.maximum < state.maximum)
      factors = state.merge(part);
    else
      factors.own = state.extend(part);
    maximum = state.maximum;
    sum = state.sum;
    combine(factors.own, &call_.state.accumulator(batch, query, head, 0), factors.other,
            &from.accumulator(batch, query, head, 0), extents_.value.size);
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
  Index pieces_ = 1;
  A *maxima_ = nullptr, *sums_ = nullptr, *outputs_ = nullptr;  ///< of the pieces, if there are several
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
