#pragma once
// Rolls repeated code into counted loops: bodies that differ only by a constant step of their indices become one Loop.

#include <optional>
#include <utility>
#include <vector>

#include "annulus/backend/nki/program/builder.hpp"

namespace annulus::nki {

namespace roll_detail {

/// Finds every Affine of an instruction, in the order of its fields.
struct IndexFinder {
  std::vector<Affine*>& found;
  void operator()(std::string_view, Use, Access& access) { found.push_back(&access.offset); }
  void operator()(std::string_view, Use, std::optional<Access>& access) {
    if (access) found.push_back(&access->offset);
  }
  void operator()(std::string_view, Scalar& scalar) {
    if (auto* access = std::get_if<Access>(&scalar)) found.push_back(&access->offset);
  }
  void operator()(std::string_view, Affine& index) { found.push_back(&index); }
  template <class Value>
    requires(!std::same_as<Value, Affine> && !std::same_as<Value, Scalar>)
  void operator()(std::string_view, Value&) {}
};

inline void find_indices(Body& body, std::vector<Affine*>& found) {
  for (Node& node : body) {
    if (auto* instruction = std::get_if<Instruction>(&node.content))
      std::visit([&]<class I>(I& typed) { I::fields(typed, IndexFinder{found}); }, *instruction);
    else if (auto* section = std::get_if<Section>(&node.content))
      found.push_back(&section->number);
    else if (auto* loop = std::get_if<Loop>(&node.content))
      find_indices(loop->body, found);
    else if (auto* branch = std::get_if<OnCore>(&node.content))
      find_indices(branch->body, found);
  }
}

inline std::vector<Affine*> indices_of(Body& body) {
  std::vector<Affine*> found;
  find_indices(body, found);
  return found;
}

/// Loops of equal bodies were made one by one, each with its own variable: those of `b` take the names of their
/// partners in `a`.
inline void share_variables(Body const& a, Body& b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    auto const* first = a[i].as<Loop>();
    auto* second = std::get_if<Loop>(&b[i].content);
    if (!first || !second) continue;
    if (first->variable != second->variable) {
      for (Affine* index : indices_of(second->body))
        for (Affine::Term const term : std::vector(index->terms().begin(), index->terms().end()))
          if (term.variable == second->variable)
            *index += Affine::of(term.variable, -term.coefficient) + Affine::of(first->variable, term.coefficient);
      second->variable = first->variable;
    }
    share_variables(first->body, second->body);
  }
}

/// How far each index of b is ahead of its partner in a; nothing where the bodies differ in anything else.
inline std::optional<std::vector<Index>> steps_between(Body& a, Body& b) {
  if (a.size() != b.size()) return std::nullopt;
  share_variables(a, b);
  std::vector<Affine*> const firsts = indices_of(a), seconds = indices_of(b);
  if (firsts.size() != seconds.size()) return std::nullopt;
  std::vector<Index> steps;
  for (std::size_t i = 0; i < firsts.size(); ++i) {
    Affine const difference = *seconds[i] - *firsts[i];
    if (!difference.is_constant()) return std::nullopt;
    steps.push_back(difference.constant());
  }
  // With the indices made equal, whatever still differs is something else.
  for (std::size_t i = 0; i < steps.size(); ++i) *seconds[i] += -steps[i];
  bool const equal = a == b;
  for (std::size_t i = 0; i < steps.size(); ++i) *seconds[i] += steps[i];
  return equal ? std::optional(std::move(steps)) : std::nullopt;
}

}  // namespace roll_detail

/// Appends the bodies to the program; where up to `longest_period` consecutive bodies repeat at least three times, each
/// index by its own constant step, they become a loop of that name.
inline void append_rolled(Builder& builder, std::string const& loop_name, std::vector<Body> bodies,
                          std::size_t longest_period = 1) {
  using Steps = std::vector<Index>;
  for (std::size_t first = 0; first < bodies.size();) {
    std::size_t period = 0, count = 0;
    std::vector<Steps> steps;
    for (std::size_t tried = 1; tried <= longest_period && first + 3 * tried <= bodies.size(); ++tried) {
      std::vector<Steps> found;
      std::size_t matched = first;
      for (; matched + tried < bodies.size(); ++matched) {
        auto step = roll_detail::steps_between(bodies[matched], bodies[matched + tried]);
        if (!step) break;
        if (std::size_t const place = (matched - first) % tried; matched - first < tried)
          found.push_back(std::move(*step));
        else if (found[place] != *step)
          break;
      }
      std::size_t const repeats = (matched - first) / tried + 1;
      if (repeats < 3 || (repeats - 1) * tried <= (count > 0 ? (count - 1) * period : 0)) continue;
      period = tried;
      count = repeats;
      steps = std::move(found);
    }
    if (count == 0) {
      builder.append(std::move(bodies[first++]));
      continue;
    }
    Variable const variable = builder.make_variable(loop_name);
    Loop loop{variable, static_cast<Index>(count), {}};
    for (std::size_t place = 0; place < period; ++place) {
      Body& body = bodies[first + place];
      std::vector<Affine*> const indices = roll_detail::indices_of(body);
      for (std::size_t i = 0; i < indices.size(); ++i) *indices[i] += Affine::of(variable, steps[place][i]);
      for (Node& node : body) loop.body.push_back(std::move(node));
    }
    Body rolled;
    rolled.emplace_back().content = std::move(loop);
    builder.append(std::move(rolled));
    first += count * period;
  }
}

}  // namespace annulus::nki
