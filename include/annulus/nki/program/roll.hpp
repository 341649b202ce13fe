#pragma once
// Rolling of repeated code into loops: bodies that differ only by a constant step of their indices become one Loop.
// These loops are the program's; print/repeats.hpp makes loops of its text, and the program stays the same.

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "annulus/nki/program/builder.hpp"

namespace annulus::nki {

namespace roll_detail {

/// Every index of a body, in the same order for bodies of the same form.
inline std::vector<Affine*> indices_of(Body& body) {
  std::vector<Affine*> found;
  for_each_node(body, [&](Node& node) {
    if (auto* section = std::get_if<Section>(&node.content)) found.push_back(&section->number);
    if (auto* instruction = std::get_if<Instruction>(&node.content))
      for_each_field(*instruction, [&]<class Value>(std::string_view, Value& value, Use) {
        if constexpr (std::same_as<Value, Access>)
          found.push_back(&value.offset);
        else if constexpr (std::same_as<Value, Affine>)
          found.push_back(&value);
      });
  });
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
        *index = index->with(second->variable, Affine::of(first->variable));
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

/// A sequence of bodies that repeats with a period, each index advancing by its own constant step.
struct Run {
  std::size_t period;
  std::size_t length = 0;                   ///< in bodies
  std::vector<std::vector<Index>> steps{};  ///< of the indices of the first `period` bodies

  /// Adds a body, unless it does not continue the run; `earlier` is the body a period before it, if there is one.
  bool add(Body* earlier, Body& body) {
    if (length >= period) {
      auto found = steps_between(*earlier, body);
      if (!found || (length >= 2 * period && steps[length % period] != *found)) return false;
      if (length < 2 * period) steps.push_back(std::move(*found));
    }
    ++length;
    return true;
  }

  /// The shortest run that becomes a loop has three iterations.
  bool is_loop() const { return length >= 3 * period; }
  std::size_t iterations() const { return length / period; }
  /// Bodies that a loop saves.
  std::size_t repeated() const { return (iterations() - 1) * period; }

  /// Appends the loop; `first` holds the bodies of its first iteration.
  void append_loop(Builder& builder, std::string const& name, std::span<Body> first) const {
    builder.loop(name, static_cast<Index>(iterations()), [&](Affine const& iteration) {
      for (std::size_t place = 0; place < period; ++place) {
        std::vector<Affine*> const indices = indices_of(first[place]);
        for (std::size_t i = 0; i < indices.size(); ++i) *indices[i] += iteration * steps[place][i];
        builder.append(std::move(first[place]));
      }
    });
  }
};

}  // namespace roll_detail

/// Appends the bodies to the program. Where a sequence of up to `longest_period` bodies repeats at least three times,
/// each index advancing by its own constant step, the repetitions become a loop of that name.
inline void append_rolled(Builder& builder, std::string const& loop_name, std::vector<Body> bodies,
                          std::size_t longest_period = 1) {
  for (std::span<Body> rest(bodies); !rest.empty();) {
    roll_detail::Run best{1, 1, {}};  // the first body alone
    for (std::size_t period = 1; period <= longest_period && 3 * period <= rest.size(); ++period) {
      roll_detail::Run run{period};
      while (run.length < rest.size() &&
             run.add(run.length < period ? nullptr : &rest[run.length - period], rest[run.length])) {
      }
      if (run.is_loop() && run.repeated() > best.repeated()) best = std::move(run);
    }
    if (best.is_loop())
      best.append_loop(builder, loop_name, rest.first(best.period));
    else
      builder.append(std::move(rest.front()));
    rest = rest.subspan(best.iterations() * best.period);
  }
}

/// Rolls bodies with one known period as they are added. Only the first and the last two repetitions of a run are held,
/// so a long run of large bodies is never in memory.
class Roller {
 public:
  Roller(Builder& builder, std::string loop_name, std::size_t period)
      : builder_(&builder), name_(std::move(loop_name)), run_{period} {}

  void add(Body body) {
    std::size_t const period = run_.period;
    if (!run_.add(held_.size() < period ? nullptr : &held_[held_.size() - period], body)) {
      std::vector<Body> again;
      if (!run_.is_loop()) {
        // No run starts at the first held body; retry from the second.
        again.swap(held_);
        builder_->append(std::move(again.front()));
        again.erase(again.begin());
      }
      flush();
      again.push_back(std::move(body));
      for (Body& next : again) add(std::move(next));
      return;
    }
    held_.push_back(std::move(body));
    if (run_.length > 3 * period) held_.erase(held_.begin() + period);
  }

  /// Emits what is held; call after the last body.
  void flush() {
    std::span<Body> rest(held_);
    if (run_.is_loop()) {
      run_.append_loop(*builder_, name_, rest.first(run_.period));
      rest = rest.last(run_.length % run_.period);
    }
    for (Body& body : rest) builder_->append(std::move(body));
    held_.clear();
    run_ = {run_.period};
  }

 private:
  Builder* builder_;
  std::string name_;
  roll_detail::Run run_;
  std::vector<Body> held_;
};

}  // namespace annulus::nki
