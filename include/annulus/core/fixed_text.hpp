#pragma once
// Text of bounded length that never allocates, for error messages that must be available when memory is exhausted.

#include <array>
#include <charconv>
#include <concepts>
#include <cstddef>
#include <string_view>

namespace annulus {

/// At most `capacity` characters; excess characters are dropped. Trivially copyable and null-terminated.
template <std::size_t capacity>
class FixedText {
 public:
  FixedText() = default;
  template <class... Parts>
  explicit FixedText(Parts const&... parts) {
    add(parts...);
  }

  /// Appends strings and numbers. Floating-point numbers are written with up to `digits` significant digits.
  template <class... Parts>
  FixedText& add(Parts const&... parts) noexcept {
    (write(parts), ...);
    return *this;
  }
  void clear() noexcept { characters_ = {}; }

  bool empty() const noexcept { return characters_[0] == 0; }
  std::string_view view() const noexcept { return characters_.data(); }
  char const* c_str() const noexcept { return characters_.data(); }

  bool operator==(FixedText const&) const = default;

 private:
  static constexpr int digits = 17;

  void write(std::string_view word) noexcept {
    std::size_t const used = view().size();
    word.copy(characters_.data() + used, capacity - used);
  }
  template <class Number>
    requires(std::integral<Number> || std::floating_point<Number>)
  void write(Number number) noexcept {
    std::array<char, 40> written;
    std::to_chars_result result{};
    if constexpr (std::floating_point<Number>)
      result = std::to_chars(written.begin(), written.end(), number, std::chars_format::general, digits);
    else
      result = std::to_chars(written.begin(), written.end(), number);
    write(std::string_view(written.data(), static_cast<std::size_t>(result.ptr - written.data())));
  }

  std::array<char, capacity + 1> characters_{};
};

}  // namespace annulus
