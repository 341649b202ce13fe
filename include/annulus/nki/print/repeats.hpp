#pragma once
// Loops and functions of a printed kernel. Statements that repeat with integers that advance by constant steps become
// `for i in range(n):`; groups of statements that recur with different integers become functions of these integers.
// What Python executes stays the same, statement by statement. program/roll.hpp rolls bodies of a program while it is
// built, so all that reads the program sees these loops; loops and functions of this file are in the text alone.

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/print/statement.hpp"

namespace annulus::nki::print_detail {

/// A function of the printed module.
struct Function {
  std::string name;
  std::string comment;  ///< engines, and the buffer that is written last
  std::string size;     ///< number of instructions and of calls in the text
  std::vector<std::string> parameters;
  std::vector<Statement> body;
};

/// Makes loops and functions of the statements of a kernel.
class Repeats {
 public:
  /// loops[d]: variable of a loop with d such loops inside it. is_shared(name): the name is one that a function must be
  /// given. claim(name): a name that nothing else has.
  Repeats(std::vector<std::string> loops, std::function<bool(std::string const&)> is_shared,
          std::function<std::string(std::string)> claim)
      : loops_(std::move(loops)), is_shared_(std::move(is_shared)), claim_(std::move(claim)) {}

  /// The statements with loops.
  std::vector<Statement> rolled(std::vector<Statement> statements) {
    Items items = items_of(std::move(statements));
    for (std::size_t period : {4, 8, 16, 32, 64})  // short ones first, as the inner loops of longer ones
      while (roll(items, period)) {
      }
    std::vector<Statement> result;
    for (Item& item : items) result.push_back(std::move(item.statement));
    return result;
  }

  /// Moves groups of statements that occur often enough into functions.
  std::vector<Function> extract(std::vector<Statement>& statements);

 private:
  /// A statement with its form, equal for statements that differ in whole numbers only, and these numbers.
  struct Item {
    Statement statement;
    std::size_t form = 0;
    std::vector<Index> numbers{};
    std::size_t lines = 0;       ///< estimate, when printed
    std::size_t statements = 0;  ///< with those inside
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

  /// Fewest repetitions that become a loop, and fewest uses of a function.
  static constexpr std::size_t fewest = 3;
  /// Lines around the body of a function: definition, comment, blank lines, and its line in the map of the kernel.
  static constexpr std::size_t lines_around_function = 5;

  /// Estimate: about 100 of a line's 120 columns are left of indentation and breaks.
  static std::size_t lines_of(std::size_t characters) { return 1 + characters / 100; }

  static void read(Statement const& statement, std::string& form, Item& item) {
    std::size_t at = 0;
    for (Word const& word : Word::in(statement.text)) {
      if (!word.number) continue;
      form.append(statement.text, at, word.begin - at) += '\x01';
      item.numbers.push_back(*word.number);
      at = word.begin + word.size;
    }
    form.append(statement.text, at) += '\n';
    item.lines += lines_of(statement.text.size());
    ++item.statements;
    for (Statement const& inner : statement.body) read(inner, form, item);
    if (!statement.body.empty()) form += '\x02';
  }

  /// One pass; returns true if it made a loop.
  bool roll(Items& items, std::size_t longest) {
    Items result;
    bool made = false;
    for (std::size_t at = 0; at < items.size();) {
      std::size_t best_period = 0, best_count = 0, best_saved = 1;
      for (std::size_t period = 1; period <= longest && at + fewest * period <= items.size(); ++period) {
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
        numbers.push_back({variable, second.numbers[n] - first.numbers[n], first.numbers[n]});
      std::size_t number = 0;
      body.push_back(with(first.statement, numbers, number));
    }
    Statement made = block("for " + variable + " in range(" + std::to_string(count) + "):", std::move(body));
    made.depth = depth + 1;
    return item_of(std::move(made));
  }

  /// Consecutive items of one body.
  struct Group {
    std::size_t symbol, begin, size;
  };
  /// The groups of a body, and the statement that holds this body: its sequence and its place there.
  struct Sequence {
    std::vector<Statement>* body;
    Items items;
    std::vector<Group> groups;
    std::optional<std::pair<std::size_t, std::size_t>> holder;
  };

  /// Bodies of this printer's loops are left out: what moved out of them would not know the loop's variable.
  bool is_own_loop(Statement const& statement) const {
    return std::ranges::any_of(
        loops_, [&](std::string const& variable) { return statement.text.starts_with("for " + variable + " in "); });
  }

  void collect(std::vector<Statement>& body, std::vector<Sequence>& into,
               std::optional<std::pair<std::size_t, std::size_t>> holder = {}) {
    std::size_t const number = into.size();
    Sequence sequence{&body, items_of(body), {}, holder};
    for (std::size_t i = 0; i < sequence.items.size(); ++i)
      sequence.groups.push_back({2 * sequence.items[i].form + (body[i].kind != Statement::Kind::plain), i, 1});
    into.push_back(std::move(sequence));
    for (std::size_t i = 0; i < body.size(); ++i)
      if (!body[i].body.empty() && !is_own_loop(body[i])) collect(body[i].body, into, std::pair{number, i});
  }

  /// Joins groups that follow each other in at least `fewest` places and in two fifths of the uses of the more frequent
  /// one, until none are left. Kernels of the guide's sizes are longer with other shares: 1/2 by 2 %, 3/10 by 25 %.
  static void join(std::vector<Sequence>& sequences, std::size_t next_symbol) {
    for (;; ++next_symbol) {
      std::map<std::pair<std::size_t, std::size_t>, std::size_t> pairs;
      std::map<std::size_t, std::size_t> uses;
      for (Sequence const& sequence : sequences)
        for (std::size_t i = 0; i < sequence.groups.size(); ++i) {
          ++uses[sequence.groups[i].symbol];
          if (i + 1 < sequence.groups.size()) ++pairs[{sequence.groups[i].symbol, sequence.groups[i + 1].symbol}];
        }
      std::pair<std::size_t, std::size_t> best;
      std::size_t most = fewest - 1;
      for (auto const& [pair, count] : pairs) {
        auto const& [a, b] = pair;
        bool const movable = is_movable(a) && is_movable(b) && a != b;
        if (movable && count > most && 5 * count >= 2 * std::max(uses[a], uses[b])) most = count, best = pair;
      }
      if (most < fewest) return;
      for (Sequence& sequence : sequences) {
        std::vector<Group> joined;
        for (Group const& group : sequence.groups) {
          if (!joined.empty() && joined.back().symbol == best.first && group.symbol == best.second)
            joined.back() = {2 * next_symbol, joined.back().begin, joined.back().size + group.size};
          else
            joined.push_back(group);
        }
        sequence.groups = std::move(joined);
      }
    }
  }
  static bool is_movable(std::size_t symbol) { return symbol % 2 == 0; }

  /// A number as a function of a parameter: factor * parameter + constant; with factor 0 the constant.
  struct OfParameter {
    std::size_t parameter;
    Index factor, constant;
  };

  /// The numbers of a function's uses, [use][number], as functions of parameters; the parameters' numbers.
  static std::pair<std::vector<OfParameter>, std::vector<std::size_t>> parameters_of(
      std::vector<std::vector<Index>> const& uses) {
    std::vector<OfParameter> expressions;
    std::vector<std::size_t> parameters;
    for (std::size_t n = 0; n < uses.front().size(); ++n) {
      Index const first = uses.front()[n];
      auto const differs = std::ranges::find_if(uses, [&](auto const& use) { return use[n] != first; });
      if (differs == uses.end()) {
        expressions.push_back({0, 0, first});
        continue;
      }
      std::optional<OfParameter> found;
      for (std::size_t p = 0; p < parameters.size() && !found; ++p) {
        std::size_t const m = parameters[p];
        Index const across = (*differs)[m] - uses.front()[m], up = (*differs)[n] - first;
        if (across == 0 || up % across != 0) continue;
        Index const factor = up / across, constant = first - factor * uses.front()[m];
        if (std::ranges::all_of(uses, [&](auto const& use) { return use[n] == factor * use[m] + constant; }))
          found = {p, factor, constant};
      }
      if (!found) {
        found = {parameters.size(), 1, 0};
        parameters.push_back(n);
      }
      expressions.push_back(*found);
    }
    return {std::move(expressions), std::move(parameters)};
  }

  /// What the numbers of a text say: the tile of a buffer, a place in it, or a keyword.
  static void name_numbers(Statement const& statement, std::vector<std::string>& names) {
    std::string operand = "number";
    for (Word const& word : Word::in(statement.text)) {
      std::string_view const text = std::string_view(statement.text).substr(word.begin, word.size);
      char const after = word.begin + word.size < statement.text.size() ? statement.text[word.begin + word.size] : ' ';
      if (!word.number) {
        if (after == '[' || (after == '(' && text.ends_with(".ap"))) operand = text.substr(0, text.find('.'));
        if (after == '=' && text != "dst" && text != "src" && text != "data" && text != "pattern" && text != "offset")
          operand = text;
      } else {
        names.push_back(operand + (statement.text.compare(word.begin + word.size, 3, " % ") == 0 ? "_tile" : "_at"));
      }
    }
    for (Statement const& inner : statement.body) name_numbers(inner, names);
  }

  Function function_of(Items const& items, std::size_t begin, std::size_t size, std::vector<OfParameter> const& numbers,
                       std::vector<std::size_t> const& parameters);

  /// Calls of the function in the text.
  static std::size_t calls_in(std::vector<Statement> const& body, std::string const& function) {
    std::size_t calls = 0;
    for (Statement const& statement : body)
      calls += calls_in(statement.body, function) +
               (statement.text.substr(0, statement.text.find(Statement::separator)) == function);
    return calls;
  }

  std::vector<std::string> loops_;
  std::function<bool(std::string const&)> is_shared_;
  std::function<std::string(std::string)> claim_;
  std::map<std::string, std::size_t> forms_;
};

inline Function Repeats::function_of(Items const& items, std::size_t begin, std::size_t size,
                                     std::vector<OfParameter> const& numbers,
                                     std::vector<std::size_t> const& parameters) {
  Function made;
  std::vector<std::string> names;
  std::set<std::string> engines, seen;
  std::size_t instructions = 0;
  std::string result;
  auto const visit = [&](auto const& self, Statement const& statement) -> void {
    std::string_view const text = statement.text;
    if (text.starts_with("for ")) seen.emplace(text.substr(4, text.find(' ', 4) - 4));  // has its value in the function
    if (!statement.engine.empty()) engines.emplace(statement.engine), ++instructions;
    bool next_is_result = false;
    for (Word const& word : Word::in(text)) {
      std::string const name(text.substr(word.begin, std::min(word.size, text.find('.', word.begin) - word.begin)));
      if (next_is_result) result = name;
      next_is_result = text.substr(word.begin, word.size) == "dst";
      if (is_shared_(name) && seen.insert(name).second) made.parameters.push_back(name);
    }
    for (Statement const& inner : statement.body) self(self, inner);
  };
  for (std::size_t i = begin; i < begin + size; ++i) {
    visit(visit, items[i].statement);
    name_numbers(items[i].statement, names);
  }
  made.name = "make_" + result;
  for (std::string const& engine : engines) made.comment += (made.comment.empty() ? "" : ", ") + engine;
  made.comment += ": " + result;
  made.size = std::to_string(instructions) + " instructions in the text";
  std::vector<std::string> integers;
  for (std::size_t parameter : parameters) {
    std::string name = names[parameter];
    for (int copy = 2; seen.contains(name); ++copy) name = names[parameter] + "_" + std::to_string(copy);
    seen.insert(name);
    integers.push_back(name);
  }
  std::vector<Expression> expressions;
  for (auto const& [parameter, factor, constant] : numbers)
    expressions.push_back({factor == 0 ? std::string() : integers[parameter], factor, constant});
  std::size_t offset = 0;
  for (std::size_t i = begin; i < begin + size; ++i) {
    std::size_t number = offset;
    made.body.push_back(with(items[i].statement, expressions, number));
    offset = number;
  }
  made.parameters.insert(made.parameters.end(), integers.begin(), integers.end());
  return made;
}

inline std::vector<Function> Repeats::extract(std::vector<Statement>& statements) {
  std::vector<Sequence> sequences;
  collect(statements, sequences);
  join(sequences, forms_.size());
  struct Use {
    std::size_t sequence, group;
  };
  std::map<std::size_t, std::vector<Use>> uses_of;
  for (std::size_t s = 0; s < sequences.size(); ++s)
    for (std::size_t i = 0; i < sequences[s].groups.size(); ++i)
      if (is_movable(sequences[s].groups[i].symbol)) uses_of[sequences[s].groups[i].symbol].push_back({s, i});
  auto const group_of = [&](Use const& use) -> Group const& { return sequences[use.sequence].groups[use.group]; };
  auto const size_of = [&](Use const& use, std::size_t Item::*size) {
    std::size_t sum = 0;
    for (std::size_t i = 0; i < group_of(use).size; ++i)
      sum += sequences[use.sequence].items[group_of(use).begin + i].*size;
    return sum;
  };
  // Long groups come first, so that uses that move with a group around them are known.
  std::vector<std::vector<Use>> ordered;
  for (auto& [symbol, uses] : uses_of) ordered.push_back(std::move(uses));
  std::ranges::stable_sort(ordered, std::greater<>(),
                           [&](std::vector<Use> const& uses) { return size_of(uses.front(), &Item::statements); });
  std::map<std::pair<std::size_t, std::size_t>, Statement> calls;
  std::vector<std::set<std::size_t>> moved(sequences.size());  // places of each sequence
  auto const moves_with_holder = [&](Use const& use) {
    for (auto holder = sequences[use.sequence].holder; holder; holder = sequences[holder->first].holder)
      if (moved[holder->first].contains(holder->second)) return true;
    return false;
  };
  std::vector<Function> functions;
  std::map<std::string, int> copies;
  for (std::vector<Use>& uses : ordered) {
    std::erase_if(uses, moves_with_holder);
    if (uses.size() < fewest) continue;
    std::vector<std::vector<Index>> numbers;
    for (Use const& use : uses) {
      auto& own = numbers.emplace_back();
      for (std::size_t i = 0; i < group_of(use).size; ++i) {
        Item const& item = sequences[use.sequence].items[group_of(use).begin + i];
        own.insert(own.end(), item.numbers.begin(), item.numbers.end());
      }
    }
    auto const [expressions, parameters] = parameters_of(numbers);
    Group const& first = group_of(uses.front());
    Function function =
        function_of(sequences[uses.front().sequence].items, first.begin, first.size, expressions, parameters);
    std::size_t const names = function.parameters.size() - parameters.size();
    std::size_t call_size = function.name.size() + 6 * parameters.size();  // an integer, comma and space
    for (std::size_t i = 0; i < names; ++i) call_size += function.parameters[i].size() + 2;
    std::size_t const lines = size_of(uses.front(), &Item::lines);
    if (uses.size() * lines <= uses.size() * lines_of(call_size) + lines + lines_around_function) continue;
    int const copy = ++copies[function.name];
    function.name = claim_(function.name + (copy > 1 ? "_" + std::to_string(copy) : ""));
    for (std::size_t u = 0; u < uses.size(); ++u) {
      Statement call{function.name};
      for (std::size_t i = 0; i < names; ++i) (call.text += Statement::separator) += function.parameters[i];
      for (std::size_t parameter : parameters)
        (call.text += Statement::separator) += std::to_string(numbers[u][parameter]);
      calls.emplace(std::pair{uses[u].sequence, uses[u].group}, std::move(call));
      for (std::size_t i = 0; i < group_of(uses[u]).size; ++i)
        moved[uses[u].sequence].insert(group_of(uses[u]).begin + i);
    }
    functions.push_back(std::move(function));
  }
  // Innermost bodies come last: they are replaced before the statements that hold them move.
  for (std::size_t s = sequences.size(); s-- > 0;) {
    std::vector<Statement> replaced;
    for (std::size_t i = 0; i < sequences[s].groups.size(); ++i) {
      Group const& group = sequences[s].groups[i];
      if (auto const call = calls.find({s, i}); call != calls.end())
        replaced.push_back(std::move(call->second));
      else
        for (std::size_t at = group.begin; at < group.begin + group.size; ++at)
          replaced.push_back(std::move((*sequences[s].body)[at]));
    }
    // Bodies inside may have new loops.
    for (Statement& statement : replaced)
      if (!statement.body.empty() && !is_own_loop(statement)) statement.depth = depth_of(statement.body);
    *sequences[s].body = rolled(std::move(replaced));
  }
  for (Function& function : functions) {
    std::size_t const count = calls_in(statements, function.name);
    function.size += ", called in " + std::to_string(count) + (count == 1 ? " place" : " places");
  }
  return functions;
}

}  // namespace annulus::nki::print_detail
