#pragma once
// The header of a .npy file: a Python dictionary literal with the keys descr, fortran_order and shape, and no other.

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "npy_type.hpp"

namespace annulus_command {

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
        fail("unknown key '" + excerpt(key) + "'", "the keys descr, fortran_order and shape");
      }
      if (!take(',')) {
        expect('}', "',' or '}' after a value");
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) fail_here("nothing after the dictionary");
    if (!element) fail("no key 'descr'", "the keys descr, fortran_order and shape");
    if (!fortran_order) fail("no key 'fortran_order'", "the keys descr, fortran_order and shape");
    if (!shape) fail("no key 'shape'", "the keys descr, fortran_order and shape");
    return sized({*element, *fortran_order, std::move(*shape)});
  }

 private:
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
    auto const limit = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
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
    take('L');  // NumPy under Python 2 wrote long integers with a suffix
    return value;
  }

  /// Sizes of the data. Extents of 0 are left out of the product, so that the others must not overflow either.
  NpyHeader sized(NpyHeader header) const {
    auto const limit = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
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
