#pragma once
// Loops of a printed kernel: a statement, or a pair of statements, that repeats with integers that advance by constant
// steps becomes `for i in range(n):`. program/roll.hpp rolls bodies of a program while it is built, so all that reads
// the program sees these loops; those of this file are in the text alone.

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/print/statement.hpp"

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
  };
  using Items = std::vector<Item>;

  Items items_of(std::vector<Statement> statements) {
    Items items;
    for (Statement& statement : statements) items.push_back(item_of(std::move(statement)));
    return items;
  }

  Item item_of(Statement statement) {
    Item item{std::move(statement)};
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

  /// Fewest repetitions that become a loop.
  static constexpr std::size_t fewest = 3;
  /// Number of forms seen.
  std::size_t forms() const { return forms_.size(); }

  /// Estimate: about 100 of a line's 120 columns are left of indentation and breaks.
  static std::size_t lines_of(std::size_t characters) { return 1 + characters / 100; }

 private:
  /// Most statements of a loop of the text: a stage is small, and longer repetitions are seen in the schedule.
  static constexpr std::size_t longest_period = 2;
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
    for (std::size_t at = 0; at < items.size();) {
      std::size_t best_period = 0, best_count = 0, best_saved = 1;
      for (std::size_t period = 1; period <= longest_period && at + fewest * period <= items.size(); ++period) {
        if (items[at].form != items[at + period].form) continue;
        std::size_t const count = repetitions(items, at, period);
        std::size_t lines = 0;
        for (std::size_t i = 0; i < period; ++i) lines += items[at + i].lines;
        std::size_t const saved = (count - 1) * lines;
        if (count >= fewest && saved > best_saved) best_period = period, best_count = count, best_saved = saved;
      }
      if (best_period == 0) {
        result.push_back(std::move(items[at++]));
        continue;
      }
      result.push_back(loop(items, at, best_period, best_count));
      at += best_period * best_count;
      made = true;
    }
    items = std::move(result);
    return made;
  }

  std::size_t repetitions(Items const& items, std::size_t at, std::size_t period) const {
    std::size_t count = 1;
    for (std::size_t next = at + period; next + period <= items.size(); next += period, ++count)
      for (std::size_t i = 0; i < period; ++i) {
        Item const &first = items[at + i], &earlier = items[next - period + i], &item = items[next + i];
        if (item.form != first.form || item.statement.depth >= std::ssize(loops_)) return count;
        if (count == 1) continue;
        Item const& second = items[at + period + i];
        for (std::size_t n = 0; n < item.numbers.size(); ++n)
          if (item.numbers[n] - earlier.numbers[n] != second.numbers[n] - first.numbers[n]) return count;
      }
    return count;
  }

  Item loop(Items const& items, std::size_t at, std::size_t period, std::size_t count) {
    int depth = 0;
    for (std::size_t i = 0; i < period; ++i) depth = std::max(depth, items[at + i].statement.depth);
    std::string const& variable = loops_[static_cast<std::size_t>(depth)];
    std::vector<Statement> body;
    for (std::size_t i = 0; i < period; ++i) {
      Item const &first = items[at + i], &second = items[at + period + i];
      std::vector<Expression> numbers;
      for (std::size_t n = 0; n < first.numbers.size(); ++n)
        numbers.push_back({variable, second.numbers[n] - first.numbers[n], first.numbers[n], true});
      std::size_t number = 0;
      body.push_back(with(first.statement, numbers, number));
    }
    Statement made = block("for " + variable + " in range(" + std::to_string(count) + "):", std::move(body));
    made.depth = depth + 1;
    return item_of(std::move(made));
  }

  std::vector<std::string> loops_;
  std::map<std::string, std::size_t> forms_;
};

}  // namespace annulus::nki::print_detail
