// Loops, stages and schedules that the printer makes of statements.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/print/stages.hpp"
#include "support/catch.hpp"

namespace annulus::nki {
namespace {

using print_detail::block;
using print_detail::Repeats;
using print_detail::Stages;
using print_detail::Statement;
using Statements = std::vector<Statement>;

/// A program with buffers sums and sums_at, variables item_1 and item_2, and a register r0.
Program program_of_names() {
  Program program;
  program.name = "kernel";
  program.variables = {"core", "item_1", "item_2"};
  program.registers.resize(1);
  for (char const* name : {"sums", "sums_at"}) program.buffers.push_back({.name = name, .shape = {128, 64}});
  return program;
}

/// Statements with loops and functions, of program_of_names().
struct Printed {
  Statements body;
  std::vector<print_detail::Function> functions;

  explicit Printed(Statements statements) {
    Repeats repeats({"i", "j", "k", "l"});
    body = repeats.rolled(std::move(statements));
    print_detail::PythonNames names(program_of_names());
    functions = Stages(repeats, names).extract(body);
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
  CHECK(printed.functions[0].names == std::vector<std::string>{"sums", "item_2"});
  CHECK(printed.functions[0].integers.size() == 1);
}

TEST_CASE("nothing moves out of a loop of the printer, whose variable a function would not know") {
  Statements body;
  for (int number : uneven) {
    body.push_back(comment("part"));
    for (int inner = 0; inner < 3; ++inner) {
      body.push_back(step("a", std::to_string(number + inner), number));
      body.push_back(step("b", std::to_string(number + 5 * inner), number));
    }
  }
  Printed const printed(std::move(body));
  REQUIRE(printed.functions.size() == 1);
  REQUIRE(printed.functions[0].body.size() == 1);
  CHECK(printed.functions[0].body[0].text == "for i in range(3):");
  CHECK(printed.functions[0].body[0].body.size() == 2);
}

TEST_CASE("calls that follow each other are rows of a schedule, with the integers of each") {
  Statements body;
  for (int repeat = 0; repeat < 3; ++repeat)
    for (int number : uneven) body.push_back(step("a", "0", number + repeat));
  Printed const printed(std::move(body));
  REQUIRE(printed.functions.size() == 1);
  print_detail::Function const& function = printed.functions[0];
  CHECK(function.rows == 21);
  CHECK(function.calls == 0);
  CHECK(function.constant == "SUMS");
  REQUIRE(printed.body.size() == 1);
  CHECK(printed.body[0].kind == Statement::Kind::schedule);
  REQUIRE(printed.body[0].body.size() == 21);
  CHECK(printed.body[0].body[6].row == "(SUMS, 64)");
}

TEST_CASE("integers have names that are not those of the kernel") {
  Statements body;
  for (int repeat = 0; repeat < 3; ++repeat)
    for (int number : uneven) body.push_back(step("a", std::to_string(number + repeat), 0));
  Printed const printed(std::move(body));
  REQUIRE(printed.functions.size() == 1);
  CHECK(printed.functions[0].integers == std::vector<std::string>{"sums_at_number"});
}

TEST_CASE("calls that are given what changes in the kernel are in no schedule") {
  Statements body;
  for (int repeat = 0; repeat < 3; ++repeat)
    for (int number : uneven) body.push_back(step("a", "item_1", number + repeat));
  Printed const printed({block("for item_1 in range(9):", std::move(body))});
  REQUIRE(printed.functions.size() == 1);
  CHECK(printed.functions[0].rows == 0);
  CHECK(printed.functions[0].calls == 21);
}

TEST_CASE("a choice of a keyword is an integer of the stage, an index into its alternatives") {
  Statements body;
  for (std::string const value : {"True", "False"})
    for (int number : uneven) {
      Statement statement = step("nisa.tensor_scalar", "0", number);
      statement.text += std::string(1, Statement::separator) + "accumulate=" + value + Statement::separator +
                        "engine=" + (value == "True" ? "nisa.engine.vector" : "nisa.engine.scalar");
      body.push_back(std::move(statement));
    }
  Printed const printed(std::move(body));
  REQUIRE(printed.functions.size() == 1);
  std::string const& text = printed.functions[0].body[0].text;
  CHECK(text.find("accumulate=accumulate == 1") != std::string::npos);
  CHECK(text.find("engine=(nisa.engine.scalar, nisa.engine.vector)[") != std::string::npos);
}

TEST_CASE("a choice of engines names those alone that execute the instruction") {
  for (auto const& [call, engines] : {std::pair{"nisa.tensor_tensor", "(nisa.engine.vector, nisa.engine.gpsimd)"},
                                      std::pair{"nisa.memset", "(nisa.engine.vector, nisa.engine.gpsimd)"},
                                      std::pair{"nisa.tensor_copy",
                                                "(nisa.engine.scalar, nisa.engine.vector, "
                                                "nisa.engine.gpsimd)"}}) {
    Statements body;
    for (std::string const engine : {"vector", "gpsimd"})
      for (int number : uneven) {
        Statement statement = step(call, "0", number);
        statement.text += std::string(1, Statement::separator) + "engine=nisa.engine." + engine;
        body.push_back(std::move(statement));
      }
    Printed const printed(std::move(body));
    REQUIRE(printed.functions.size() == 1);
    CHECK(printed.functions[0].body[0].text.find(std::string("engine=") + engines + "[") != std::string::npos);
  }
}

TEST_CASE("a number that is the sum or the difference of two others is no parameter") {
  Statements body;
  for (int start : {0, 100, 1000})
    for (int number : uneven) {
      int const size = start + number, square = number * number;
      Statement statement = step("a", "0", size);
      for (int other : {square, square + size, square * number + size, square * number})
        statement.text += std::string(1, Statement::separator) + "x=y[" + std::to_string(other) + "]";
      body.push_back(std::move(statement));
    }
  Printed const printed(std::move(body));
  REQUIRE(printed.functions.size() == 1);
  CHECK(printed.functions[0].integers.size() == 3);
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
  CHECK(printed.functions[0].calls == 7);
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
