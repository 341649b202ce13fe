#pragma once
// Position of the text pass in a program, and the range of values of each loop variable there.

#include <string>
#include <vector>

#include "annulus/nki/program/program.hpp"
#include "annulus/core/check.hpp"

namespace annulus::nki::validate_detail {

/// Closed interval [low, high].
struct ValueRange {
  Index low = 0, high = 0;
};

/// The sections, loops and core branches around the current node; bounds index expressions by interval arithmetic.
class Scope {
 public:
  explicit Scope(Program const& program)
      : program_(&program), ranges_(program.variables.size()), open_(program.variables.size(), false) {
    ranges_[core_variable] = {0, program.cores - 1};
    open_[core_variable] = true;
  }

  /// Calls inside() with the loop's variable in scope.
  template <class Inside>
  void in_loop(Loop const& loop, Inside&& inside) {
    auto const variable = static_cast<std::size_t>(loop.variable);
    ranges_[variable] = {0, std::max<Index>(loop.count - 1, 0)};
    open_[variable] = true;
    loops_.push_back(&loop);
    inside();
    loops_.pop_back();
    open_[variable] = false;
  }

  /// Calls inside() with the core variable fixed to `core`.
  template <class Inside>
  void on_core(int core, Inside&& inside) {
    ValueRange const before = ranges_[core_variable];
    bool const was_one = on_one_core_;
    ranges_[core_variable] = {core, core};
    on_one_core_ = true;
    inside();
    on_one_core_ = was_one;
    ranges_[core_variable] = before;
  }

  void begin(Section const& section) { section_ = &section; }

  bool on_one_core() const { return on_one_core_; }
  /// True if the variable is in scope: the core, or that of an enclosing loop.
  bool knows(Variable variable) const {
    return variable >= 0 && static_cast<std::size_t>(variable) < open_.size() &&
           open_[static_cast<std::size_t>(variable)];
  }
  bool knows_all_of(Affine const& affine) const {
    for (Affine::Term const& term : affine.terms())
      if (!knows(term.variable)) return false;
    return true;
  }
  /// Bounds of an expression whose variables are all in scope; saturates instead of overflowing.
  ValueRange range_of(Affine const& affine) const {
    ValueRange range{affine.constant(), affine.constant()};
    for (Affine::Term const& term : affine.terms()) {
      ValueRange const values = ranges_[static_cast<std::size_t>(term.variable)];
      bool const falls = term.coefficient < 0;
      range.low = saturating_add(range.low, saturating_multiply(term.coefficient, falls ? values.high : values.low));
      range.high = saturating_add(range.high, saturating_multiply(term.coefficient, falls ? values.low : values.high));
    }
    return range;
  }

  /// Text such as: section "step" 1..7, key_tile_2 = 0..3, core 1
  std::string place() const {
    std::string text;
    if (section_)
      text = message_of("section \"", section_->name, "\" ",
                        knows_all_of(section_->number) ? text_of(range_of(section_->number)) : std::string("last"));
    for (Loop const* loop : loops_)
      text += message_of(text.empty() ? "" : ", ", program_->variables[static_cast<std::size_t>(loop->variable)], " = ",
                         text_of(ranges_[static_cast<std::size_t>(loop->variable)]));
    if (on_one_core_) text += message_of(text.empty() ? "" : ", ", "core ", ranges_[core_variable].low);
    return text;
  }

 private:
  static std::string text_of(ValueRange range) {
    return range.low == range.high ? message_of(range.low) : message_of(range.low, "..", range.high);
  }

  Program const* program_;
  std::vector<ValueRange> ranges_;
  std::vector<bool> open_;
  std::vector<Loop const*> loops_;
  Section const* section_ = nullptr;
  bool on_one_core_ = false;
};

}  // namespace annulus::nki::validate_detail
