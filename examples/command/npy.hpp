#pragma once
// NumPy's .npy files: read_npy(path) -> NpyArray (versions 1.0, 2.0 and 3.0), pending_npy and write_npy (version 1.0).

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "npy_header.hpp"
#include "pending_file.hpp"

namespace annulus_command {

/// Array in the element type and axis order of its file, with elements in native byte order.
struct NpyArray {
  std::string file;  ///< where it came from, for messages
  NpyType type = NpyType::float32;
  std::vector<std::size_t> shape;  ///< empty for a scalar
  bool fortran_order = false;      ///< the first axis is the fastest in `bytes`
  std::vector<std::byte> bytes;

  std::size_t count() const { return bytes.size() / element_size(type); }

  /// The elements in C order. To float, double, Eigen::half or Eigen::bfloat16 every element type converts, through
  /// float for 16-bit T. To std::int64_t boolean and integer elements convert; throws InputError for others and for a
  /// u8 value that does not fit.
  template <class T>
  std::vector<T> to() const;

  /// The elements in C order as 1 and 0. Accepted: boolean, and integers that are 0 or 1; throws InputError otherwise.
  std::vector<char> to_mask() const;
};

namespace detail {

template <class Element>
Element element_at(NpyArray const& array, std::size_t place) {
  std::byte const* const source = array.bytes.data() + place * sizeof(Element);
  if constexpr (std::is_same_v<Element, bool>) {
    return *source != std::byte{0};  // a byte other than 0 and 1 must not be copied into a bool
  } else if constexpr (std::is_arithmetic_v<Element>) {
    Element element;
    std::memcpy(&element, source, sizeof element);
    return element;
  } else {
    std::uint16_t bits;
    std::memcpy(&bits, source, sizeof bits);
    return Eigen::numext::bit_cast<Element>(bits);
  }
}

/// Calls f(element) for each element in C order.
template <class Element, class Function>
void for_each_element(NpyArray const& array, Function&& f) {
  std::size_t const count = array.count();
  if (!array.fortran_order) {
    for (std::size_t place = 0; place < count; ++place) f(element_at<Element>(array, place));
    return;
  }
  std::size_t const axes = array.shape.size();
  std::vector<std::size_t> index(axes, 0);
  std::vector<std::size_t> stride(axes, 1);
  for (std::size_t axis = 1; axis < axes; ++axis) stride[axis] = stride[axis - 1] * array.shape[axis - 1];
  std::size_t place = 0;
  for (std::size_t visited = 0; visited < count; ++visited) {
    f(element_at<Element>(array, place));
    for (std::size_t axis = axes; axis-- > 0;) {
      place += stride[axis];
      if (++index[axis] < array.shape[axis]) break;
      place -= stride[axis] * array.shape[axis];
      index[axis] = 0;
    }
  }
}

template <class T, class Element>
T floating_cast(Element element) {
  if constexpr (std::is_arithmetic_v<T> && std::is_arithmetic_v<Element>)
    return static_cast<T>(element);
  else
    return static_cast<T>(static_cast<float>(element));
}

}  // namespace detail

template <class T>
std::vector<T> NpyArray::to() const {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, Eigen::half> ||
                    std::is_same_v<T, Eigen::bfloat16> || std::is_same_v<T, std::int64_t>,
                "elements convert to float, double, Eigen::half, Eigen::bfloat16 or std::int64_t");
  constexpr bool to_integer = std::is_same_v<T, std::int64_t>;
  if (to_integer && is_floating(type))
    throw InputError(file + ": holds " + name_of(type) +
                     " where whole numbers are needed; accepted are b1, i1, i2, i4, i8, u1, u2, u4, u8");
  std::vector<T> values;
  values.reserve(count());
  with_element_type(type, [&]<class Element>(std::type_identity<Element>) {
    detail::for_each_element<Element>(*this, [&](Element element) {
      if constexpr (!to_integer) {
        values.push_back(detail::floating_cast<T>(element));
      } else if constexpr (std::is_integral_v<Element>) {
        if constexpr (std::is_same_v<Element, std::uint64_t>)
          if (element > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
            throw InputError(file + ": holds the whole number " + std::to_string(element) +
                             "; accepted are those below 2^63");
        values.push_back(static_cast<T>(element));
      }
    });
  });
  return values;
}

inline std::vector<char> NpyArray::to_mask() const {
  std::string const accepted = "; accepted for a mask: b1, or whole numbers that are 0 or 1";
  if (is_floating(type)) throw InputError(file + ": holds " + name_of(type) + accepted);
  std::vector<char> values;
  values.reserve(count());
  with_element_type(type, [&]<class Element>(std::type_identity<Element>) {
    if constexpr (std::is_integral_v<Element>)
      detail::for_each_element<Element>(*this, [&](Element element) {
        if (element != 0 && element != 1) throw InputError(file + ": holds " + std::to_string(element) + accepted);
        values.push_back(element != 0 ? 1 : 0);
      });
  });
  return values;
}

namespace detail {

/// A regular file of known size, open for reading. Every failure throws InputError.
class NpyInput {
 public:
  explicit NpyInput(std::filesystem::path const& path) : file_(path.string()) {
    std::error_code error;
    auto const status = std::filesystem::status(path, error);
    if (status.type() == std::filesystem::file_type::not_found) fail("does not exist");
    if (error) fail("cannot be read (" + error.message() + ")");
    if (std::filesystem::is_directory(status)) fail("is a folder");
    // Reading a pipe may block, and a device may be endless.
    if (!std::filesystem::is_regular_file(status)) fail("is not a regular file");
    size_ = std::filesystem::file_size(path, error);
    if (error) fail("has no known size (" + error.message() + ")");
    errno = 0;
    stream_.open(path, std::ios::binary);
    if (!stream_) fail("cannot be opened (" + system_reason() + ")");
  }

  [[noreturn]] void fail(std::string const& seen) const {
    throw InputError(file_ + ": " + seen + "; accepted is a .npy file as numpy.save writes it");
  }

  std::string const& file() const { return file_; }
  std::uintmax_t remaining() const { return size_ - position_; }

  /// Reads the next `count` bytes. part: their name in the message for a file that is too short.
  void read(void* target, std::size_t count, char const* part) {
    if (count > remaining()) fail("ends after " + std::to_string(size_) + " bytes, inside " + part);
    errno = 0;
    stream_.read(static_cast<char*>(target), static_cast<std::streamsize>(count));
    if (!stream_) fail(std::string("cannot be read, inside ") + part + " (" + system_reason() + ")");
    position_ += count;
  }

 private:
  static std::string system_reason() {
    return errno == 0 ? "it changed while it was read" : std::generic_category().message(errno);
  }

  std::string file_;
  std::uintmax_t size_ = 0;
  std::uintmax_t position_ = 0;
  std::ifstream stream_;
};

inline NpyHeader read_npy_header(NpyInput& input, bool uint16_is_bfloat16) {
  constexpr std::string_view magic = "\x93NUMPY";
  // Larger headers exist only for structured dtypes, which are refused anyway.
  constexpr std::size_t longest_header = 65535;

  std::string prefix(std::min<std::uintmax_t>(magic.size(), input.remaining()), '\0');
  input.read(prefix.data(), prefix.size(), "its first bytes");
  if (prefix != magic.substr(0, prefix.size()))
    input.fail(prefix.substr(0, 2) == "PK" ? "is a zip archive, perhaps .npz, which holds several arrays"
                                           : "starts with '" + excerpt(prefix) + "', not with '\\x93NUMPY'");
  if (prefix.empty()) input.fail("is empty");
  if (prefix.size() < magic.size()) input.fail("ends after " + std::to_string(prefix.size()) + " bytes");

  unsigned char version[2];
  input.read(version, sizeof version, "the version of the format");
  if (version[0] < 1 || version[0] > 3 || version[1] != 0)
    input.fail("has format version " + std::to_string(version[0]) + "." + std::to_string(version[1]) +
               ", known are 1.0, 2.0 and 3.0");

  unsigned char length_bytes[4] = {};
  input.read(length_bytes, version[0] == 1 ? 2 : 4, "the length of the header");
  std::size_t length = 0;
  for (int byte = 3; byte >= 0; --byte) length = length << 8 | length_bytes[byte];
  if (length > longest_header)
    input.fail("claims a header of " + std::to_string(length) + " bytes, the longest accepted has " +
               std::to_string(longest_header));
  if (length > input.remaining())
    input.fail("claims a header of " + std::to_string(length) + " bytes and ends " + std::to_string(input.remaining()) +
               " bytes later");
  std::string text(length, '\0');
  input.read(text.data(), length, "the header");
  return parse_npy_header(input.file(), text, uint16_is_bfloat16);
}

}  // namespace detail

struct NpyReadOptions {
  bool uint16_is_bfloat16 = false;  ///< elements of type u2 are read as bfloat16
};

/// Reads a .npy file. Throws InputError, one line that names the file, if it is invalid or incomplete;
/// std::runtime_error if its data do not fit into memory, which is allocated only after the file size is checked.
/// Python objects (pickles) are never loaded.
inline NpyArray read_npy(std::filesystem::path const& path, NpyReadOptions options = {}) {
  detail::NpyInput input(path);
  NpyHeader header = detail::read_npy_header(input, options.uint16_is_bfloat16);
  if (input.remaining() != header.data_bytes)
    throw InputError(input.file() + ": holds " + std::to_string(input.remaining()) + " bytes of data, " +
                     name_of(header.element.type) + " of shape " + excerpt(shape_text(header.shape)) + " has " +
                     std::to_string(header.data_bytes) + "; accepted is a complete file and nothing after its data");
  NpyArray array;
  array.file = input.file();
  array.type = header.element.type;
  array.shape = std::move(header.shape);
  array.fortran_order = header.fortran_order;
  try {
    array.bytes.resize(header.data_bytes);
  } catch (std::bad_alloc const&) {
    throw std::runtime_error(detail::one_line(input.file()) + ": its " + std::to_string(header.data_bytes) +
                             " bytes of data do not fit into memory; accepted are arrays that do");
  }
  input.read(array.bytes.data(), array.bytes.size(), "its data");
  bool const native_order = header.element.big_endian == (std::endian::native == std::endian::big);
  std::size_t const element = element_size(array.type);
  for (std::size_t begin = 0; !native_order && begin + element <= array.bytes.size(); begin += element)
    std::reverse(array.bytes.data() + begin, array.bytes.data() + begin + element);
  return array;
}

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
