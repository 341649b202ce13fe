#pragma once
// Writer of float32 .npy files, version 1.0.

#include <bit>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace annulus_test {

/// Writes values of the given shape in C order. Throws std::runtime_error if the file cannot be written.
inline void write_npy(std::filesystem::path const& path, std::vector<std::ptrdiff_t> const& shape,
                      std::vector<float> const& values) {
  static_assert(std::endian::native == std::endian::little, "the header below says little-endian");
  std::string extents;
  for (std::ptrdiff_t extent : shape) extents += std::to_string(extent) + ",";
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + extents + "), }";
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 11, ' ');
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file << std::string("\x93NUMPY\x01\x00", 8) << static_cast<char>(header.size() & 255)
       << static_cast<char>(header.size() >> 8) << header;
  file.write(reinterpret_cast<char const*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  file.close();
  if (!file) throw std::runtime_error(path.string() + ": cannot be written");
}

}  // namespace annulus_test
