#pragma once
// Text of an affine index, for example "512 * tile + 64"; valid in Python and C.

#include <span>
#include <string>

#include "annulus/nki/program/affine.hpp"

namespace annulus::nki {

/// `names` holds the name of every variable, by number.
inline std::string text_of(Affine const& affine, std::span<std::string const> names) {
  std::string text;
  auto const add = [&](Index factor, std::string const& name) {
    bool const first = text.empty();
    Index const size = factor < 0 ? -factor : factor;
    text += first ? (factor < 0 ? "-" : "") : (factor < 0 ? " - " : " + ");
    if (name.empty() || size != 1) text += std::to_string(size);
    if (!name.empty()) text += (size != 1 ? " * " : "") + name;
  };
  for (Affine::Term const& term : affine.terms()) add(term.coefficient, names[static_cast<std::size_t>(term.variable)]);
  if (affine.constant() != 0 || text.empty()) add(affine.constant(), "");
  return text;
}

}  // namespace annulus::nki
