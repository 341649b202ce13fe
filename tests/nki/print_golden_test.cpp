#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "annulus/backend/nki/print/to_python.hpp"
#include "annulus/backend/nki/program/listing.hpp"
#include "nki/golden_programs.hpp"
#include "support/catch.hpp"

namespace annulus::nki {
namespace {

std::filesystem::path const folder = std::filesystem::path(__FILE__).parent_path() / "golden";

std::string read(std::filesystem::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

void require_as_kept(std::string const& file, std::string const& text) {
  INFO(
      file << " differs from what is printed now. If that is meant, run this test with ANNULUS_REGENERATE_GOLDEN=1 and "
              "read the difference.");
  if (std::getenv("ANNULUS_REGENERATE_GOLDEN")) std::ofstream(folder / file, std::ios::binary) << text;
  REQUIRE(std::filesystem::exists(folder / file));
  CHECK(read(folder / file) == text);
}

TEST_CASE("printed kernels are those kept in golden/") {
  for (Program const& program : golden::all()) require_as_kept(program.name + ".py", to_python(program));
}

TEST_CASE("listings are those kept in golden/") {
  for (Program const& program : golden::all()) require_as_kept(program.name + ".txt", listing(program));
}

}  // namespace
}  // namespace annulus::nki
