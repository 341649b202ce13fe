#pragma once
// Rolling of repeated code into loops: bodies that differ only by a constant step of their indices become one Loop.

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/program/builder.hpp"

namespace annulus::nki {

namespace roll_detail {

inline void find_indices(Body& body, std::vector<Affine*>& found) {
  struct {
    std::vector<Affine*>& found;
    void operator()(std::string_view, Use, Access& access) { found.push_back(&access.offset); }
    void operator()(std::string_view, Affine& index) { found.push_back(&index); }
  } collect{found};
  for (Node& node : body) {
    if (auto* instruction = std::get_if<Instruction>(&node.content))
      for_each_access(*instruction, collect);
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

/// Renames the loop variables of `b` to those of the corresponding loops in `a`, so that equal loops that were created
/// with separate variables compare equal.
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

/// Differences between corresponding indices of b and a; nullopt if the bodies differ in anything else.
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
  // With the indices made equal, any remaining difference is not a constant step of an index.
  for (std::size_t i = 0; i < steps.size(); ++i) *seconds[i] += -steps[i];
  bool const equal = a == b;
  for (std::size_t i = 0; i < steps.size(); ++i) *seconds[i] += steps[i];
  return equal ? std::optional(std::move(steps)) : std::nullopt;
}

/// Appends a loop of `count` iterations: `bodies` form the first, steps[i] holds the index increments of bodies[i].
inline void append_loop(Builder& builder, std::string const& name, std::size_t count, std::span<Body> bodies,
                        std::vector<std::vector<Index>> const& steps) {
  Variable const variable = builder.make_variable(name);
  Loop loop{variable, static_cast<Index>(count), {}};
  for (std::size_t place = 0; place < bodies.size(); ++place) {
    std::vector<Affine*> const indices = indices_of(bodies[place]);
    for (std::size_t i = 0; i < indices.size(); ++i) *indices[i] += Affine::of(variable, steps[place][i]);
    for (Node& node : bodies[place]) loop.body.push_back(std::move(node));
  }
  Body rolled;
  rolled.emplace_back().content = std::move(loop);
  builder.append(std::move(rolled));
}

}  // namespace roll_detail

/// Appends the bodies to the program. Where a sequence of up to `longest_period` bodies repeats at least three times,
/// each index advancing by its own constant step, the repetitions become a loop of that name.
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
    roll_detail::append_loop(builder, loop_name, count, std::span(bodies).subspan(first, period), steps);
    first += count * period;
  }
}

/// Rolls bodies with one known period as they are added. Only the first two and the most recent repetition of a run are
/// held, so a long run of large bodies is never in memory.
class Roller {
 public:
  Roller(Builder& builder, std::string loop_name, std::size_t period)
      : builder_(&builder), name_(std::move(loop_name)), period_(period) {}

  void add(Body body) {
    if (count_ >= period_ && !continues(body)) {
      if (count_ >= least()) {
        flush();
      } else {
        // No run starts at the first held body; retry from the second.
        std::vector<Body> rest = std::move(held_);
        begin_run();
        builder_->append(std::move(rest.front()));
        for (std::size_t i = 1; i < rest.size(); ++i) add(std::move(rest[i]));
        add(std::move(body));
        return;
      }
    }
    // Beyond the shortest run, a body overwrites the one a period before it.
    if (count_ < least())
      held_.push_back(std::move(body));
    else
      held_[least() - period_ + (count_ - least()) % period_] = std::move(body);
    ++count_;
  }

  /// Emits what is held; call after the last body.
  void flush() {
    std::size_t const iterations = count_ / period_, rest = count_ % period_;
    if (count_ < least()) {
      for (Body& body : held_) builder_->append(std::move(body));
      begin_run();
      return;
    }
    std::vector<Body> after;
    for (std::size_t i = 0; i < rest; ++i) after.push_back(std::move(held_[place_of(iterations * period_ + i)]));
    roll_detail::append_loop(*builder_, name_, iterations, std::span(held_).first(period_), steps_);
    for (Body& body : after) builder_->append(std::move(body));
    begin_run();
  }

 private:
  /// Bodies of the shortest run: three repetitions.
  std::size_t least() const { return 3 * period_; }
  /// Index in held_ of body `number` of the run, if it is still held.
  std::size_t place_of(std::size_t number) const {
    return number < least() ? number : least() - period_ + (number - least()) % period_;
  }

  bool continues(Body& body) {
    auto found = roll_detail::steps_between(held_[place_of(count_ - period_)], body);
    if (!found) return false;
    std::size_t const place = count_ % period_;
    if (count_ < 2 * period_)
      steps_.push_back(std::move(*found));
    else if (steps_[place] != *found)
      return false;
    return true;
  }

  void begin_run() {
    held_.clear();
    steps_.clear();
    count_ = 0;
  }

  Builder* builder_;
  std::string name_;
  std::size_t period_;
  std::vector<Body> held_;
  std::vector<std::vector<Index>> steps_;
  std::size_t count_ = 0;
};

}  // namespace annulus::nki
