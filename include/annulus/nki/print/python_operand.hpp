#pragma once
// Operands of a printed kernel: slices where possible, else access patterns on whole tensors.

#include <span>
#include <string>
#include <vector>

#include "annulus/nki/print/python_literal.hpp"
#include "annulus/nki/print/python_names.hpp"
#include "annulus/nki/program/affine_text.hpp"

namespace annulus::nki::print_detail {

using Axes = std::vector<Axis>;

/// Axes for instructions that depend only on the number of elements per partition.
inline Axes flattened(Access const& access) {
  if (access.contiguous()) return {{access.axis(0).stride, access.partitions()}, {1, access.elements()}};
  return {access.axes().begin(), access.axes().end()};
}

/// Prints accesses and indices.
class PythonOperand {
 public:
  PythonOperand(Program const& program, PythonNames const& names) : program_(program), names_(names) {}

  /// Text of an index; the core variable is 0 in programs for one core.
  std::string index(Affine affine) {
    if (program_.cores == 1)
      for (Affine::Term const term : std::vector(affine.terms().begin(), affine.terms().end()))
        if (term.variable == core_variable) affine += Affine::of(core_variable, -term.coefficient);
    for (Affine::Term const& term : affine.terms()) uses_core_ = uses_core_ || term.variable == core_variable;
    return text_of(affine, names_.variables());
  }
  /// True if any index printed so far refers to the core.
  bool uses_core() const { return uses_core_; }

  /// Bare name, for calls that take whole tensors. Throws UnsupportedError for an access to a part.
  std::string whole(Access const& access) const {
    if (!is_whole(access))
      throw UnsupportedError("the program " + program_.name + " gives a part of " + name(access) +
                             " to a barrier or a collective; accepted: whole tensors");
    return name(access);
  }
  bool is_whole(Access const& access) const {
    Buffer const& buffer = program_.buffer(access);
    return access.offset == Affine(0) && access.start_partition == 0 && !access.register_offset &&
           access.size() == buffer.size() && access.contiguous() &&
           (access.partitions() == 1 || access.axis(0).stride == access.elements());
  }

  /// For instructions that depend only on the number of elements per partition.
  std::string flat(Access const& access) { return shaped(access, flattened(access)); }
  /// For instructions that see every axis.
  std::string shaped(Access const& access) { return shaped(access, Axes(access.axes().begin(), access.axes().end())); }

  /// With `axes` instead of those of the access.
  std::string shaped(Access const& access, Axes axes) {
    bool const chip = on_chip(program_.buffer(access).memory);
    return chip ? tile(access, std::move(axes)) : tensor(access, axes);
  }

 private:
  std::string name(Access const& access) const { return names_.tile(access.buffer, access.age); }

  std::string tile(Access const& access, Axes axes) {
    Index const row = program_.buffer(access).elements_per_partition();
    if (access.register_offset)
      throw UnsupportedError("the program " + program_.name + " adds a register to an offset in " + name(access) +
                             ", on chip; accepted: in HBM");
    if (axes.size() < 2) axes.push_back({1, 1});
    if (axes.size() == 2 && (axes[1].stride == 1 || axes[1].count == 1)) {
      Index const first = access.start_partition;
      return name(access) + "[" + literal(first) + ":" + literal(first + axes[0].count) + ", " + index(access.offset) +
             ":" + index(access.offset + axes[1].count) + "]";
    }
    axes.front().stride = row;
    return pattern(access, axes, access.offset + access.start_partition * row) + ")";
  }

  std::string tensor(Access const& access, Axes const& axes) {
    std::string text = pattern(access, axes, access.offset);
    if (access.register_offset)
      text += ", scalar_offset=" + names_.register_name(access.register_offset->register_number) +
              ", indirect_dim=" + literal(access.register_offset->dimension);
    return text + ")";
  }

  /// Access pattern without the closing parenthesis.
  std::string pattern(Access const& access, Axes const& axes, Affine const& offset) {
    return name(access) + ".ap(pattern=" + literal(std::span<Axis const>(axes)) + ", offset=" + index(offset);
  }

  Program const& program_;
  PythonNames const& names_;
  bool uses_core_ = false;
};

}  // namespace annulus::nki::print_detail
