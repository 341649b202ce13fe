#pragma once
// Stages and schedules of a printed kernel: groups of statements that recur with different integers become functions of
// these integers, the stages, and calls that follow each other become a table of rows (stage, integers), the schedule.
// What Python executes stays the same, statement by statement.
//
// The groups are found by Re-Pair, a grammar compression (Larsson and Moffat, Offline dictionary-based compression,
// 1999): the most frequent pair of adjacent symbols becomes a symbol of its own, until no pair is frequent enough.

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/nki/print/repeats.hpp"

namespace annulus::nki::print_detail {

/// A function of the printed module.
struct Function {
  std::string name;
  std::set<std::string> engines{}, instructions{};  ///< names of those that it runs
  std::set<std::string> writes{};                   ///< of the names that it is given
  std::vector<std::string> names{};                 ///< parameters that are names of the kernel,
  std::vector<std::string> integers{};              ///< and those that follow, which are integers
  std::vector<Statement> body{};
  std::size_t calls = 0, rows = 0;  ///< in the text, and in its schedules
  std::string constant{};           ///< the name of its number, by which rows call it

  std::vector<std::string> parameters() const {
    std::vector<std::string> all = names;
    all.insert(all.end(), integers.begin(), integers.end());
    return all;
  }
};

/// Calls visit for a statement and those inside it, in order.
template <class Visit>
void for_each_statement(Statement const& statement, Visit&& visit) {
  visit(statement);
  for (Statement const& inner : statement.body) for_each_statement(inner, visit);
}

/// Makes stages and schedules of the statements of a kernel.
class Stages {
 public:
  /// Functions are given the local names of the kernel that they use; schedules use those that are constant.
  Stages(Repeats& repeats, PythonNames& names) : repeats_(repeats), names_(names) {}

  /// Moves groups of statements that occur often enough into functions, in the order of their first call, and makes
  /// schedules of what follows each other of their calls.
  std::vector<Function> extract(std::vector<Statement>& statements) {
    collect(statements, {});
    join(repeats_.forms());
    std::map<std::size_t, std::vector<Group*>> uses_of;
    for (Sequence& sequence : sequences_)
      for (Group& group : sequence.groups)
        if (is_movable(group.symbol)) uses_of[group.symbol].push_back(&group);
    // Long groups come first, so that uses that move with a group around them are known.
    std::vector<std::vector<Group*>> ordered;
    for (auto& [symbol, uses] : uses_of) ordered.push_back(std::move(uses));
    std::ranges::stable_sort(ordered, std::greater<>(), [&](std::vector<Group*> const& uses) {
      return sum_over(items_of(*uses.front()), &Item::statements);
    });
    for (std::vector<Group*>& uses : ordered) {
      std::erase_if(uses, [&](Group const* use) { return moves_with_holder(*use); });
      if (uses.size() >= fewest) move(uses);
    }
    // Innermost bodies come last: they are replaced before the statements that hold them move.
    for (std::size_t s = sequences_.size(); s-- > 0;) replace(sequences_[s]);
    std::vector<std::size_t> order;
    count_calls(statements, order, &Function::calls);
    std::vector<Function> in_order;
    for (std::size_t number : order) in_order.push_back(std::move(functions_[number]));
    return in_order;
  }

 private:
  using Item = Repeats::Item;
  using Items = std::span<Item const>;

  /// Fewest uses of a stage, and most statements.
  static constexpr std::size_t fewest = 3, largest_stage = 6;
  /// Fewest calls that become a schedule.
  static constexpr std::ptrdiff_t shortest_schedule = 8;
  /// Lines around the body of a function: definition, comment, blank lines, and its line in the map of the kernel; of
  /// one that is in schedules, its number and its call by number, too.
  static constexpr std::size_t lines_around_function = 5, lines_of_number = 6;

  /// Consecutive items of one body.
  struct Group {
    std::size_t symbol, sequence, begin, size;
    std::optional<Statement> call{};  ///< in place of the items, if they move
  };
  /// A statement by its sequence and its place there.
  struct Holder {
    std::size_t sequence, place;
  };
  /// The groups of a body, and the statement that holds this body.
  struct Sequence {
    std::vector<Statement>* body;
    Repeats::Items items;
    std::vector<Group> groups;
    std::optional<Holder> holder;
  };

  void collect(std::vector<Statement>& body, std::optional<Holder> holder) {
    std::size_t const number = sequences_.size();
    Sequence& sequence = sequences_.emplace_back(Sequence{&body, repeats_.items_of(body), {}, holder});
    for (std::size_t i = 0; i < body.size(); ++i)
      sequence.groups.push_back({2 * sequence.items[i].form + (body[i].kind != Statement::Kind::plain), number, i, 1});
    for (std::size_t i = 0; i < body.size(); ++i)
      if (!body[i].body.empty() && !repeats_.is_own_loop(body[i])) collect(body[i].body, Holder{number, i});
  }

  /// Re-Pair: joins groups of at most `largest_stage` statements that follow each other in at least `fewest` places and
  /// in half of the uses of the more frequent one, the most frequent pair first, until none are left.
  void join(std::size_t next_symbol) {
    for (;; ++next_symbol) {
      std::map<std::pair<std::size_t, std::size_t>, std::size_t> pairs;
      std::map<std::size_t, std::size_t> uses;
      for (Sequence const& sequence : sequences_)
        for (std::size_t i = 0; i < sequence.groups.size(); ++i) {
          Group const& group = sequence.groups[i];
          ++uses[group.symbol];
          if (i + 1 < sequence.groups.size() && group.size + sequence.groups[i + 1].size <= largest_stage)
            ++pairs[{group.symbol, sequence.groups[i + 1].symbol}];
        }
      std::pair<std::size_t, std::size_t> best;
      std::size_t most = fewest - 1;
      for (auto const& [pair, count] : pairs) {
        auto const& [a, b] = pair;
        bool const movable = is_movable(a) && is_movable(b) && a != b;
        if (movable && count > most && 2 * count >= std::max(uses[a], uses[b])) most = count, best = pair;
      }
      if (most < fewest) return;
      for (Sequence& sequence : sequences_) {
        std::vector<Group> joined;
        for (Group const& group : sequence.groups) {
          if (joined.empty() || std::pair(joined.back().symbol, group.symbol) != best) {
            joined.push_back(group);
            continue;
          }
          joined.back().symbol = 2 * next_symbol;
          joined.back().size += group.size;
        }
        sequence.groups = std::move(joined);
      }
    }
  }
  static bool is_movable(std::size_t symbol) { return symbol % 2 == 0; }

  Items items_of(Group const& group) const {
    return Items(sequences_[group.sequence].items).subspan(group.begin, group.size);
  }
  static std::size_t sum_over(Items items, std::size_t Item::*size) {
    std::size_t sum = 0;
    for (Item const& item : items) sum += item.*size;
    return sum;
  }
  bool moves_with_holder(Group const& group) const {
    for (auto holder = sequences_[group.sequence].holder; holder; holder = sequences_[holder->sequence].holder)
      for (Group const& around : sequences_[holder->sequence].groups)
        if (around.call && around.begin <= holder->place && holder->place < around.begin + around.size) return true;
    return false;
  }

  /// A number as a function of parameters: factor * parameter + constant, or parameter + sign * other; with factor 0
  /// the constant.
  struct OfParameter {
    std::size_t parameter;
    Index factor, constant;
    Index sign = 0;
    std::size_t other = 0;

    /// True if it gives number `n` of all uses, [use][number].
    bool fits(std::vector<std::vector<Index>> const& uses, std::size_t n,
              std::vector<std::size_t> const& parameters) const {
      return std::ranges::all_of(uses, [&](std::vector<Index> const& use) {
        return use[n] == factor * use[parameters[parameter]] + constant + sign * use[parameters[other]];
      });
    }
  };

  /// The numbers of a function's uses, [use][number], as functions of parameters; the parameters' numbers. Choices are
  /// functions of choices only.
  static std::pair<std::vector<OfParameter>, std::vector<std::size_t>> parameters_of(
      std::vector<std::vector<Index>> const& uses, std::vector<bool> const& choices) {
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
      auto const keep_if_fits = [&](OfParameter const& tried) {
        if (!found && tried.fits(uses, n, parameters)) found = tried;
      };
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        std::size_t const m = parameters[p];
        Index const across = (*differs)[m] - uses.front()[m], up = (*differs)[n] - first;
        if (choices[m] == choices[n] && across != 0 && up % across == 0)
          keep_if_fits({p, up / across, first - up / across * uses.front()[m]});
      }
      for (std::size_t p = 0; p < parameters.size() && !choices[n]; ++p)
        for (std::size_t other = 0; other < parameters.size(); ++other)
          for (Index sign : {1, -1})
            if (p != other && !choices[parameters[p]] && !choices[parameters[other]])
              keep_if_fits({p, 1, 0, sign, other});
      if (!found) parameters.push_back(n);
      expressions.push_back(found.value_or(OfParameter{parameters.size() - 1, 1, 0}));
    }
    return {std::move(expressions), std::move(parameters)};
  }

  /// What the numbers of a text say: the tile of a buffer, a place in it, or a keyword.
  static void name_numbers(Statement const& statement, std::vector<std::string>& names) {
    std::string operand = statement.text.starts_with("for ") ? "iterations" : "number";
    for (Word const& word : Word::in(statement.text)) {
      std::string_view const text = std::string_view(statement.text).substr(word.begin, word.size),
                             after = std::string_view(statement.text).substr(word.begin + word.size);
      if (!word.number) {
        if (after.starts_with('[') || (after.starts_with('(') && text.ends_with(".ap") && text != ".ap"))
          operand = text.substr(0, text.find('.'));
        bool const is_operand =
            text == "dst" || text == "src" || text == "data" || text == "pattern" || text == "offset";
        if (after.starts_with('=') && !is_operand) operand = text;
      } else if (!word.choices.empty() || operand == "iterations") {
        names.push_back(operand);
      } else {
        names.push_back(operand + (after.starts_with(" % ") ? "_tile" : "_at"));
      }
    }
  }

  /// The name, with a number if it has been taken; takes it.
  static std::string new_name(std::set<std::string>& taken, std::string const& name) {
    std::string made = name;
    for (int copy = 2; !taken.insert(made).second; ++copy) made = concat(name, "_", copy);
    return made;
  }

  /// What the statements of a function name.
  struct NamesOfFunction {
    PythonNames const& locals;
    Function& made;
    std::set<std::string> seen{};
    std::vector<std::string> results{};  ///< that the function does not read itself
    std::vector<std::string> numbers{};  ///< names for the numbers of the texts

    void add(Statement const& statement) {
      name_numbers(statement, numbers);
      std::string_view const text = statement.text;
      // A loop's variable has its value in the function.
      if (text.starts_with("for ")) seen.emplace(text.substr(4, text.find(' ', 4) - 4));
      if (!statement.engine.empty()) {
        std::string_view const call = text.substr(0, text.find(Statement::separator));
        made.instructions.emplace(call.substr(call.find('.') + 1));
      }
      std::string_view keyword;
      std::string result;
      for (Word const& word : Word::in(text)) {
        std::string_view const whole = text.substr(word.begin, word.size);
        if (text.substr(word.begin + word.size).starts_with('=')) {
          keyword = whole;
          continue;
        }
        std::string const name(whole.substr(0, whole.find('.')));
        if (!locals.is_local(name)) continue;
        bool const is_result = keyword.starts_with("dst") || keyword == "reduce_res";
        if (keyword == "dst") result = name;
        if (keyword == "dst" || (!is_result && name != result)) std::erase(results, name);
        if (keyword == "dst") results.push_back(name);
        if (is_result) made.writes.insert(name);
        if (seen.insert(name).second) made.names.push_back(name);
      }
    }
  };

  /// The function of such items, with functions of `parameters` in place of their numbers.
  Function function_of(Items items, std::vector<OfParameter> const& numbers,
                       std::vector<std::size_t> const& parameters) {
    Function made;
    NamesOfFunction names{names_, made};
    for (Item const& item : items)
      for_each_statement(item.statement, [&](Statement const& statement) { names.add(statement); });
    std::vector<std::string> const& results = names.results;
    if (!results.empty()) made.name = results.front(), made.constant = results.back();
    if (results.size() > 1) made.name += (results.size() == 2 ? "_and_" : "_to_") + results.back();
    for (std::size_t parameter : parameters) {
      std::string const& name = names.numbers[parameter];  // stands next to all names of the kernel in `run`
      made.integers.push_back(new_name(names.seen, names_.is_local(name) ? name + "_number" : name));
    }
    std::vector<Expression> expressions;
    for (auto const& [parameter, factor, constant, sign, other] : numbers) {
      std::string name = factor == 0 ? std::string() : made.integers[parameter];
      if (sign != 0) name += (sign > 0 ? " + " : " - ") + made.integers[other];
      expressions.push_back({name, factor, constant});
    }
    std::size_t number = 0;
    for (Item const& item : items) made.body.push_back(with(item.statement, expressions, number));
    return made;
  }

  /// Makes a function of these uses, if the text becomes shorter.
  void move(std::vector<Group*> const& uses) {
    std::vector<std::vector<Index>> numbers;
    std::vector<bool> choices;
    std::set<std::string> engines;
    for (Group const* use : uses) {
      auto& own = numbers.emplace_back();
      choices.clear();
      for (Item const& item : items_of(*use)) {
        own.insert(own.end(), item.numbers.begin(), item.numbers.end());
        choices.insert(choices.end(), item.choices.begin(), item.choices.end());
        for_each_statement(item.statement, [&](Statement const& statement) {
          if (!statement.engine.empty()) engines.emplace(statement.engine);
        });
      }
    }
    auto const [expressions, parameters] = parameters_of(numbers, choices);
    Function function = function_of(items_of(*uses.front()), expressions, parameters);
    function.engines = std::move(engines);
    bool const in_schedule =
        std::ranges::all_of(function.names, [&](auto& given) { return names_.is_constant(given); });
    std::size_t call_size = 6 + function.name.size() + 6 * parameters.size();  // an integer, comma and space
    if (!in_schedule)
      for (std::string const& name : function.names) call_size += name.size() + 2;
    std::size_t const lines = sum_over(items_of(*uses.front()), &Item::lines);
    std::size_t const after = in_schedule ? uses.size() * call_size / 100 : uses.size() * Repeats::lines_of(call_size);
    std::size_t const around = lines_around_function + (in_schedule ? lines_of_number : 0);
    if (uses.size() * lines <= after + lines + around) return;
    function.name = names_.claim("make_" + new_name(taken_, function.name));
    // Rows are short: the first word of the last result, and a number where others begin with it, too.
    std::string const word = function.constant.substr(0, function.constant.find('_'));
    function.constant = names_.claim(new_name(taken_, capitals(word)));
    for (std::size_t u = 0; u < uses.size(); ++u) {
      Statement& call = uses[u]->call.emplace(Statement{function.name});
      call.function = static_cast<int>(functions_.size());
      for (std::string const& argument : function.names) (call.text += Statement::separator) += argument;
      std::string row = "(" + function.constant + (parameters.empty() ? "," : "");
      for (std::size_t parameter : parameters) {
        std::string const number = std::to_string(numbers[u][parameter]);
        (call.text += Statement::separator) += number;
        row += ", " + number;
      }
      if (in_schedule) call.row = row + ")";
    }
    functions_.push_back(std::move(function));
  }

  /// Puts calls in place of groups that move, and schedules in place of calls that follow each other.
  void replace(Sequence& sequence) {
    std::vector<Statement> replaced;
    for (Group& group : sequence.groups)
      if (group.call)
        replaced.push_back(std::move(*group.call));
      else
        std::move(sequence.body->begin() + static_cast<std::ptrdiff_t>(group.begin),
                  sequence.body->begin() + static_cast<std::ptrdiff_t>(group.begin + group.size),
                  std::back_inserter(replaced));
    sequence.body->clear();
    auto const is_other = [](Statement const& statement) { return statement.row.empty(); };
    for (auto at = replaced.begin(); at != replaced.end();) {
      auto const end = std::max(std::find_if(at, replaced.end(), is_other), at + 1);
      std::move_iterator const from(at), to(end);
      if (end - at >= shortest_schedule)
        sequence.body->push_back({.text = "", .body = {from, to}, .kind = Statement::Kind::schedule});
      else
        sequence.body->insert(sequence.body->end(), from, to);
      at = end;
    }
  }

  /// Counts the calls of functions in the text, and in schedules; `order`: the functions in the order of their first
  /// call.
  void count_calls(std::vector<Statement> const& body, std::vector<std::size_t>& order, std::size_t Function::*count) {
    for (Statement const& statement : body) {
      bool const schedule = statement.kind == Statement::Kind::schedule;
      count_calls(statement.body, order, schedule ? &Function::rows : &Function::calls);
      if (statement.function < 0) continue;
      Function& function = nth(functions_, statement.function);
      if (function.calls + function.rows == 0) order.push_back(static_cast<std::size_t>(statement.function));
      ++(function.*count);
    }
  }

  Repeats& repeats_;
  PythonNames& names_;
  std::deque<Sequence> sequences_;
  std::set<std::string> taken_;  ///< names of functions and of their numbers
  std::vector<Function> functions_;
};

}  // namespace annulus::nki::print_detail
