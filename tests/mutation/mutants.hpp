#pragma once
// Mutant schemata (Untch, Offutt and Harrold, 1993): all mutants of the headers are in one program. run.py writes
// `a < mutants::Less<17>{} < b` for `a < b`. The environment variable ANNULUS_MUTANT chooses the one that is on;
// ANNULUS_MUTANTS_REACHED names a file to which a program appends the numbers of those that it has evaluated.
//
// Constant expressions, and operands for which the other operator does not exist, keep the original.

#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <type_traits>

namespace mutants {

inline int const chosen = std::getenv("ANNULUS_MUTANT") != nullptr ? std::atoi(std::getenv("ANNULUS_MUTANT")) : 0;

struct Reached {
  std::array<std::atomic<bool>, 4096> numbers{};
  ~Reached() {
    char const* const file = std::getenv("ANNULUS_MUTANTS_REACHED");
    if (file == nullptr) return;
    std::ofstream out(file, std::ios::app);
    for (std::size_t number = 0; number < numbers.size(); ++number)
      if (numbers[number]) out << number << '\n';
  }
};
inline Reached reached;

/// Whether mutant `number` is on; notes that it was asked.
inline bool is_on(int number) {
  reached.numbers[static_cast<std::size_t>(number)].store(true, std::memory_order_relaxed);
  return chosen == number;
}

}  // namespace mutants

// A kind of mutant: `Kind<number>{}` stands between two of the original operator.
#define ANNULUS_MUTANT(Kind, original, mutant)                                                             \
  namespace mutants {                                                                                      \
  template <int number>                                                                                    \
  struct Kind {                                                                                            \
    template <class Left>                                                                                  \
    struct Of {                                                                                            \
      Left const& left;                                                                                    \
      template <class Right>                                                                               \
      constexpr auto operator original(Right const& right) const {                                         \
        using Result = decltype(left original right);                                                      \
        if constexpr (requires { { left mutant right } -> std::same_as<Result>; })                          \
          if (!std::is_constant_evaluated() && is_on(number)) return static_cast<Result>(left mutant right); \
        return left original right;                                                                        \
      }                                                                                                    \
    };                                                                                                     \
    template <class Left>                                                                                  \
    friend constexpr Of<Left> operator original(Left const& left, Kind) {                                  \
      return {left};                                                                                       \
    }                                                                                                      \
  };                                                                                                       \
  }
ANNULUS_MUTANT(Less, <, <=)
ANNULUS_MUTANT(LessEqual, <=, <)
ANNULUS_MUTANT(Greater, >, >=)
ANNULUS_MUTANT(GreaterEqual, >=, >)
ANNULUS_MUTANT(Equal, ==, !=)
ANNULUS_MUTANT(NotEqual, !=, ==)
ANNULUS_MUTANT(Plus, +, -)
ANNULUS_MUTANT(Minus, -, +)
#undef ANNULUS_MUTANT
