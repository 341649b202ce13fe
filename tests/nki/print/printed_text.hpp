#pragma once
// Parts of a printed kernel, for comparison in tests.

#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "annulus/nki/print/to_python.hpp"

namespace annulus::nki {

inline std::vector<std::string> lines_of(std::string const& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The statements of the kernel, multi-line calls joined to one line, indented relative to the kernel's body; without
/// functions before it, the checks of arguments, the declarations of tensors and tiles, the return and empty lines.
inline std::vector<std::string> statements_of(std::string const& module) {
  std::vector<std::string> statements;
  bool inside = false;
  int open = 0;
  for (std::string const& line : lines_of(module)) {
    std::size_t const text = line.find_first_not_of(' ');
    if (line == "@nki.jit") statements.clear(), inside = false;
    if (!inside) {
      inside = line.find("):") != std::string::npos && (line.starts_with("def ") || line.starts_with(" "));
      continue;
    }
    if (text == std::string::npos) continue;
    if (open > 0)
      statements.back() += (statements.back().ends_with('(') ? "" : " ") + line.substr(text);
    else
      statements.push_back(line.substr(4));
    for (char c : line) open += c == '(' ? 1 : c == ')' ? -1 : 0;
  }
  std::erase_if(statements, [](std::string const& statement) {
    return statement.find("nl.ndarray(") != std::string::npos || statement.starts_with("return ") ||
           statement.starts_with("check(") || statement.starts_with("check_groups(");
  });
  return statements;
}

}  // namespace annulus::nki
