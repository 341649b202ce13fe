// Main function of the fuzz targets in builds without libFuzzer: runs the target once on each file of the folders that
// are its arguments.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* data, std::size_t size);

namespace {

std::vector<std::filesystem::path> files_of(std::filesystem::path const& folder) {
  std::vector<std::filesystem::path> files;
  for (auto const& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

void replay(std::filesystem::path const& file) {
  std::fprintf(stderr, "%s\n", file.c_str());
  std::ifstream stream(file, std::ios::binary);
  if (!stream) throw std::filesystem::filesystem_error("cannot be read", file, std::error_code());
  std::vector<char> const bytes{std::istreambuf_iterator<char>(stream), {}};
  LLVMFuzzerTestOneInput(reinterpret_cast<std::uint8_t const*>(bytes.data()), bytes.size());
}

}  // namespace

int main(int argc, char** argv) {
  int replayed = 0;
  try {
    for (int i = 1; i < argc; ++i)
      for (auto const& file : files_of(argv[i])) {
        replay(file);
        ++replayed;
      }
  } catch (std::exception const& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  if (replayed == 0) std::fprintf(stderr, "no input was found; accepted: folders with inputs\n");
  return replayed == 0 ? 2 : 0;
}
