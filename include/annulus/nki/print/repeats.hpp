#pragma once
// Loops of a printed kernel: up to four statements that repeat with integers that advance by constant steps become
// `for i in range(n):`. program/roll.hpp rolls bodies of a program while it is built, so all that reads the program sees
// these loops; those of this file are in the text alone.

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/print/statement.hpp"
#include "annulus/nki/program/repetition.hpp"

namespace annulus::nki::print_detail {

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
    item.rolls = item.statement.depth < std::ssize(loops_);
    std::string form;
    read(item.statement, form, item);
    if (item.statement.kind == Statement::Kind::comment) form += "#" + std::to_string(forms_.size());
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
    int depth = 0;
    for (Item const& item : items.first(repetition.period)) depth = std::max(depth, item.statement.depth);
    std::string const& variable = nth(loops_, depth);
    std::vector<Statement> body;
    for (std::size_t i = 0; i < repetition.period; ++i) {
      std::vector<Expression> numbers;
      for (std::size_t n = 0; n < items[i].numbers.size(); ++n)
        numbers.push_back({variable, repetition.steps[i][n], items[i].numbers[n], true});
      std::size_t number = 0;
      body.push_back(with(items[i].statement, numbers, number));
    }
    std::string const count = std::to_string(repetition.iterations());
    Statement made = block("for " + variable + " in range(" + count + "):", std::move(body));
    made.depth = depth + 1;
    return item_of(std::move(made));
  }

  std::vector<std::string> loops_;
  std::map<std::string, std::size_t> forms_;
};

}  // namespace annulus::nki::print_detail
