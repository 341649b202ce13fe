#pragma once
// Words of a printed kernel: spellings of NKI versions, literals of values, and names of buffers, loops and registers.

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "annulus/nki/program/program.hpp"

namespace annulus::nki {

/// NKI versions; 0.3 to 0.7 come with Neuron SDK 2.29 to 2.33.
enum class Version {
  nki_0_3,  ///< Neuron SDK 2.29
  nki_0_4,  ///< Neuron SDK 2.30
  nki_0_5,  ///< Neuron SDK 2.31
  nki_0_6,  ///< Neuron SDK 2.32
  nki_0_7,  ///< Neuron SDK 2.33
};

/// Spellings of one NKI version.
struct Spelling {
  std::string_view version;  ///< oldest version that accepts the text
  std::string_view sdk;      ///< Neuron SDK that it comes with
  bool launch_grid = true;   ///< the call names the cores, `kernel[2](...)`; else NEURON_LOGICAL_NC_CONFIG does
};

/// Spelling of a version. to_python() defaults to the oldest, nki_0_3. Later
/// versions accept its text, from 0.7 on only without the launch grid in the call.
///
/// Later versions added view methods, DMA priorities, names of collectives and run-time loops. Printed kernels need
/// none of these: access patterns replace views, and collectives must not be in run-time loops. affine_range and
/// similar older spellings of loops mean range() in all of these versions and are deprecated from 0.6.
constexpr Spelling spelling_of(Version version) {
  constexpr Spelling table[] = {
      {"0.3", "2.29"}, {"0.4", "2.30"}, {"0.5", "2.31"}, {"0.6", "2.32"}, {"0.7", "2.33", false}};
  return table[static_cast<int>(version)];
}

/// "NKI 0.3 (Neuron SDK 2.29) and later, before 0.7": what accepts the text and its launch.
inline std::string versions_of(Spelling const& spelling) {
  return concat("NKI ", spelling.version, " (Neuron SDK ", spelling.sdk, ") and later",
                spelling.launch_grid ? ", before 0.7" : "");
}

namespace print_detail {

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
inline bool is_letter_or_digit(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

inline std::string literal(bool value) { return value ? "True" : "False"; }
inline std::string literal(std::integral auto value) { return std::to_string(value); }
inline std::string literal(Operator op) { return concat("nl.", name_of(op)); }
inline std::string literal(Function function) { return concat("nl.", name_of(function)); }
inline std::string literal(Engine engine) { return concat("nisa.engine.", name_of(engine)); }
inline std::string literal(ReduceCommand command) { return concat("nisa.reduce_cmd.", name_of(command)); }
inline std::string literal(Axis const& axis) { return concat("[", axis.stride, ", ", axis.count, "]"); }

/// Shortest digits that Python reads as a double which rounds to `value`; a Python float, never an int. Throws
/// UnsupportedError unless `value` is finite.
inline std::string literal(float value) {
  detail::check<UnsupportedError>(std::isfinite(value), "an NKI kernel holds the value ", value,
                                  "; accepted: finite values, as Python has no literals for others");
  std::string text = text_of(value);
  double reread = 0;
  std::from_chars(text.data(), text.data() + text.size(), reread);
  // The shortest digits of a float may give another float when they are rounded to double first.
  if (static_cast<float>(reread) != value) text = text_of(static_cast<double>(value));
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

/// [2, 128, 64]
template <class Item>
std::string literal(std::vector<Item> const& items) {
  std::string text;
  for (Item const& item : items) text += (text.empty() ? "" : ", ") + literal(item);
  return "[" + text + "]";
}

/// [0] * 32: numbers that are all equal.
inline std::string literal(std::array<int, 32> const& numbers) {
  return concat("[", numbers.front(), "] * ", numbers.size());
}

/// (2, 128, 64); one extent: (64,).
inline std::string tuple(std::vector<Index> const& extents) {
  return concat("(", joined(extents), extents.size() == 1 ? ",)" : ")");
}

/// The text in capital letters.
inline std::string capitals(std::string text) {
  for (char& c : text) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return text;
}

/// Assigns unique names. The kernel and its buffers keep theirs, which callers see and which must be unique
/// identifiers. Internal names (core, loops, registers) get underscores on a collision. Throws UnsupportedError for a
/// name that is invalid, reserved or used twice.
class PythonNames {
 public:
  explicit PythonNames(Program const& program) : taken_(reserved_) {
    require_identifier("program", program.name);
    std::string const missing = dangling(program);
    detail::check<UnsupportedError>(missing.empty(), "the program ", program.name, ": ", missing,
                                    "; accepted: a program that passes validation");
    for (Buffer const& buffer : program.buffers) {
      require_identifier("buffer", buffer.name);
      detail::check<UnsupportedError>(
          taken_.insert(buffer.name).second, "the program ", program.name, " has a buffer named ", buffer.name,
          "; accepted: names used once that are none of Python's words, modules or arguments");
      buffers_.push_back(buffer.name);
    }
    for (std::string const& variable : program.variables) variables_.push_back(claim(variable));
    for (std::size_t i = 0; i < program.registers.size(); ++i) registers_.push_back(claim(concat("r", i)));
    for (char const* loop : {"i", "j", "k", "l"}) loops_.push_back(claim(loop));
  }

  std::string const& buffer(int number) const { return nth(buffers_, number); }
  /// Variables of loops of the printer, innermost first.
  std::vector<std::string> const& loops() const { return loops_; }
  std::vector<std::string> const& variables() const { return variables_; }
  std::string const& variable(Variable number) const { return nth(variables_, number); }
  std::string const& register_name(int number) const { return nth(registers_, number); }
  /// Names of the replica group of the ring and of its argument.
  static constexpr std::string_view ring = "ring", replica_groups = "replica_groups";
  /// Name of the argument that says of which mask a table is.
  static constexpr std::string_view mask_fingerprint = "mask_fingerprint";
  /// Names of the functions that check arguments.
  static constexpr std::string_view check = "check", check_groups = "check_groups";

  /// True for a name that has a value inside the kernel only.
  bool is_local(std::string const& name) const {
    return is_constant(name) || is_one_of(variables_, name) || is_one_of(registers_, name);
  }
  /// True for one that has the same value in the whole kernel: no variable of a loop, no register.
  bool is_constant(std::string const& name) const {
    return is_one_of(buffers_, name) || name == variables_.front() || name == ring;
  }
  /// A name like this one that nothing else has.
  std::string claim(std::string name) {
    for (char& c : name)
      if (!is_letter_or_digit(c)) c = '_';
    if (name.empty() || is_digit(name[0])) name.insert(0, "i");
    while (!taken_.insert(name).second) name += "_";
    return name;
  }

 private:
  static bool is_one_of(std::vector<std::string> const& names, std::string const& name) {
    return std::ranges::find(names, name) != names.end();
  }

  static void require_identifier(std::string_view what, std::string const& name) {
    bool good = !name.empty() && !is_digit(name[0]) && !reserved_.contains(name);
    for (char c : name) good = good && (c == '_' || is_letter_or_digit(c));
    detail::check<UnsupportedError>(
        good, "a ", what, " is named '", name,
        "'; accepted in a Python kernel: letters, digits and underscores, no reserved word");
  }

  inline static std::set<std::string> const reserved_{
      "False",    "None",        "True",     "and",  "as",     "assert", "async", "await",          "break",
      "case",     "class",       "continue", "def",  "del",    "elif",   "else",  "except",         "finally",
      "for",      "from",        "global",   "if",   "import", "in",     "is",    "lambda",         "match",
      "nonlocal", "not",         "or",       "pass", "raise",  "return", "try",   "while",          "with",
      "yield",    "range",       "nki",      "nisa", "nl",     "ncc",    "ring",  "replica_groups", "mask_fingerprint",
      "check",    "check_groups"};

  std::set<std::string> taken_;
  std::vector<std::string> buffers_, variables_, registers_, loops_;
};

}  // namespace print_detail

}  // namespace annulus::nki
