#pragma once
// Text of numbers, lists and enumerators, the same in every locale.

#include <charconv>
#include <concepts>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>

namespace annulus::nki {

/// Strings and whole numbers one after the other.
template <class... Parts>
std::string concat(Parts const&... parts) {
  std::string text;
  auto const add = [&](auto const& part) {
    using Part = std::remove_cvref_t<decltype(part)>;
    static_assert(!std::same_as<Part, char> && !std::same_as<Part, bool>);
    if constexpr (std::integral<Part>)
      text += std::to_string(part);
    else
      text += part;
  };
  (add(parts), ...);
  return text;
}

/// The texts or whole numbers with commas between them.
template <class Items>
std::string joined(Items const& items) {
  std::string text;
  for (auto const& item : items) text += concat(text.empty() ? "" : ", ", item);
  return text;
}

/// The name of an enumerator; `names` are those of all, in their order.
template <class Enumerator>
constexpr std::string_view name_in(std::initializer_list<std::string_view> names, Enumerator value) {
  return names.begin()[static_cast<std::size_t>(value)];
}

/// The shortest digits from which the value can be read back.
template <std::floating_point Real>
std::string text_of(Real value) {
  char digits[64];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

}  // namespace annulus::nki
