#pragma once
// Writer of .npy files, version 1.0. A file appears under its name only when it is complete.

#include <bit>
#include <cstddef>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "npy_header.hpp"
#include "pending_file.hpp"

namespace annulus_command {

namespace detail {

/// Magic string, version, length and dictionary, padded with spaces so that the data begins at a multiple of 64 bytes.
inline std::string npy_preamble(char const* type_name, std::vector<std::size_t> const& shape) {
  std::size_t const fixed = 10;
  char const order = std::endian::native == std::endian::little ? '<' : '>';
  std::string dictionary = std::string("{'descr': '") + order + type_name +
                           "', 'fortran_order': False, 'shape': " + shape_text(shape) + ", }";
  while ((fixed + dictionary.size() + 1) % 64 != 0) dictionary += ' ';
  dictionary += '\n';
  if (dictionary.size() > 65535) throw std::logic_error("a shape of this many axes needs a later .npy version");
  std::string preamble("\x93NUMPY\x01\x00", 8);
  preamble += static_cast<char>(dictionary.size() & 255);
  preamble += static_cast<char>(dictionary.size() >> 8);
  return preamble + dictionary;
}

}  // namespace detail

/// Writes `values`, float or double in C order, as a .npy file that commit() gives the name `path`. Throws InputError
/// if `path` cannot be written, std::runtime_error if writing fails.
template <class T>
PendingFile pending_npy(std::filesystem::path path, std::vector<std::size_t> const& shape, std::span<T const> values) {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "results are written as f4 or f8");
  std::size_t count = 1;
  for (std::size_t const extent : shape) count *= extent;
  if (count != values.size())
    throw std::logic_error("shape " + shape_text(shape) + " given for " + std::to_string(values.size()) + " values");
  std::string const preamble =
      detail::npy_preamble(name_of(std::is_same_v<T, float> ? NpyType::float32 : NpyType::float64), shape);
  PendingFile file(std::move(path));
  file.write(preamble.data(), preamble.size());
  file.write(values.data(), values.size_bytes());
  file.close();
  return file;
}

/// Writes one file: pending_npy and commit().
template <class T>
void write_npy(std::filesystem::path const& path, std::vector<std::size_t> const& shape, std::vector<T> const& values) {
  pending_npy(path, shape, std::span<T const>(values)).commit();
}

}  // namespace annulus_command
