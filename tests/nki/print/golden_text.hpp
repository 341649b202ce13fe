#pragma once
// Texts in golden/: what is printed now is compared with them, or replaces them where that is asked for.

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "support/catch.hpp"

namespace annulus::nki::golden {

inline std::string text_of_file(std::filesystem::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline void check_as_kept(std::string const& file, std::string const& text) {
  std::filesystem::path const kept = std::filesystem::path(__FILE__).parent_path() / "golden" / file;
  if (std::getenv("ANNULUS_REGENERATE_GOLDEN")) std::ofstream(kept, std::ios::binary) << text;
  INFO("golden/" << file
                 << " differs from what is printed now. If that is meant, renew it with ANNULUS_REGENERATE_GOLDEN=1 "
                    "annulus_nki_tests \"*in golden*\" and read the difference before it is committed.");
  REQUIRE(std::filesystem::exists(kept));
  std::string const before = text_of_file(kept);
  // Long texts are not shown whole: the first line that differs says more.
  std::size_t line = 1, begin = 0;
  for (std::size_t i = 0; i < std::min(before.size(), text.size()) && before[i] == text[i]; ++i)
    if (text[i] == '\n') ++line, begin = i + 1;
  INFO("first difference in line " << line << ", now: " << text.substr(begin, text.find('\n', begin) - begin));
  CHECK((before == text));
}

}  // namespace annulus::nki::golden
