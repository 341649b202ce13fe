#pragma once
// Position of a symbolic execution as text: section, values of enclosing loops, core.

#include "annulus/nki/program/walk.hpp"
#include "annulus/core/check.hpp"

namespace annulus::nki::validate_detail {

/// Appends the loops that enclose a node, outermost first; false if the node is not in the body.
inline bool find_loops(Body const& body, Node const* wanted, std::vector<Loop const*>& loops) {
  for (Node const& node : body) {
    if (&node == wanted) return true;
    if (auto const* loop = node.as<Loop>()) {
      loops.push_back(loop);
      if (find_loops(loop->body, wanted, loops)) return true;
      loops.pop_back();
    } else if (auto const* branch = node.as<OnCore>()) {
      if (find_loops(branch->body, wanted, loops)) return true;
    }
  }
  return false;
}

/// Text such as: section "step" 3, key_tile_2 = 5, core 1
inline std::string place_of(Program const& program, Walk const& walk, Node const* node, Section const* section,
                            Index section_number) {
  std::string text;
  if (section) text = message_of("section \"", section->name, "\" ", section_number);
  std::vector<Loop const*> loops;
  find_loops(program.body, node, loops);
  for (Loop const* loop : loops) {
    auto const variable = static_cast<std::size_t>(loop->variable);
    text += message_of(text.empty() ? "" : ", ", program.variables[variable], " = ", walk.values()[variable]);
  }
  if (program.cores == 2) text += message_of(text.empty() ? "" : ", ", "core ", walk.core());
  return text;
}

}  // namespace annulus::nki::validate_detail
