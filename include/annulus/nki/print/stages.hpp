#pragma once
// Stages and schedules of a printed kernel: groups of statements that recur with different integers become functions of
// these integers, the stages, and calls that follow each other become a table of rows (stage, integers), the schedule.
// What Python executes stays the same, statement by statement.

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

/// Makes stages and schedules of the statements of a kernel.
class Stages {
 public:
  /// Functions are given the local names of the kernel that they use; schedules use those that are constant.
  Stages(Repeats& repeats, PythonNames& names) : repeats_(repeats), names_(names) {}

  /// Moves groups of statements that occur often enough into functions, in the order of their first call, and makes
  /// schedules of what follows each other of their calls.
  std::vector<Function> extract(std::vector<Statement>& statements);

 private:
  using Item = Repeats::Item;
  using Items = Repeats::Items;

  /// Fewest uses of a stage, and most statements.
  static constexpr std::size_t fewest = 3;
  static constexpr std::size_t largest_stage = 6;
  /// Fewest calls that become a schedule.
  static constexpr std::ptrdiff_t shortest_schedule = 8;
  /// Lines around the body of a function: definition, comment, blank lines, and its line in the map of the kernel; of
  /// one that is in schedules, its number and its call by number, too.
  static constexpr std::size_t lines_around_function = 5, lines_of_number = 6;

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

  void collect(std::vector<Statement>& body, std::vector<Sequence>& into,
               std::optional<std::pair<std::size_t, std::size_t>> holder = {}) {
    std::size_t const number = into.size();
    Sequence sequence{&body, repeats_.items_of(body), {}, holder};
    for (std::size_t i = 0; i < sequence.items.size(); ++i)
      sequence.groups.push_back({2 * sequence.items[i].form + (body[i].kind != Statement::Kind::plain), i, 1});
    into.push_back(std::move(sequence));
    for (std::size_t i = 0; i < body.size(); ++i)
      if (!body[i].body.empty() && !repeats_.is_own_loop(body[i])) collect(body[i].body, into, std::pair{number, i});
  }

  /// Joins groups of at most `largest_stage` statements that follow each other in at least `fewest` places and in half
  /// of the uses of the more frequent one, until none are left.
  static void join(std::vector<Sequence>& sequences, std::size_t next_symbol) {
    for (;; ++next_symbol) {
      std::map<std::pair<std::size_t, std::size_t>, std::size_t> pairs;
      std::map<std::size_t, std::size_t> uses;
      for (Sequence const& sequence : sequences)
        for (std::size_t i = 0; i < sequence.groups.size(); ++i) {
          ++uses[sequence.groups[i].symbol];
          if (i + 1 < sequence.groups.size() && sequence.groups[i].size + sequence.groups[i + 1].size <= largest_stage)
            ++pairs[{sequence.groups[i].symbol, sequence.groups[i + 1].symbol}];
        }
      std::pair<std::size_t, std::size_t> best;
      std::size_t most = fewest - 1;
      for (auto const& [pair, count] : pairs) {
        auto const& [a, b] = pair;
        bool const movable = is_movable(a) && is_movable(b) && a != b;
        if (movable && count > most && 2 * count >= std::max(uses[a], uses[b])) most = count, best = pair;
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

  /// A number as a function of parameters: factor * parameter + constant, or parameter + sign * other; with factor 0
  /// the constant.
  struct OfParameter {
    std::size_t parameter;
    Index factor, constant;
    Index sign = 0;
    std::size_t other = 0;
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
      for (std::size_t p = 0; p < parameters.size() && !found; ++p) {
        std::size_t const m = parameters[p];
        Index const across = (*differs)[m] - uses.front()[m], up = (*differs)[n] - first;
        if (choices[m] != choices[n] || across == 0 || up % across != 0) continue;
        Index const factor = up / across, constant = first - factor * uses.front()[m];
        if (std::ranges::all_of(uses, [&](auto const& use) { return use[n] == factor * use[m] + constant; }))
          found = {p, factor, constant};
      }
      for (std::size_t p = 0; p < parameters.size() && !found; ++p)
        for (std::size_t other = 0; other < parameters.size() && !found; ++other)
          for (Index sign : {1, -1}) {
            if (found || p == other || choices[n] || choices[parameters[p]] || choices[parameters[other]]) continue;
            auto const fits = [&](auto const& use) {
              return use[n] == use[parameters[p]] + sign * use[parameters[other]];
            };
            if (std::ranges::all_of(uses, fits)) found = {p, 1, 0, sign, other};
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
    std::string operand = statement.text.starts_with("for ") ? "iterations" : "number";
    for (Word const& word : Word::in(statement.text)) {
      std::string_view const text = std::string_view(statement.text).substr(word.begin, word.size);
      char const after = word.begin + word.size < statement.text.size() ? statement.text[word.begin + word.size] : ' ';
      if (!word.number) {
        if (after == '[' || (after == '(' && text.ends_with(".ap") && text != ".ap"))
          operand = text.substr(0, text.find('.'));
        if (after == '=' && text != "dst" && text != "src" && text != "data" && text != "pattern" && text != "offset")
          operand = text;
      } else if (!word.choices.empty()) {
        names.push_back(operand);
      } else {
        bool const is_count = operand == "iterations";
        names.push_back(
            is_count ? operand
                     : operand + (statement.text.compare(word.begin + word.size, 3, " % ") == 0 ? "_tile" : "_at"));
      }
    }
    for (Statement const& inner : statement.body) name_numbers(inner, names);
  }

  /// The name, with a number if it has been taken; takes it.
  static std::string new_name(std::set<std::string>& taken, std::string const& name) {
    std::string made = name;
    for (int copy = 2; !taken.insert(made).second; ++copy) made = name + "_" + std::to_string(copy);
    return made;
  }

  static void engines_of(Statement const& statement, std::set<std::string>& into) {
    if (!statement.engine.empty()) into.emplace(statement.engine);
    for (Statement const& inner : statement.body) engines_of(inner, into);
  }

  static std::vector<Statement> scheduled(std::vector<Statement> statements);

  Function function_of(Items const& items, std::size_t begin, std::size_t size, std::vector<OfParameter> const& numbers,
                       std::vector<std::size_t> const& parameters);

  /// Counts the calls of functions in the text, and puts the functions in the order of their first call.
  static void count_calls(std::vector<Statement> const& body, std::vector<Function>& functions,
                          std::vector<std::size_t>& order, bool in_schedule = false) {
    for (Statement const& statement : body) {
      count_calls(statement.body, functions, order, statement.kind == Statement::Kind::schedule);
      if (statement.function < 0) continue;
      Function& function = nth(functions, statement.function);
      if (function.calls + function.rows == 0) order.push_back(static_cast<std::size_t>(statement.function));
      ++(in_schedule ? function.rows : function.calls);
    }
  }

  Repeats& repeats_;
  PythonNames& names_;
};

inline Function Stages::function_of(Items const& items, std::size_t begin, std::size_t size,
                                    std::vector<OfParameter> const& numbers,
                                    std::vector<std::size_t> const& parameters) {
  Function made;
  std::vector<std::string> names;
  std::set<std::string> seen;
  std::vector<std::string> results;  // that it does not read itself
  auto const visit = [&](auto const& self, Statement const& statement) -> void {
    std::string_view const text = statement.text;
    if (text.starts_with("for ")) seen.emplace(text.substr(4, text.find(' ', 4) - 4));  // has its value in the function
    if (!statement.engine.empty()) {
      std::string_view const call = text.substr(0, text.find(Statement::separator));
      made.instructions.emplace(call.substr(call.find('.') + 1));
    }
    std::string_view keyword;
    std::string result;
    for (Word const& word : Word::in(text)) {
      std::string_view const whole = text.substr(word.begin, word.size);
      if (word.begin + word.size < text.size() && text[word.begin + word.size] == '=') {
        keyword = whole;
        continue;
      }
      std::string const name(whole.substr(0, whole.find('.')));
      if (!names_.is_local(name)) continue;
      bool const is_result = keyword.starts_with("dst") || keyword == "reduce_res";
      if (keyword == "dst") result = name;
      if (keyword == "dst" || (!is_result && name != result)) std::erase(results, name);
      if (keyword == "dst") results.push_back(name);
      if (is_result) made.writes.insert(name);
      if (seen.insert(name).second) made.names.push_back(name);
    }
    for (Statement const& inner : statement.body) self(self, inner);
  };
  for (std::size_t i = begin; i < begin + size; ++i) {
    visit(visit, items[i].statement);
    name_numbers(items[i].statement, names);
  }
  if (!results.empty()) made.name = results.front(), made.constant = results.back();
  if (results.size() > 1) made.name += (results.size() == 2 ? "_and_" : "_to_") + results.back();
  for (std::size_t parameter : parameters) made.integers.push_back(new_name(seen, names[parameter]));
  std::vector<Expression> expressions;
  for (auto const& [parameter, factor, constant, sign, other] : numbers) {
    std::string name = factor == 0 ? std::string() : made.integers[parameter];
    if (sign != 0) name += (sign > 0 ? " + " : " - ") + made.integers[other];
    expressions.push_back({name, factor, constant});
  }
  std::size_t offset = 0;
  for (std::size_t i = begin; i < begin + size; ++i) {
    std::size_t number = offset;
    made.body.push_back(with(items[i].statement, expressions, number));
    offset = number;
  }
  return made;
}

/// Schedules in place of calls that follow each other.
inline std::vector<Statement> Stages::scheduled(std::vector<Statement> statements) {
  std::vector<Statement> result;
  for (auto at = statements.begin(); at != statements.end();) {
    auto const end =
        std::find_if(at, statements.end(), [](Statement const& statement) { return statement.row.empty(); });
    if (end - at >= shortest_schedule) {
      Statement& schedule = result.emplace_back(Statement{""});
      schedule.kind = Statement::Kind::schedule;
      schedule.body.assign(std::move_iterator(at), std::move_iterator(end));
    } else {
      result.insert(result.end(), std::move_iterator(at), std::move_iterator(end));
    }
    at = end;
    if (at != statements.end()) result.push_back(std::move(*at++));
  }
  return result;
}

inline std::vector<Function> Stages::extract(std::vector<Statement>& statements) {
  std::vector<Sequence> sequences;
  collect(statements, sequences);
  join(sequences, repeats_.forms());
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
  std::set<std::string> names;
  for (std::vector<Use>& uses : ordered) {
    std::erase_if(uses, moves_with_holder);
    if (uses.size() < fewest) continue;
    std::vector<std::vector<Index>> numbers;
    std::vector<bool> choices;
    std::set<std::string> engines;
    for (Use const& use : uses) {
      auto& own = numbers.emplace_back();
      choices.clear();
      for (std::size_t i = 0; i < group_of(use).size; ++i) {
        Item const& item = sequences[use.sequence].items[group_of(use).begin + i];
        own.insert(own.end(), item.numbers.begin(), item.numbers.end());
        choices.insert(choices.end(), item.choices.begin(), item.choices.end());
        engines_of(item.statement, engines);
      }
    }
    auto const [expressions, parameters] = parameters_of(numbers, choices);
    Group const& first = group_of(uses.front());
    Function function =
        function_of(sequences[uses.front().sequence].items, first.begin, first.size, expressions, parameters);
    function.engines = std::move(engines);
    bool const in_schedule =
        std::ranges::all_of(function.names, [&](auto& given) { return names_.is_constant(given); });
    std::size_t call_size = 6 + function.name.size() + 6 * parameters.size();  // an integer, comma and space
    if (!in_schedule)
      for (std::string const& name : function.names) call_size += name.size() + 2;
    std::size_t const lines = size_of(uses.front(), &Item::lines);
    std::size_t const after = in_schedule ? uses.size() * call_size / 100 : uses.size() * Repeats::lines_of(call_size);
    std::size_t const around = lines_around_function + (in_schedule ? lines_of_number : 0);
    if (uses.size() * lines <= after + lines + around) continue;
    std::string const name = new_name(names, function.name);
    function.name = names_.claim("make_" + name);
    // Rows are short: the first word of the last result, and a number where others begin with it, too.
    std::string const word = function.constant.substr(0, function.constant.find('_'));
    function.constant = names_.claim(new_name(names, capitals(word)));
    for (std::size_t u = 0; u < uses.size(); ++u) {
      Statement call{function.name};
      call.function = static_cast<int>(functions.size());
      for (std::string const& argument : function.names) (call.text += Statement::separator) += argument;
      std::string row = "(" + function.constant + (parameters.empty() ? "," : "");
      for (std::size_t parameter : parameters) {
        std::string const number = std::to_string(numbers[u][parameter]);
        (call.text += Statement::separator) += number;
        row += ", " + number;
      }
      if (in_schedule) call.row = row + ")";
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
      if (!statement.body.empty() && !repeats_.is_own_loop(statement)) statement.depth = depth_of(statement.body);
    *sequences[s].body = scheduled(std::move(replaced));
  }
  std::vector<std::size_t> order;
  count_calls(statements, functions, order);
  std::vector<Function> ordered_functions;
  for (std::size_t number : order) ordered_functions.push_back(std::move(functions[number]));
  return ordered_functions;
}

}  // namespace annulus::nki::print_detail
