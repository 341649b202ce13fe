#pragma once
// Statements of a printed kernel as text, the whole numbers in them, and its loops: up to four statements that repeat
// with integers that advance by constant steps become `for i in range(n):`. program/roll.hpp rolls bodies of a program
// while it is built, so all that reads the program sees these loops; those of this file are in the text alone.

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/nki/print/python_names.hpp"
#include "annulus/nki/program/roll.hpp"

namespace annulus::nki::print_detail {

/// A statement, or a block with its head.
struct Statement {
  /// Between the function of a call and its arguments.
  static constexpr char separator = '\x1f';
  /// Only plain statements move into functions; comments also keep out of loops. The body of a schedule are its rows.
  enum class Kind { plain, comment, assignment, schedule };

  std::string text;               ///< of a call: function, and its arguments each after a separator
  std::vector<Statement> body{};  ///< of a block
  Kind kind = Kind::plain;
  std::string_view engine{};  ///< of an instruction
  int function = -1;          ///< of a call: number of the function
  std::string row{};          ///< of a call that may be in a schedule: its row there
};

/// A block. One that holds an assignment moves as little as that does.
inline Statement block(std::string head, std::vector<Statement> body) {
  bool const assigns = std::ranges::count(body, Statement::Kind::assignment, &Statement::kind) > 0;
  return {.text = std::move(head),
          .body = std::move(body),
          .kind = assigns ? Statement::Kind::assignment : Statement::Kind::plain};
}

/// Words of a text: names, whole numbers and real numbers.
struct Word {
  std::size_t begin, size;
  std::optional<Index> number;  ///< value of a whole number, or place of a word among the `choices`
  std::span<std::string const> choices{};

  /// The alternatives that this word of a statement is one of; else none. Engines are those that accept the call.
  static std::span<std::string const> choices_of(std::string_view word, std::string_view statement) {
    static std::string const booleans[] = {"False", "True"},
                             commands[] = {"nisa.reduce_cmd.reset_reduce", "nisa.reduce_cmd.reduce"};
    for (std::span<std::string const> choices :
         {std::span<std::string const>(booleans), std::span<std::string const>(commands),
          word.starts_with("nisa.engine.") ? engines_of(statement) : std::span<std::string const>()})
      if (std::ranges::find(choices, word) != choices.end()) return choices;
    return {};
  }
  /// Engines that may execute an instruction, by its call, if there are several.
  using Engines = std::map<std::string, std::vector<std::string>, std::less<>>;
  template <class I>
  static void add_engines(Engines& all) {
    if constexpr (requires { I::engines; })
      for (Engine engine : I::engines) all[concat("nisa.", I::name)].push_back(literal(engine));
  }
  template <class... I>
  static Engines engines_of_all(std::type_identity<std::variant<I...>>) {
    Engines all;
    (add_engines<I>(all), ...);
    return all;
  }
  /// Those of the instruction of a call.
  static std::span<std::string const> engines_of(std::string_view statement) {
    static Engines const engines = engines_of_all(std::type_identity<Instruction>());
    auto const found = engines.find(statement.substr(0, statement.find(Statement::separator)));
    return found == engines.end() ? std::span<std::string const>() : std::span<std::string const>(found->second);
  }

  static bool is_letter(char c) { return c == '_' || c == '.' || is_letter_or_digit(c); }
  static std::vector<Word> in(std::string_view text) {
    std::vector<Word> found;
    for (std::size_t at = 0; at < text.size();) {
      std::size_t end = at;
      for (; end < text.size() && is_letter(text[end]); ++end)  // 1e-05 is one word
        if (is_digit(text[at]) && text[end] == 'e' && end + 1 < text.size() && !is_letter(text[end + 1])) ++end;
      std::string_view const word = text.substr(at, end - at);
      if (word.empty()) {
        ++at;
        continue;
      }
      std::optional<Index> number;
      if (std::ranges::all_of(word, is_digit)) std::from_chars(word.begin(), word.end(), number.emplace());
      std::span<std::string const> const choices = choices_of(word, text);
      if (!choices.empty()) number = std::ranges::find(choices, word) - choices.begin();
      found.push_back({at, word.size(), number, choices});
      at = end;
    }
    return found;
  }
};

/// A whole number as a function of a name: factor * name + constant; with factor 0 the constant.
struct Expression {
  std::string name;
  Index factor = 0, constant = 0;
  bool keeps_zero = false;  ///< constant 0 is written, so that the text has the form of those with others

  std::string text() const {
    if (factor == 0) return std::to_string(constant);
    std::string const product = (std::abs(factor) == 1 ? "" : concat(std::abs(factor), " * ")) + name;
    if (factor < 0) return concat(constant, " - ", product);
    if (constant == 0 && !keeps_zero) return product;
    return concat(product, constant < 0 ? " - " : " + ", std::abs(constant));
  }
};

/// The statement with expressions in place of its numbers, from `number` on.
inline Statement with(Statement const& statement, std::vector<Expression> const& numbers, std::size_t& number) {
  Statement result{.text = {}, .kind = statement.kind, .engine = statement.engine};
  std::string const& text = statement.text;
  std::size_t at = 0;
  for (Word const& word : Word::in(text)) {
    if (!word.number) continue;
    result.text.append(text, at, word.begin - at);
    at = word.begin + word.size;
    Expression const& expression = numbers[number++];
    std::string const value = expression.text();
    if (!word.choices.empty()) {
      if (expression.factor == 0) {
        result.text += nth(word.choices, expression.constant);
      } else if (word.choices.front() == "False") {
        result.text += value + " == 1";
      } else {
        result.text += concat("(", joined(word.choices), ")[", value, "]");
      }
      continue;
    }
    std::size_t const left = text.find_last_not_of(' ', word.begin - 1), right = text.find_first_not_of(' ', at);
    auto const binds = [&](std::size_t place, std::string_view signs) {
      return place != std::string::npos && signs.find(text[place]) != std::string_view::npos;
    };
    bool const brackets = value.find(' ') != std::string::npos && (binds(left, "*-%") || binds(right, "*%"));
    result.text += brackets ? "(" + value + ")" : value;
  }
  result.text.append(text, at);
  for (Statement const& inner : statement.body) result.body.push_back(with(inner, numbers, number));
  return result;
}

/// Text with `5 % 2` worked out and without `+ 0`.
inline std::string worked_out(std::string text) {
  for (std::size_t at = text.find(" + 0"); at != std::string::npos; at = text.find(" + 0", at + 1)) {
    if (at + 4 < text.size() && Word::is_letter(text[at + 4])) continue;
    text.erase(at, 4);
    std::size_t begin = at;
    while (begin > 0 && Word::is_letter(text[begin - 1])) --begin;
    bool const alone = begin > 1 && begin < at && text[begin - 1] == '(' && text[begin - 2] == '[';
    if (alone && at < text.size() && text[at] == ')') text.erase(at, 1).erase(begin - 1, 1);
    at = begin - 1;
  }
  for (std::size_t sign = text.find(" % "); sign != std::string::npos; sign = text.find(" % ", sign + 1)) {
    std::size_t const begin = text.rfind('[', sign) + 1, divisor = sign + 3,
                      end = std::min(text.find_first_not_of("0123456789", divisor), text.size());
    if (begin == sign || !std::ranges::all_of(text.substr(begin, sign - begin), is_digit)) continue;
    text.replace(begin, end - begin, std::to_string(std::stoll(&text[begin]) % std::stoll(&text[divisor])));
    sign = begin;
  }
  return text;
}

/// Makes loops of the statements of a kernel, and compares statements by their forms.
class Repeats {
 public:
  /// loops[d]: variable of a loop with d such loops inside it.
  explicit Repeats(std::vector<std::string> loops) : loops_(std::move(loops)) {}

  /// The statements with loops.
  std::vector<Statement> rolled(std::vector<Statement> statements) {
    Items items = items_of(std::move(statements));
    while (roll(items)) {
    }
    std::vector<Statement> result;
    for (Item& item : items) result.push_back(std::move(item.statement));
    return result;
  }

  /// A statement with its form, equal for statements that differ in whole numbers only, and these numbers.
  struct Item {
    Statement statement;
    std::size_t form = 0;
    std::vector<Index> numbers{};
    std::vector<bool> choices{};  ///< which of them are
    std::size_t lines = 0;        ///< estimate, when printed
    std::size_t statements = 0;   ///< with those inside
    std::size_t depth = 0;        ///< of this printer's loops inside it
    bool rolls = true;            ///< there is a variable for a loop around it

    bool repeats(Item const& earlier) const { return rolls && form == earlier.form; }
  };
  using Items = std::vector<Item>;

  Items items_of(std::vector<Statement> statements) {
    Items items;
    for (Statement& statement : statements) items.push_back(item_of(std::move(statement)));
    return items;
  }
  Item item_of(Statement statement) {
    Item item{std::move(statement)};
    item.depth = depth_of(item.statement);
    item.rolls = item.depth < loops_.size();
    std::string form;
    read(item.statement, form, item);
    if (item.statement.kind == Statement::Kind::comment) form += concat("#", forms_.size());
    item.form = forms_.try_emplace(std::move(form), forms_.size()).first->second;
    return item;
  }

  /// Bodies of this printer's loops are left out: what moved out of them would not know the loop's variable.
  bool is_own_loop(Statement const& statement) const {
    return std::ranges::any_of(
        loops_, [&](std::string const& variable) { return statement.text.starts_with("for " + variable + " in "); });
  }

  /// Number of forms seen.
  std::size_t forms() const { return forms_.size(); }

  /// Estimate: about 100 of a line's 120 columns are left of indentation and breaks.
  static std::size_t lines_of(std::size_t characters) { return 1 + characters / 100; }

 private:
  /// Most statements of a loop of the text: no longer one makes the text of a kernel shorter.
  static constexpr std::size_t longest_period = 4;

  std::size_t depth_of(Statement const& statement) const {
    std::size_t depth = 0;
    for (Statement const& inner : statement.body) depth = std::max(depth, depth_of(inner));
    return is_own_loop(statement) ? depth + 1 : depth;
  }

  static void read(Statement const& statement, std::string& form, Item& item) {
    std::size_t at = 0;
    for (Word const& word : Word::in(statement.text)) {
      if (!word.number) continue;
      form.append(statement.text, at, word.begin - at) += word.choices.empty() ? "\x01" : word.choices.front();
      item.numbers.push_back(*word.number);
      item.choices.push_back(!word.choices.empty());
      at = word.begin + word.size;
    }
    form.append(statement.text, at) += '\n';
    item.lines += lines_of(statement.text.size());
    ++item.statements;
    for (Statement const& inner : statement.body) read(inner, form, item);
    if (!statement.body.empty()) form += '\x02';
  }

  /// One pass; returns true if it made a loop.
  bool roll(Items& items) {
    Items result;
    bool made = false;
    for (std::span rest(items); !rest.empty();) {
      Repetition const found = Repetition::best(rest, longest_period, &Item::lines);
      result.push_back(found.is_loop() ? loop(rest, found) : std::move(rest.front()));
      made = made || found.is_loop();
      rest = rest.subspan(found.items());
    }
    items = std::move(result);
    return made;
  }

  Item loop(std::span<Item const> items, Repetition const& repetition) {
    items = items.first(repetition.period);
    std::string const& variable = loops_[std::ranges::max_element(items, {}, &Item::depth)->depth];
    std::vector<Statement> body;
    for (std::size_t i = 0; i < items.size(); ++i) {
      std::vector<Expression> numbers;
      for (std::size_t n = 0; n < items[i].numbers.size(); ++n)
        numbers.push_back({variable, repetition.steps[i][n], items[i].numbers[n], true});
      std::size_t number = 0;
      body.push_back(with(items[i].statement, numbers, number));
    }
    return item_of(block(concat("for ", variable, " in range(", repetition.iterations(), "):"), std::move(body)));
  }

  std::vector<std::string> loops_;
  std::map<std::string, std::size_t> forms_;
};

}  // namespace annulus::nki::print_detail
