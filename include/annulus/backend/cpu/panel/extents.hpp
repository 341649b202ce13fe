#pragma once
// Extents of a step, and its rows as the kernels see them: the rows of one head, and panels of queries, which are
// computed together, one query row per SIMD lane.

#include <algorithm>

#include "annulus/backend/cpu/panel/blocking.hpp"
#include "annulus/backend/step.hpp"

namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS {

/// Rows of one head of a tensor [batch, sequence, heads, dim].
template <class T>
struct HeadView {
  T* data = nullptr;
  Index row_stride = 0, dim_stride = 0;

  HeadView() = default;
  HeadView(TensorView<T, 4> const& view, Index batch, Index head)
      : data(view.data() + view.offset(batch, 0, head, 0)),
        row_stride(view.stride(axis::sequence)),
        dim_stride(view.stride(axis::dim)) {}

  T* row(Index i) const { return data + i * row_stride; }
};

/// Queries of all query heads of one kv head, as one list of rows: row f is query first + f / group of query head
/// kv_head * group + f % group. Panels of these rows read the same keys; rows of the same position are neighbours.
/// Behind the rows of kv_head, those of the kv heads after it may follow, `heads` in all.
struct GroupedQueries {
  Index batch = 0, kv_head = 0, group = 1, queries = 0, first = 0, heads = 1;

  Index count() const { return heads * queries * group; }
  /// Of the rows of kv_head.
  Index query(Index row) const { return first + row / group; }
  Index head(Index row) const { return kv_head * group + row % group; }
};

/// Rows [first, first + count) of a group, one per lane; lanes from `count` on are idle. Rows of several kv heads must
/// fit one panel.
template <class A>
class QueryPanel {
 public:
  static constexpr int width = Blocking<A>::panel;

  GroupedQueries const* rows = nullptr;
  Index first = 0;
  int count = 0;

  QueryPanel() = default;
  QueryPanel(GroupedQueries const& group_rows, Index panel)
      : rows(&group_rows),
        first(panel * width),
        count(static_cast<int>(std::min<Index>(width, group_rows.count() - first))) {
    // Counted, as divisions for each lane and use would take longer than packing its row.
    Index query = rows->query(first), head = rows->head(first), heads_end = rows->head(0) + rows->group;
    Index const queries_end = rows->first + rows->queries;
    for (int lane = 0; lane < count; ++lane) {
      queries_[lane] = query;
      heads_[lane] = head;
      if (++head < heads_end) continue;
      if (++query == queries_end) {
        query = rows->first;
        heads_end += rows->group;
      }
      head = heads_end - rows->group;
    }
  }

  Index query(int lane) const { return queries_[lane]; }
  Index head(int lane) const { return heads_[lane]; }

  /// The lane's row of a tensor [batch, sequence, heads, dim], and its element of [batch, heads, sequence].
  template <class T>
  T* row(TensorView<T, 4> const& of, int lane) const {
    return of.data() + of.offset(rows->batch, query(lane), head(lane), 0);
  }
  template <class T>
  T& element(TensorView<T, 3> const& of, int lane) const {
    return of(rows->batch, head(lane), query(lane));
  }

  /// Adds the panel's rows of a tensor [batch, sequence, heads, dim] to the prefetch queue.
  template <class T>
  void expect(TensorView<T, 4> const& of, PrefetchQueue& ahead) const {
    for (int lane = 0; lane < count; ++lane) ahead.add(row(of, lane), of.stride(axis::dim), of.extent(axis::dim));
  }

 private:
  Index queries_[width], heads_[width];  ///< of the lanes
};

/// Extents of a step: as given, in packed elements E, and padded to whole vectors or groups.
template <class E>
struct StepExtents {
  using B = Blocking<typename Operand<E>::Sum>;
  using G = PackedGroup<E>;

  /// The dim axis of an operand.
  struct Dim {
    Index size;

    Index packed() const { return G::elements(size); }      ///< in packed elements
    Index padded() const { return B::dim_padded(size); }    ///< to whole vectors
    Index grouped() const { return G::rows_padded(size); }  ///< to whole groups of columns
  };

  Index batches, queries, keys, kv_heads;
  Index group;  ///< query heads of a kv head
  Dim head, value;

  template <class T>
  explicit StepExtents(StepOperands<T, HostMemory> const& operands)
      : batches(operands.q.extent(axis::batch)),
        queries(operands.q.extent(axis::sequence)),
        keys(operands.k.extent(axis::sequence)),
        kv_heads(operands.k.extent(axis::heads)),
        group(kv_heads == 0 ? 1 : operands.q.extent(axis::heads) / kv_heads),
        head{operands.q.extent(axis::dim)},
        value{operands.v.extent(axis::dim)} {}

  /// The kv heads of all batch items, as one list, and the queries of one of them.
  Index heads() const { return batches * kv_heads; }
  GroupedQueries rows(Index kv) const { return rows(kv, {0, queries}); }
  /// The same, those of `some` alone.
  GroupedQueries rows(Index kv, RowRange some) const {
    return {kv / kv_heads, kv % kv_heads, group, some.size(), some.begin};
  }
  /// Panels of the queries of one kv head, all or those of `some`, and blocks of its keys.
  Index panels() const { return panels({0, queries}); }
  Index panels(RowRange some) const { return B::panels(some.size() * group); }
  Index blocks() const { return B::key_blocks(keys); }
  /// Packed elements of `rows` keys, and of one block of values.
  Index key_elements(Index rows) const { return G::rows_padded(rows) * head.packed(); }
  Index value_elements() const { return B::key_block / Operand<E>::depth * value.grouped(); }

  /// True if the step has no pair of a query and a key.
  bool empty() const { return heads() == 0 || queries * group == 0 || keys == 0; }
};

}  // namespace annulus::cpu::detail::inline ANNULUS_CPU_INSTRUCTIONS
