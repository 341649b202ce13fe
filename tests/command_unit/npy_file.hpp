#pragma once
// Temporary folders, .npy files assembled byte by byte, and the messages of reading them.

#include <bit>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "command/npy.hpp"

namespace annulus_test {

/// A folder that the destructor removes.
class TemporaryFolder {
 public:
  TemporaryFolder()
      : path_(std::filesystem::temp_directory_path() / ("annulus-test-" + std::to_string(std::random_device{}()))) {
    if (!std::filesystem::create_directory(path_)) throw std::runtime_error(path_.string() + " exists");
  }
  TemporaryFolder(TemporaryFolder const&) = delete;
  TemporaryFolder& operator=(TemporaryFolder const&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::filesystem::path operator/(std::string const& name) const { return path_ / name; }
  std::filesystem::path const& path() const { return path_; }

  std::filesystem::path file(std::string const& name, std::string const& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

/// Content of a file: magic string, version, length of the dictionary, dictionary, data.
inline std::string npy_content(int version, std::string const& dictionary, std::string const& data) {
  std::string content = "\x93NUMPY";
  content += static_cast<char>(version);
  content += '\0';
  for (int byte = 0; byte < (version == 1 ? 2 : 4); ++byte)
    content += static_cast<char>(dictionary.size() >> (8 * byte) & 255);
  return content + dictionary + data;
}

inline std::string dictionary(std::string const& descr, std::string const& shape, bool fortran_order = false) {
  return "{'descr': '" + descr + "', 'fortran_order': " + (fortran_order ? "True" : "False") + ", 'shape': " + shape +
         ", }          \n";
}

/// The bytes of the values, in the given byte order.
template <class T>
std::string bytes_of(std::vector<T> const& values, std::endian order = std::endian::little) {
  std::string bytes;
  for (T const value : values) {
    std::string one(sizeof value, '\0');
    std::memcpy(one.data(), &value, sizeof value);
    bytes += order == std::endian::native ? one : std::string(one.rbegin(), one.rend());
  }
  return bytes;
}

/// The message of the InputError that `act` throws; "" if it throws none.
template <class Function>
std::string input_error_of(Function&& act) {
  try {
    std::forward<Function>(act)();
  } catch (annulus_command::InputError const& error) {
    return error.what();
  }
  return "";
}

inline bool contains(std::string const& text, std::string const& part) { return text.find(part) != std::string::npos; }

/// True if the message is one line that names the file and what is accepted.
inline bool is_clear(std::string const& message, std::string const& file_name) {
  return contains(message, file_name) && contains(message, "accepted") && !contains(message, "\n") &&
         message.size() < 500;
}

}  // namespace annulus_test
