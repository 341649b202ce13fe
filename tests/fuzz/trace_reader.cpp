// Fuzz target: `annulus trace`. The input is the timeline.

#include <sstream>
#include <string>

#include "command/trace.hpp"
#include "command_unit/npy_file.hpp"
#include "fuzz/captured_output.hpp"
#include "fuzz/property.hpp"

namespace {

using annulus_fuzz::require;

/// The table: titles, numbers that are finite and not cut off, and what the columns mean.
void check_table(std::string const& table) {
  require(table.find("imbalance") != std::string::npos, "no table is printed: ", table);
  std::istringstream words(table);
  for (std::string word; words >> word;)
    require(word != "nan" && word != "inf" && word.size() < 32, "the table has the cell ", word);
}

/// The picture: a complete document whose numbers are finite.
void check_picture(std::filesystem::path const& path) {
  std::ifstream stream(path, std::ios::binary);
  std::string const text{std::istreambuf_iterator<char>(stream), {}};
  require(text.starts_with("<svg") && text.find("</svg>") != std::string::npos, "the picture is incomplete: ", text);
  require(text.find("nan") == std::string::npos && text.find("inf\"") == std::string::npos,
          "the picture has a coordinate that is not finite: ", text);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size) {
  static annulus_test::TemporaryFolder const folder;
  auto const file = folder.file("input.json", std::string(reinterpret_cast<char const*>(data), size));
  auto const picture = folder / "picture.svg";
  annulus_fuzz::CapturedOutput const output;
  try {
    annulus_command::run_trace({.trace = file, .svg = picture});
  } catch (annulus_command::InputError const& error) {
    require(annulus_test::is_clear(error.what(), "input.json"), "the message is not clear: ", error.what());
    return 0;
  }
  check_table(output.text());
  check_picture(picture);
  return 0;
}
