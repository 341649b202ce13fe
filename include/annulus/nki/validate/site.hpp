#pragma once
// One instruction of the text being checked: its position in the program, the range of values of each loop variable
// there, and the way rules report faults.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "annulus/core/error.hpp"
#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/program/program.hpp"
#include "annulus/nki/validate/findings.hpp"

namespace annulus::nki::validate_detail {

/// Closed interval [low, high].
struct ValueRange {
  Index low = 0, high = 0;
};

/// Appends a part to the text of a place, such as: section "step" 3, key_tile_2 = 5, core 1
template <class... Parts>
void append_part(std::string& place, Parts const&... parts) {
  place += detail::message_of(place.empty() ? "" : ", ", parts...);
}

/// The sections, loops and core branches around the current node; bounds index expressions by interval arithmetic.
class Scope {
 public:
  explicit Scope(Program const& program)
      : program_(&program), ranges_(std::max<std::size_t>(program.variables.size(), core_variable + 1)) {
    ranges_[core_variable] = {0, program.cores - 1};
  }

  /// Calls inside() with the loop's variable in scope.
  template <class Inside>
  void in_loop(Loop const& loop, Inside&& inside) {
    nth(ranges_, loop.variable) = {0, std::max<Index>(loop.count - 1, 0)};
    loops_.push_back(&loop);
    inside();
    loops_.pop_back();
  }

  /// Calls inside() with the core variable fixed to `core`.
  template <class Inside>
  void on_core(int core, Inside&& inside) {
    ValueRange const before = std::exchange(ranges_[core_variable], {core, core});
    bool const was_one = std::exchange(on_one_core_, true);
    inside();
    on_one_core_ = was_one;
    ranges_[core_variable] = before;
  }

  void begin(Section const& section) { section_ = &section; }

  bool on_one_core() const { return on_one_core_; }
  /// True if the variable is in scope: the core, or that of an enclosing loop.
  bool knows(Variable variable) const {
    return variable == core_variable || std::ranges::find(loops_, variable, &Loop::variable) != loops_.end();
  }
  bool knows_all_of(Affine const& affine) const {
    return std::ranges::all_of(affine.terms(), [&](Affine::Term const& term) { return knows(term.variable); });
  }
  /// Bounds of an expression whose variables are all in scope; saturates instead of overflowing.
  ValueRange range_of(Affine const& affine) const {
    ValueRange range{affine.constant(), affine.constant()};
    for (Affine::Term const& term : affine.terms()) {
      ValueRange const values = nth(ranges_, term.variable);
      bool const falls = term.coefficient < 0;
      range.low = detail::saturating_sum(
          range.low, detail::saturating_product(term.coefficient, falls ? values.high : values.low));
      range.high = detail::saturating_sum(
          range.high, detail::saturating_product(term.coefficient, falls ? values.low : values.high));
    }
    return range;
  }

  /// Text such as: section "step" 1..7, key_tile_2 = 0..3, core 1
  std::string place() const {
    std::string text;
    if (section_)
      append_part(text, "section \"", section_->name, "\" ",
                  knows_all_of(section_->number) ? text_of(range_of(section_->number)) : std::string("last"));
    for (Loop const* loop : loops_) {
      auto const variable = static_cast<std::size_t>(loop->variable);
      append_part(text, program_->variables[variable], " = ", text_of(ranges_[variable]));
    }
    if (on_one_core_) append_part(text, "core ", ranges_[core_variable].low);
    return text;
  }

 private:
  static std::string text_of(ValueRange range) {
    return range.low == range.high ? detail::message_of(range.low) : detail::message_of(range.low, "..", range.high);
  }

  Program const* program_;
  std::vector<ValueRange> ranges_;
  std::vector<Loop const*> loops_;
  Section const* section_ = nullptr;
  bool on_one_core_ = false;
};

/// Passed to every rule; refers to the program, hardware, scope and fault list, which outlive it.
class Site {
 public:
  Site(Program const& of, Hardware const& on, Scope const& in, FaultList& faults, void const* node,
       std::string_view name)
      : program(of), limits(on.limits), scope(in), faults_(&faults), node_(node), name_(name) {}

  Program const& program;
  Limits const& limits;
  Scope const& scope;

  Buffer const& buffer(Access const& access) const { return program.buffer(access); }
  Memory memory(Access const& access) const { return buffer(access).memory; }
  ElementType type(Access const& access) const { return buffer(access).type; }

  /// Returns `holds`; if false, reports a finding whose message is `parts` concatenated.
  template <class... Parts>
  bool require(bool holds, Rule rule, std::string_view operand, Parts const&... parts) const {
    if (!holds)
      faults_->add(
          node_, rule, name_, [&] { return scope.place(); }, operand, parts...);
    return holds;
  }

 private:
  FaultList* faults_;
  void const* node_;
  std::string_view name_;
};

}  // namespace annulus::nki::validate_detail
