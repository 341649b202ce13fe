#pragma once
// Conversions of rows to and from a wire type. A rank computes with its own operands rounded to it as well, so that no
// result depends on which rank holds a row.

#include <type_traits>

#include "annulus/core/scalar.hpp"
#include "annulus/ring/slot_memory.hpp"
#include "annulus/schedule/schedule.hpp"
#include "annulus/tensor/view.hpp"

namespace annulus::detail {

/// Calls function(std::type_identity<W>) with the element type W of a wire type.
template <class Function>
void with_wire(Wire wire, Function&& function) {
  if (wire == Wire::bfloat16) function(std::type_identity<Eigen::bfloat16>{});
  if (wire == Wire::half) function(std::type_identity<Eigen::half>{});
}

/// Stores an operand in a part of a slot, rounded to the wire type: in that type if the slot has it, else in its own.
template <class W, class T>
void round_rows(TensorView<T const, 4> rows, SlotView<HostMemory> const& into, Part part) {
  if (into.layout().parts[into.layout().index_of(part)].element_bytes == sizeof(W))
    for_each_element(rows, into.view<W>(part), [](T const& value, W& rounded) { rounded = round_once<W>(value); });
  else
    for_each_element(rows, into.view<T>(part),
                     [](T const& value, T& near) { near = static_cast<T>(round_once<W>(value)); });
}

/// Copies an operand of wire type W from one slot to another, in type T.
template <class W, class T>
void widen_operand(SlotView<HostMemory> const& from, SlotView<HostMemory> const& into, Part part) {
  for_each_element(TensorView<W const, 4>(from.view<W>(part)), into.view<T>(part),
                   [](W const& value, T& wide) { wide = round_once<T>(value); });
}

/// Copies the parts of a slot whose rows have arrived, with operands of the wire type in type T.
template <class T>
void widen_rows(Wire wire, SlotView<HostMemory> const& from, SlotView<HostMemory> const& into) {
  if (from.rows.empty()) return;
  for (PartLayout const& part : into.layout().parts) {
    if (!has_wire_type(part.part)) {
      std::memcpy(into.memory->data<std::byte>(part.part, into.rows.begin),
                  from.memory->data<std::byte>(part.part, from.rows.begin),
                  static_cast<std::size_t>(part.row_bytes() * from.rows.size()));
      continue;
    }
    with_wire(wire, [&]<class W>(std::type_identity<W>) { widen_operand<W, T>(from, into, part.part); });
  }
}

}  // namespace annulus::detail
