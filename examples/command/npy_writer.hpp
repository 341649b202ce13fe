#pragma once
// Writing .npy files, version 1.0, so that a file of the given name is either complete or not there.

#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "input_error.hpp"
#include "npy_header.hpp"

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

/// A complete .npy file under a temporary name in the folder of its final one. commit() gives it that name;
/// without it the file is removed. Prepare all results of a run, then commit them: a full disk then leaves nothing.
class PendingNpy {
 public:
  /// Writes `values` [shape, C order], float or double. Throws InputError when `path` cannot be written, or names
  /// something that is there and is no regular file.
  template <class T>
  PendingNpy(std::filesystem::path path, std::vector<std::size_t> const& shape, std::span<T const> values)
      : path_(std::move(path)) {
    static_assert(std::is_same_v<T, float> || std::is_same_v<T, double>, "results are written as f4 or f8");
    std::size_t count = 1;
    for (std::size_t const extent : shape) count *= extent;
    if (count != values.size())
      throw std::logic_error("shape " + shape_text(shape) + " given for " + std::to_string(values.size()) + " values");
    std::string const preamble =
        detail::npy_preamble(name_of(std::is_same_v<T, float> ? NpyType::float32 : NpyType::float64), shape);
    refuse_what_is_no_file();
    write(preamble, values.data(), values.size_bytes());
  }

  PendingNpy(PendingNpy&& other) noexcept
      : path_(std::move(other.path_)), temporary_(std::exchange(other.temporary_, {})) {}
  PendingNpy& operator=(PendingNpy&& other) noexcept {
    std::swap(path_, other.path_);
    std::swap(temporary_, other.temporary_);
    return *this;
  }
  ~PendingNpy() { remove_temporary(); }

  /// Replaces a file of the final name, in one step.
  void commit() {
    if (temporary_.empty()) throw std::logic_error("commit() of a file that was moved away or is committed");
    std::error_code error;
    std::filesystem::rename(temporary_, path_, error);
    if (error) fail(error.message());
    temporary_.clear();
  }

 private:
  [[noreturn]] void fail(std::string const& reason) const {
    throw InputError(path_.string() + ": cannot be written (" + reason +
                     "); accepted is a name in an existing folder that can be written, on a disk with room");
  }

  [[noreturn]] void fail_with_errno() const { fail(std::generic_category().message(errno)); }

  /// A rename would put a file in the place of a device or a pipe of that name.
  void refuse_what_is_no_file() const {
    std::error_code error;
    auto const status = std::filesystem::status(path_, error);
    if (!std::filesystem::exists(status)) return;
    if (!std::filesystem::is_regular_file(status))
      fail(std::filesystem::is_directory(status) ? "it is a folder" : "it is there and not a regular file");
  }

  void remove_temporary() noexcept {
    std::error_code ignored;
    if (!temporary_.empty()) std::filesystem::remove(temporary_, ignored);
    temporary_.clear();
  }

  /// Opens a file that did not exist before: what another run, or somebody else, has there is never written into.
  std::FILE* open_temporary() {
    std::random_device device;
    for (int attempt = 0; attempt < 16; ++attempt) {
      std::filesystem::path candidate = path_.parent_path() / (".annulus-" + std::to_string(device()) + ".npy.partial");
      if (std::FILE* file = std::fopen(candidate.c_str(), "wbx")) {
        temporary_ = std::move(candidate);
        return file;
      }
      if (errno != EEXIST) break;
    }
    fail_with_errno();
  }

  void write(std::string const& preamble, void const* data, std::size_t bytes) {
    struct Close {
      void operator()(std::FILE* file) const { std::fclose(file); }
    };
    std::unique_ptr<std::FILE, Close> file(open_temporary());
    try {
      if (std::fwrite(preamble.data(), 1, preamble.size(), file.get()) != preamble.size()) fail_with_errno();
      if (bytes != 0 && std::fwrite(data, 1, bytes, file.get()) != bytes) fail_with_errno();
      if (std::fclose(file.release()) != 0) fail_with_errno();
    } catch (...) {
      remove_temporary();
      throw;
    }
  }

  std::filesystem::path path_;
  std::filesystem::path temporary_;  ///< empty: nothing to remove
};

/// Writes one file: PendingNpy and commit() in one.
template <class T>
void write_npy(std::filesystem::path const& path, std::vector<std::size_t> const& shape, std::vector<T> const& values) {
  PendingNpy(path, shape, std::span<T const>(values)).commit();
}

}  // namespace annulus_command
