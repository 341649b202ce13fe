#pragma once
// Affine indices: integer linear combinations of loop variables, and their text; elements of lists by signed number.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "annulus/core/index.hpp"

namespace annulus::nki {

/// Element `number` of a list; numbers are signed here, or enumerators.
template <class Items, class Number>
constexpr decltype(auto) nth(Items& items, Number number) {
  return items[static_cast<std::size_t>(number)];
}

/// Number of a variable of a program: 0 is the core within an LNC pair, the others are loop variables.
using Variable = int;
/// The variable that is the core within an LNC pair.
inline constexpr Variable core_variable = 0;

/// constant + sum of coefficient * variable. Terms are ordered by variable; none has the coefficient 0.
class Affine {
 public:
  /// coefficient * variable.
  struct Term {
    Variable variable = 0;  ///< number of the variable
    Index coefficient = 0;  ///< never 0 in an index
    bool operator==(Term const&) const = default;
  };

  constexpr Affine(Index constant = 0) : constant_(constant) {}  ///< a constant index

  /// coefficient * variable.
  static Affine of(Variable variable, Index coefficient = 1) {
    Affine affine;
    affine.add_term({variable, coefficient});
    return affine;
  }

  Index constant() const { return constant_; }            ///< the value if all variables are 0
  std::span<Term const> terms() const { return terms_; }  ///< ordered by variable
  bool is_constant() const { return terms_.empty(); }     ///< true without terms
  bool operator==(Affine const&) const = default;

  /// Evaluates the index; `values` holds the value of every variable, by number.
  Index at(std::span<Index const> values) const {
    Index sum = constant_;
    for (auto const& [variable, coefficient] : terms_) sum += coefficient * nth(values, variable);
    return sum;
  }

  /// Adds an index.
  Affine& operator+=(Affine const& other) {
    constant_ += other.constant_;
    for (Term const& term : other.terms_) add_term(term);
    return *this;
  }
  friend Affine operator+(Affine a, Affine const& b) { return a += b; }  ///< sum
  /// Product with a number.
  friend Affine operator*(Affine a, Index factor) {
    if (factor == 0) return {};
    a.constant_ *= factor;
    for (Term& term : a.terms_) term.coefficient *= factor;
    return a;
  }
  friend Affine operator-(Affine a, Affine const& b) { return a += b * -1; }  ///< difference

  /// Coefficient of a variable; 0 if the index does not depend on it.
  Index coefficient(Variable variable) const {
    auto const term = std::ranges::find(terms_, variable, &Term::variable);
    return term == terms_.end() ? 0 : term->coefficient;
  }
  /// The index with `value` in place of a variable.
  Affine with(Variable variable, Affine const& value) const {
    return *this + (value - of(variable)) * coefficient(variable);
  }

 private:
  void add_term(Term const& term) {
    auto const place = std::ranges::lower_bound(terms_, term.variable, {}, &Term::variable);
    if (place == terms_.end() || place->variable != term.variable) {
      if (term.coefficient != 0) terms_.insert(place, term);
    } else if ((place->coefficient += term.coefficient) == 0) {
      terms_.erase(place);
    }
  }

  Index constant_ = 0;
  std::vector<Term> terms_;
};

/// Text such as "512 * tile + 64", valid in Python and C; `names` holds the name of every variable, by number.
inline std::string text_of(Affine const& affine, std::span<std::string const> names) {
  std::string text;
  auto const add = [&](Index factor, std::string const& name) {
    bool const first = text.empty();
    Index const size = factor < 0 ? -factor : factor;
    text += first ? (factor < 0 ? "-" : "") : (factor < 0 ? " - " : " + ");
    if (name.empty() || size != 1) text += std::to_string(size);
    if (!name.empty()) text += (size != 1 ? " * " : "") + name;
  };
  for (auto const& [variable, coefficient] : affine.terms()) add(coefficient, nth(names, variable));
  if (affine.constant() != 0 || text.empty()) add(affine.constant(), "");
  return text;
}

}  // namespace annulus::nki
