#pragma once
// Memory and conversions of a wire type. A rank computes with its own operands rounded to it as well, so that no result
// depends on which rank holds a row.

#include <array>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "annulus/backend/backend.hpp"
#include "annulus/core/scalar.hpp"
#include "annulus/ring/payload.hpp"
#include "annulus/schedule/ring_plan.hpp"

namespace annulus::detail {

/// Calls function(std::type_identity<W>) with the element type W of a wire type.
template <class Function>
void with_wire(Wire wire, Function&& function) {
  if (wire == Wire::bfloat16) function(std::type_identity<Eigen::bfloat16>{});
  if (wire == Wire::half) function(std::type_identity<Eigen::half>{});
}

/// Converts the elements of operands in host memory, each rounded once.
template <class From, class To>
void convert_operand(TensorView<From const, 4> from, TensorView<To, 4> to) {
  for_each_element(from, to, [](From const& value, To& converted) { converted = round_once<To>(value); });
}

/// The buffers of one plan and rank, reused from call to call. They stay unused where operands travel as stored.
template <class Space>
class WirePayloads {
 public:
  /// Allocates what the plan needs. No work on the previous contents may be pending.
  template <class Backend>
  void reserve(Backend& backend, RingPlan const& plan, Rank rank) {
    WireBuffers const sizes = plan.wire_buffers(rank);
    wire_ = plan.request().wire;
    element_bytes_ = plan.request().element_bytes;
    gathers_ = {plan.groups().gathers(Side::query), plan.groups().gathers(Side::key)};
    for (auto [payload, layout, rows] : {std::tuple{&queries_, &sizes.queries, sizes.query_rows},
                                         {&keys_, &sizes.keys, sizes.key_rows},
                                         {&own_dout_, &sizes.own_dout, sizes.own_queries},
                                         {&read_, &sizes.read, sizes.read_rows}}) {
      payload->reserve(backend, *layout, rows);
      payload->hold({0, rows});
    }
  }
  Index bytes() const {
    return queries_.buffer_bytes() + keys_.buffer_bytes() + own_dout_.buffer_bytes() + read_.buffer_bytes();
  }

  /// q, k or v that this rank works on, or dout of its own queries, rounded to the wire type, in memory of this object.
  /// The operand itself if there is no such type, or if it is that of a group, whose ranks have exchanged it rounded.
  /// is_done: the memory has it from the call before.
  template <class T>
  TensorView<T const, 4, Space> rounded(Part part, TensorView<T const, 4, Space> const& given,
                                        bool is_done = false) const {
    if constexpr (std::same_as<Space, HostMemory>) {
      bool const of_group = part != Part::dout && gathers_[is_of_keys(part)];
      if (wire_ == Wire::as_stored || of_group) return given;
      TensorView<T, 4> const result = (part == Part::dout ? own_dout_ : worked_on(part)).template view<T>(part);
      if (is_done) return result;
      with_wire(wire_, [&]<class W>(std::type_identity<W>) {
        for_each_element(given, result, [](T const& value, T& near) { near = static_cast<T>(round_once<W>(value)); });
      });
      return result;
    }
    return given;
  }
  template <class T>
  StepOperands<T, Space> rounded(StepOperands<T, Space> const& own, bool is_done) const {
    return {rounded(Part::q, own.q, is_done), rounded(Part::k, own.k, is_done), rounded(Part::v, own.v, is_done)};
  }

  /// Stores rows of an operand, rounded before or here, in a payload that travels. False if it travels as stored.
  template <class T, class Rows>
  bool pack(TensorView<T const, 4, Space> const& rows, Rows const& payload, Part part) const {
    if constexpr (std::same_as<Space, HostMemory>)
      with_wire(wire_, [&]<class W>(std::type_identity<W>) { convert_operand(rows, payload.template view<W>(part)); });
    return wire_ != Wire::as_stored;
  }

  /// An operand of the group, in its own type, from the rows that its ranks have exchanged.
  template <class T, class Rows>
  TensorView<T const, 4, Space> of_group(Rows const& gathered, Part part) const {
    if constexpr (std::same_as<Space, HostMemory>)
      if (wire_ != Wire::as_stored) {
        TensorView<T, 4> const result = worked_on(part).template view<T>(part);
        widen(gathered, part, result);
        return result;
      }
    return gathered.template view<T>(part);
  }

  /// The rows that have arrived, with operands in their own type. Valid until the next call, before which all work on
  /// them has been synchronized.
  Payload<Space> const& read(Payload<Space> const& arrived) {
    if constexpr (std::same_as<Space, HostMemory>)
      if (wire_ != Wire::as_stored) {
        read_.hold(arrived.rows());
        for (PartLayout const& part : read_.layout().parts) {
          if (!has_wire_type(part.part))
            std::memcpy(read_.template data<std::byte>(part.part), arrived.template data<std::byte>(part.part),
                        static_cast<std::size_t>(part.row_bytes() * arrived.rows().size()));
          else if (element_bytes_ == sizeof(double))
            widen(arrived, part.part, read_.template view<double>(part.part));
          else
            widen(arrived, part.part, read_.template view<float>(part.part));
        }
        return read_;
      }
    return arrived;
  }

 private:
  static constexpr bool is_of_keys(Part part) { return part == Part::k || part == Part::v; }
  Payload<Space> const& worked_on(Part part) const { return is_of_keys(part) ? keys_ : queries_; }

  template <class Rows, class T>
  void widen(Rows const& rows, Part part, TensorView<T, 4> const& result) const {
    with_wire(wire_, [&]<class W>(std::type_identity<W>) {
      convert_operand(TensorView<W const, 4>(rows.template view<W>(part)), result);
    });
  }

  Wire wire_ = Wire::as_stored;
  int element_bytes_ = 0;
  std::array<bool, 2> gathers_{};  ///< by side: works on the rows of its group
  Payload<Space> queries_, keys_;  ///< that this rank works on
  Payload<Space> own_dout_, read_;
};

}  // namespace annulus::detail
