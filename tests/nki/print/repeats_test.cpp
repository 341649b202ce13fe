// Loops and functions that the printer makes of statements.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/print/repeats.hpp"
#include "support/catch.hpp"

namespace annulus::nki {
namespace {

using print_detail::block;
using print_detail::Repeats;
using print_detail::Statement;
using Statements = std::vector<Statement>;

/// Statements with loops and functions. Names of letters followed by underscore and number are the program's: item_1.
struct Printed {
  Statements body;
  std::vector<print_detail::Function> functions;

  explicit Printed(Statements statements) {
    Repeats repeats(
        {"i", "j", "k", "l"}, [](std::string const& name) { return name.starts_with("item_") || name == "r0"; },
        [](std::string name) { return name; });
    body = repeats.rolled(std::move(statements));
    functions = repeats.extract(body);
  }

  std::string text() const {
    std::string lines;
    add(body, "", lines);
    return lines;
  }

  static void add(Statements const& statements, std::string const& margin, std::string& lines) {
    for (Statement const& statement : statements) {
      lines += margin + statement.text + "\n";
      add(statement.body, margin + "  ", lines);
    }
  }
};

/// A line of `operation` that is long enough to move.
Statement step(std::string const& operation, std::string const& index, int number) {
  return {operation + Statement::separator + "dst=sums[" + index + "]" + Statement::separator +
          "data=" + std::string(120, 'x') + "[" + std::to_string(number) + "]"};
}

/// Keeps the groups around it apart, in no loop or function.
Statement comment(std::string text) { return {.text = "# " + std::move(text), .kind = Statement::Kind::comment}; }

/// Numbers that advance by no constant step.
constexpr int uneven[] = {1, 2, 4, 8, 16, 32, 64};

int count_of(std::string const& text, std::string const& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST_CASE("a function is given the variables of loops around it, not those of loops inside it") {
  Statements body;
  for (int number : uneven) {
    body.push_back(comment("part"));
    body.push_back(block("for item_1 in range(2):", {step("a", "item_1", number), step("b", "item_2", number)}));
  }
  Printed const printed({block("for item_2 in range(9):", std::move(body))});
  REQUIRE(printed.functions.size() == 1);
  CHECK(printed.functions[0].parameters.size() == 2);
  CHECK(printed.functions[0].parameters[0] == "item_2");
}

TEST_CASE("nothing moves out of a loop of the printer, whose variable a function would not know") {
  Statements body;
  for (int outer = 0; outer < 3; ++outer) {
    for (int number : uneven) {
      body.push_back(step("a", std::to_string(outer), number));
      for (int inner = 0; inner < 3; ++inner) body.push_back(step("b", std::to_string(1 + 5 * outer + inner), number));
      body.push_back(step("c", std::to_string(outer), number));
    }
  }
  Printed const printed(std::move(body));
  CHECK(printed.body.size() == 1);
  CHECK(printed.body[0].text == "for j in range(3):");
  CHECK(printed.functions.empty());
}

TEST_CASE("loops of calls have other variables than the loops around them") {
  constexpr int many = 70;  // more than the longest period of a loop, so that only calls of functions become loops
  Statements body;
  for (int outer = 0; outer < 3; ++outer) {
    Statements inner;
    for (int part = 0; part < 3; ++part)
      for (int n = 0; n < many; ++n) inner.push_back(step("a" + std::to_string(n) + "_", "0", 1 + 10 * outer + part));
    inner.push_back({.text = "r0 = 1", .kind = Statement::Kind::assignment});  // the block itself does not move
    body.push_back(block("if core == 0:", std::move(inner)));
    for (int n = 0; n < many; ++n) body.push_back(step("b" + std::to_string(n) + "_", "0", 1 + outer));
  }
  Printed const printed(std::move(body));
  CHECK(printed.functions.size() == 2);
  std::string const text = printed.text();
  INFO(text);
  CHECK(text.starts_with("for j in range(3):\n  if core == 0:\n    for i in range(3):\n"));
  for (print_detail::Function const& function : printed.functions) CHECK(function.size.ends_with("called in 1 place"));
}

TEST_CASE("functions say how often the text calls them, and none is without a call") {
  // The statements in the blocks would be a function of their own, but move with the blocks.
  Statements body;
  for (int number : uneven) {
    body.push_back(comment("part"));
    body.push_back(step("a", "0", number));
    body.push_back(block("for item_1 in range(2):", {step("b", "item_1", number), step("c", "item_1", number)}));
  }
  Printed const printed(std::move(body));
  REQUIRE(printed.functions.size() == 1);
  CHECK(printed.functions[0].size.ends_with("called in 7 places"));
  CHECK(count_of(printed.text(), printed.functions[0].name + Statement::separator) == 7);
}

TEST_CASE("bodies of the program's loops are searched, whatever their variables are named") {
  for (std::string const variable : {"item_1", "i_1", "j_2"}) {
    Statements body;
    for (int number : uneven) {
      body.push_back(comment("part"));
      body.push_back(step("a", variable, number));
      body.push_back(step("b", variable, number));
    }
    CHECK(Printed({block("for " + variable + " in range(9):", std::move(body))}).functions.size() == 1);
  }
}

TEST_CASE("a block that assigns a name does not move: the name is used after it") {
  Statements body;
  for (int number : uneven) {
    Statement assignment = step("r0 = a", "item_1", number);
    assignment.kind = Statement::Kind::assignment;
    body.push_back(comment("part"));
    body.push_back(block("for item_1 in range(2):", {assignment, step("b", "item_1", number)}));
  }
  for (print_detail::Function const& function : Printed(std::move(body)).functions)
    CHECK(std::ranges::none_of(function.body, [](Statement const& statement) { return !statement.body.empty(); }));
}

}  // namespace
}  // namespace annulus::nki
