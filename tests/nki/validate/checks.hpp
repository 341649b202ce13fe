#pragma once
// Small programs and expected findings for the tests of the validator.

#include <string>

#include "annulus/nki/program/builder.hpp"
#include "annulus/nki/validate/validate.hpp"
#include "support/catch.hpp"

namespace annulus_test::validator_cases {

using namespace annulus;
using namespace annulus::nki;

/// A Builder of small programs, with tiles that are filled when they are made.
struct Draft : Builder {
  explicit Draft(int cores = 1, int ranks = 1, Target target = Target::trn2) : Builder("draft", target, cores, ranks) {}

  TileHandle filled(std::string name, Index partitions, Index elements, ElementType type = ElementType::float32,
                    Memory memory = Memory::sbuf) {
    TileHandle const made = tile(std::move(name), memory, partitions, elements, type);
    fill(made.whole());
    return made;
  }
  void fill(Access const& access) { emit(Memset{access, 0.0f}); }
  /// A tensor without defined elements.
  TensorHandle scratch(std::string name, std::vector<Index> shape, ElementType type = ElementType::float32) {
    return tensor(std::move(name), std::move(shape), type);
  }
  TensorHandle input(std::string name, std::vector<Index> shape, ElementType type = ElementType::float32) {
    return tensor(std::move(name), std::move(shape), type, Role::input);
  }
  Program done() { return std::move(*this).finish(); }
};

/// A finding; the message must contain in_message.
struct Expected {
  std::string rule, instruction, operand;
  std::string in_message;  ///< with the value seen and the limit
};

/// Checks that the program has this fault only, and that validate throws for it.
inline void check_refused(Program const& program, Expected const& expected) {
  Hardware const hardware = hardware_of(program.target);
  std::vector<Finding> const found = findings(program, hardware);
  for (Finding const& finding : found) UNSCOPED_INFO(text_of(finding));
  REQUIRE(found.size() == 1);
  CHECK(name_of(found[0].rule) == expected.rule);
  CHECK(found[0].instruction == expected.instruction);
  CHECK(found[0].operand == expected.operand);
  CHECK_THAT(found[0].message, Catch::Matchers::ContainsSubstring(expected.in_message));
  if (expected.rule == "R18")
    CHECK_THROWS_AS(validate(program, hardware), UnsupportedError);
  else
    CHECK_THROWS_AS(validate(program, hardware), ShapeError);
}

inline void check_accepted(Program const& program, Assumptions const& assumptions = {}) {
  std::vector<Finding> const found = findings(program, hardware_of(program.target), 20, assumptions);
  for (Finding const& finding : found) UNSCOPED_INFO(text_of(finding));
  CHECK(found.empty());
  CHECK_NOTHROW(validate(program, hardware_of(program.target), assumptions));
}

}  // namespace annulus_test::validator_cases
