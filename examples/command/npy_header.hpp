#pragma once
// Header of a .npy file: a Python dictionary literal with the keys descr, fortran_order and shape, and no other.

#include <Eigen/Core>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "errors.hpp"

namespace annulus_command {

enum class NpyType {
  float16,
  float32,
  float64,
  bfloat16,
  boolean,
  int8,
  uint8,
  int16,
  uint16,
  int32,
  uint32,
  int64,
  uint64
};

/// C++ type of the elements, and NumPy's short name without byte order, by NpyType.
using NpyElements = std::tuple<Eigen::half, float, double, Eigen::bfloat16, bool, std::int8_t, std::uint8_t,
                               std::int16_t, std::uint16_t, std::int32_t, std::uint32_t, std::int64_t, std::uint64_t>;
inline constexpr std::array<char const*, std::tuple_size_v<NpyElements>> npy_names{
    "f2", "f4", "f8", "bfloat16", "b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"};

inline char const* name_of(NpyType type) { return npy_names[static_cast<std::size_t>(type)]; }

/// Calls f(std::type_identity<Element>{}) with the C++ type of the elements; boolean is bool.
template <class Function>
void with_element_type(NpyType type, Function&& f) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((I == static_cast<std::size_t>(type) ? f(std::type_identity<std::tuple_element_t<I, NpyElements>>{}) : void()),
     ...);
  }
  (std::make_index_sequence<std::tuple_size_v<NpyElements>>());
}

inline std::size_t element_size(NpyType type) {
  std::size_t size = 0;
  with_element_type(type, [&]<class T>(std::type_identity<T>) { size = sizeof(T); });
  return size;
}

inline bool is_floating(NpyType type) {
  return type == NpyType::float16 || type == NpyType::float32 || type == NpyType::float64 || type == NpyType::bfloat16;
}

/// Element type and byte order of a file.
struct NpyElement {
  NpyType type;
  bool big_endian;
};

inline constexpr char const* accepted_npy_types =
    "accepted are f2, f4, f8, b1, i1, i2, i4, i8, u1, u2, u4, u8 of either byte order, and V2 as bfloat16";

/// Reads a descr as NumPy writes it: an optional byte order and a short name. V2 is bfloat16, which NumPy knows only as
/// two opaque bytes; u2 is read as bfloat16 if `uint16_is_bfloat16`. Throws InputError that starts with `file`.
inline NpyElement parse_npy_descr(std::string const& file, std::string_view descr, bool uint16_is_bfloat16) {
  std::string_view name = descr;
  bool big_endian = false;
  if (!name.empty() && std::string_view("<>|=").find(name[0]) != std::string_view::npos) {
    big_endian = name[0] == '>';
    name.remove_prefix(1);
  }
  if (!name.empty() && name[0] == 'O')
    throw InputError(file + ": holds Python objects (dtype '" + excerpt(descr) + "'), a pickle that is never loaded; " +
                     accepted_npy_types);
  if (name == "V2" && !big_endian) return {NpyType::bfloat16, false};
  if (name == "u2" && uint16_is_bfloat16) return {NpyType::bfloat16, big_endian};
  for (std::size_t type = 0; type < npy_names.size(); ++type)
    if (name == npy_names[type] && name != "bfloat16") return {static_cast<NpyType>(type), big_endian};
  throw InputError(file + ": dtype '" + excerpt(descr) + "' is not supported; " + accepted_npy_types);
}

/// Parsed header of a .npy file.
struct NpyHeader {
  NpyElement element{};
  bool fortran_order = false;
  std::vector<std::size_t> shape;
  std::size_t count = 1;       ///< elements
  std::size_t data_bytes = 0;  ///< count * size of an element
};

/// A shape as Python writes it: (), (3,), (2, 3).
inline std::string shape_text(std::vector<std::size_t> const& shape) {
  std::string text = "(";
  for (std::size_t axis = 0; axis < shape.size(); ++axis) text += (axis == 0 ? "" : ", ") + std::to_string(shape[axis]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

namespace detail {

/// Parser of the Python subset that NumPy writes into a header. A recursive parser of all Python literals would accept
/// no more useful files and give hostile ones more to attack.
class NpyHeaderParser {
 public:
  NpyHeaderParser(std::string const& file, std::string_view text, bool uint16_is_bfloat16)
      : file_(file), text_(text), uint16_is_bfloat16_(uint16_is_bfloat16) {}

  NpyHeader parse() {
    std::optional<NpyElement> element;
    std::optional<bool> fortran_order;
    std::optional<std::vector<std::size_t>> shape;

    expect('{', "a dictionary");
    while (!take('}')) {
      std::string_view const key = string("a key in quotes");
      expect(':', "':' after a key");
      if (key == "descr") {
        set(element, key, descr());
      } else if (key == "fortran_order") {
        set(fortran_order, key, boolean());
      } else if (key == "shape") {
        set(shape, key, tuple());
      } else {
        fail("unknown key '" + excerpt(key) + "'", all_keys);
      }
      if (!take(',')) {
        expect('}', "',' or '}' after a value");
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail_here("nothing after the dictionary");
    if (!element) fail("no key 'descr'", all_keys);
    if (!fortran_order) fail("no key 'fortran_order'", all_keys);
    if (!shape) fail("no key 'shape'", all_keys);
    return sized({*element, *fortran_order, std::move(*shape)});
  }

 private:
  static constexpr char const* all_keys = "the keys descr, fortran_order and shape";
  static constexpr auto limit = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());

  [[noreturn]] void fail(std::string const& seen, std::string const& accepted) const {
    throw InputError(file_ + ": bad .npy header: " + seen + "; accepted: " + accepted);
  }

  [[noreturn]] void fail_here(std::string const& accepted) const {
    std::string_view const rest = text_.substr(at_);
    fail(rest.empty() ? "it ends at byte " + std::to_string(at_)
                      : "seen '" + excerpt(rest, 30) + "' at byte " + std::to_string(at_),
         accepted);
  }

  template <class Value>
  void set(std::optional<Value>& slot, std::string_view key, Value value) {
    if (slot) fail("key '" + std::string(key) + "' twice", "each key once");
    slot = std::move(value);
  }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\r\n\f").find(text_[at_]) != std::string_view::npos) ++at_;
  }

  bool take(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c, char const* accepted) {
    if (!take(c)) fail_here(accepted);
  }

  bool take_word(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  std::string_view string(char const* accepted) {
    skip_space();
    if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) fail_here(accepted);
    std::size_t const end = text_.find(text_[at_], at_ + 1);
    if (end == std::string_view::npos) fail_here("a string with both of its quotes");
    std::string_view const content = text_.substr(at_ + 1, end - at_ - 1);
    if (content.find('\\') != std::string_view::npos) fail_here("a string without escapes");
    at_ = end + 1;
    return content;
  }

  NpyElement descr() {
    skip_space();
    if (at_ < text_.size() && (text_[at_] == '[' || text_[at_] == '(' || text_[at_] == '{'))
      throw InputError(file_ + ": holds a structured dtype, descr " + excerpt(text_.substr(at_), 30) + "; " +
                       accepted_npy_types);
    return parse_npy_descr(file_, string("a dtype in quotes"), uint16_is_bfloat16_);
  }

  bool boolean() {
    if (take_word("True")) return true;
    if (!take_word("False")) fail_here("fortran_order True or False");
    return false;
  }

  std::vector<std::size_t> tuple() {
    std::vector<std::size_t> extents;
    expect('(', "a shape in parentheses");
    bool comma = true;
    while (!take(')')) {
      if (!comma) fail_here("',' or ')' in the shape");
      extents.push_back(extent());
      comma = take(',');
    }
    if (extents.size() == 1 && !comma) fail("shape is a number in parentheses", "a tuple, (n,) for one axis");
    return extents;
  }

  std::size_t extent() {
    skip_space();
    std::size_t const begin = at_;
    std::size_t value = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_) {
      auto const digit = static_cast<std::size_t>(text_[at_] - '0');
      if (value > (limit - digit) / 10) {
        at_ = begin;
        fail_here("extents below 2^63");
      }
      value = 10 * value + digit;
    }
    if (at_ == begin) fail_here("extents that are whole numbers and not negative");
    if (text_[begin] == '0' && value != 0) {
      at_ = begin;
      fail_here("extents without leading zeros, which Python refuses");
    }
    take('L');  // NumPy under Python 2 wrote long integers with a suffix
    return value;
  }

  /// Sizes of the data. Extents of 0 are left out of the product, so that the others must not overflow either.
  NpyHeader sized(NpyHeader header) const {
    std::size_t bytes = element_size(header.element.type);
    for (std::size_t const extent : header.shape) {
      if (extent == 0) header.count = 0;
      if (extent != 0 && bytes > limit / extent)
        fail("shape " + excerpt(shape_text(header.shape)) + " of " + name_of(header.element.type) + " is too large",
             "less than 2^63 bytes");
      if (extent != 0) bytes *= extent;
    }
    if (header.count != 0) {
      header.data_bytes = bytes;
      header.count = bytes / element_size(header.element.type);
    }
    return header;
  }

  std::string const& file_;
  std::string_view text_;
  bool uint16_is_bfloat16_;
  std::size_t at_ = 0;
};

}  // namespace detail

/// Parses the text of a header; uint16_is_bfloat16: u2 is read as bfloat16. Throws InputError that starts with `file`.
inline NpyHeader parse_npy_header(std::string const& file, std::string_view text, bool uint16_is_bfloat16 = false) {
  return detail::NpyHeaderParser(file, text, uint16_is_bfloat16).parse();
}

}  // namespace annulus_command
