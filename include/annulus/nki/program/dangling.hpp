#pragma once
// Search for dangling references: numbers of buffers, variables or registers that a program does not have.

#include <string>

#include "annulus/nki/program/program.hpp"
#include "annulus/core/check.hpp"

namespace annulus::nki {

namespace dangling_detail {

/// Depth-first search; every function returns the first fault found, or an empty string.
class Search {
 public:
  explicit Search(Program const& program) : program_(program) {}

  std::string in(Body const& body) const {
    for (Node const& node : body) {
      std::string found = std::visit([&](auto const& content) { return of(content); }, node.content);
      if (!found.empty()) return found;
    }
    return {};
  }

 private:
  /// Field visitor that records the first dangling reference of an instruction.
  struct Fields {
    Search const& search;
    std::string found;

    void operator()(std::string_view keyword, Use, Access const& access) { note(keyword, search.of(access)); }
    void operator()(std::string_view keyword, Use use, std::optional<Access> const& access) {
      if (access) (*this)(keyword, use, *access);
    }
    void operator()(std::string_view keyword, Scalar const& scalar) {
      if (auto const* access = std::get_if<Access>(&scalar)) (*this)(keyword, Use::read, *access);
    }
    void operator()(std::string_view keyword, Affine const& index) { note(keyword, search.of(index)); }
    template <class Value>
    requires(!std::same_as<Value, Affine> && !std::same_as<Value, Scalar>) void operator()(std::string_view,
                                                                                           Value const&) {}
    void note(std::string_view keyword, std::string const& what) {
      if (found.empty() && !what.empty()) found = message_of("operand ", keyword, ' ', what);
    }
  };

  template <class Number, class Count>
  static std::string number_of(std::string_view what, Number number, Count count) {
    if (number >= 0 && number < static_cast<Number>(count)) return {};
    return message_of("names ", what, ' ', number, " of ", count);
  }

  std::string of(Instruction const& instruction) const {
    return std::visit(
        [&]<class I>(I const& typed) {
          Fields fields{*this, {}};
          I::fields(typed, fields);
          if constexpr (requires { typed.register_number; })
            fields.note("register", number_of("register", typed.register_number, program_.registers));
          return fields.found.empty() ? std::string() : message_of(I::name, ": ", fields.found);
        },
        instruction);
  }
  std::string of(Access const& access) const {
    std::string found = number_of("buffer", access.buffer, program_.buffers.size());
    if (found.empty() && access.axes().empty()) found = "has no axes";
    if (found.empty()) found = of(access.offset);
    if (found.empty() && access.register_offset)
      found = number_of("register", access.register_offset->register_number, program_.registers);
    return found;
  }
  std::string of(Affine const& index) const {
    for (Affine::Term const& term : index.terms())
      if (std::string found = variable(term.variable); !found.empty()) return found;
    return {};
  }
  std::string of(Allocate const& made) const {
    std::string found = number_of("buffer", made.buffer, program_.buffers.size());
    return found.empty() ? found : "allocate " + found;
  }
  std::string of(Section const& section) const {
    std::string found = of(section.number);
    return found.empty() ? found : message_of("section ", section.name, ' ', found);
  }
  std::string of(Loop const& loop) const {
    std::string found = variable(loop.variable);
    return found.empty() ? in(loop.body) : "a loop " + found;
  }
  std::string of(OnCore const& branch) const { return in(branch.body); }
  std::string variable(Variable number) const { return number_of("variable", number, program_.variables.size()); }

  Program const& program_;
};

}  // namespace dangling_detail

/// Describes the first dangling reference, with its instruction and operand; empty if there is none. Call it before an
/// unvalidated program is executed or costed.
inline std::string dangling(Program const& program) { return dangling_detail::Search(program).in(program.body); }

}  // namespace annulus::nki
