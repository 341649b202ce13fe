#pragma once
// Operands of a pass: one value with one visitor, by which they are packed, sliced by heads and rows, and read from a
// slot.

#include <cstdint>
#include <type_traits>

#include "annulus/backend/backend.hpp"
#include "annulus/ring/slot_memory.hpp"
#include "annulus/schedule/action.hpp"
#include "annulus/tensor/operands.hpp"

namespace annulus::detail {

/// What an operand is, and where it has rows and heads.
struct OperandAxes {
  static constexpr int none = -1;

  Part part;
  GroupRows kind;      ///< side of the rows; pairs have those of the queries
  int rows = none;     ///< axis
  int heads = none;    ///< axis
  bool packed = true;  ///< it has a part in slots
};

/// The part of a view that an axis selects; a view without data, or without the axis, is kept.
template <class View>
View slice_of(View const& view, int axis, Index begin, Index count) {
  return view.data() && axis != OperandAxes::none ? view.slice(static_cast<std::size_t>(axis), begin, count) : view;
}

/// A share of the heads of a view along an axis; one head for all is kept.
template <class View>
View heads_of(View const& view, int axis, HeadShare const& heads) {
  if (heads.of == 1 || axis == OperandAxes::none || view.extent(static_cast<std::size_t>(axis)) == 1) return view;
  Index const count = view.extent(static_cast<std::size_t>(axis)) / heads.of;
  return slice_of(view, axis, heads.place * count, count);
}

/// The view of a part of a slot, shaped as the operand.
template <class T, std::size_t N, class Space>
TensorView<T, N, Space> view_in(SlotView<Space> const& slot, OperandAxes const& axes) {
  using E = std::remove_const_t<T>;
  if constexpr (N == 4)
    return axes.kind == GroupRows::pairs ? slot.template view<E>(axes.part).permuted({0, 2, 1, 3})
                                         : slot.template view<E>(axes.part);
  else if constexpr (N == 3)
    return slot.template statistics<E>(axes.part);
  else
    return slot.template document_ids<E>();
}

/// An operand whose view has no data is not given. A: accumulator type of the backend.
template <class T, class A, class Space>
struct PassOperands {
  using L = Accumulator<T>;

  TensorView<T const, 4, Space> q{}, k{}, v{};           ///< [batch, rows, heads, dim]
  TensorView<T const, 4, Space> dout{}, output{};        ///< backward: [batch, queries, query_heads, value_dim]
  TensorView<L const, 3, Space> lse{}, lse_remainder{};  ///< backward: [batch, query_heads, queries]
  TensorView<A const, 3, Space> delta{};                 ///< backward: likewise
  TensorView<std::int32_t const, 2, Space> query_documents{}, key_documents{};  ///< [batch, rows]
  TensorView<T const, 4, Space> bias{};                        ///< [batch|1, query_heads|1, queries, global_keys]
  TensorView<bool const, 4, Space> mask{};                     ///< likewise
  TensorView<L const, 2, Space> sinks{};                       ///< [query_heads, n]
  TensorView<T const, 4, Space> joint_keys{}, joint_values{};  ///< [batch, n, kv_heads, dim]

  PassOperands() = default;
  /// q, k and v, and the optional operands of a call.
  PassOperands(StepOperands<T, Space> const& own, Operands<T, Space> const& given) : q(own.q), k(own.k), v(own.v) {
    auto const take = [](auto& view, auto const& optional) {
      if (optional) view = *optional;
    };
    take(query_documents, given.query_documents);
    take(key_documents, given.key_documents);
    take(bias, given.bias);
    take(mask, given.mask);
    take(sinks, given.sinks);
    take(joint_keys, given.joint_keys);
    take(joint_values, given.joint_values);
  }

  /// Calls visit(view, axes) for each operand.
  template <class Visit>
  void visit(Visit&& visit) {
    using enum GroupRows;
    for (auto [view, part] : {std::pair{&q, Part::q}, {&dout, Part::dout}, {&output, Part::output}})
      visit(*view, OperandAxes{part, queries, axis::sequence, axis::heads});
    for (auto [view, part] : {std::pair{&k, Part::k}, {&v, Part::v}})
      visit(*view, OperandAxes{part, keys, axis::sequence, axis::heads});
    for (auto [view, part] : {std::pair{&lse, Part::lse}, {&lse_remainder, Part::lse_remainder}})
      visit(*view, OperandAxes{part, queries, 2, 1});
    visit(delta, OperandAxes{Part::delta, queries, 2, 1});
    visit(query_documents, OperandAxes{Part::document_ids, queries, 1});
    visit(key_documents, OperandAxes{Part::document_ids, keys, 1});
    visit(bias, OperandAxes{Part::bias, pairs, 2, 1});
    visit(mask, OperandAxes{Part::boolean_mask, pairs, 2, 1});
    visit(sinks, OperandAxes{Part::dsinks, queries, OperandAxes::none, 0, false});
    for (auto* view : {&joint_keys, &joint_values})
      visit(*view, OperandAxes{Part::k, keys, OperandAxes::none, axis::heads, false});
  }

  /// Those of a share of the heads.
  PassOperands of_heads(HeadShare const& heads) const {
    PassOperands result = *this;
    result.visit([&](auto& view, OperandAxes const& axes) {
      if (view.data()) view = heads_of(view, axes.heads, heads);
    });
    return result;
  }
  /// Keeps these rows of one side.
  void keep_rows(GroupRows kind, RowRange rows) {
    visit([&](auto& view, OperandAxes const& axes) {
      bool const concerned = kind == GroupRows::keys ? axes.kind == kind : axes.kind != GroupRows::keys;
      if (concerned) view = slice_of(view, axes.rows, rows.begin, rows.size());
    });
  }
  /// Replaces the operands of a kind that the slot has in their own type.
  void take(GroupRows kind, SlotView<Space> const& slot) {
    visit([&]<class E, std::size_t N>(TensorView<E, N, Space>& view, OperandAxes const& axes) {
      std::size_t const part = slot.layout().find(axes.part);
      if (!axes.packed || axes.kind != kind || part == slot.layout().parts.size()) return;
      if (slot.layout().parts[part].element_bytes == sizeof(E)) view = view_in<E, N>(slot, axes);
    });
  }

  StepOperands<T, Space> of_step() const { return {q, k, v}; }
  BackwardOperands<T, L, A, Space> known() const { return {dout, lse, delta, lse_remainder}; }
};

}  // namespace annulus::detail
