#pragma once
// Repetitions, and rolling of repeated code into loops: bodies that differ only by a constant step of their indices
// become one Loop. These loops are the program's; print/repeats.hpp makes loops of its text, and the program stays the
// same.

#include <algorithm>
#include <concepts>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/nki/program/builder.hpp"

namespace annulus::nki {

/// The beginning of a sequence, as far as it repeats with a period. An Item has `numbers`, and item.repeats(earlier) if
/// the two differ in these alone.
struct Repetition {
  static constexpr std::size_t fewest = 3;  ///< iterations of the shortest loop

  std::size_t period = 1;                   ///< items of an iteration
  std::size_t length = 0;                   ///< in items
  std::vector<std::vector<Index>> steps{};  ///< of the numbers of the first `period` items

  /// Adds an item, unless it does not continue the repetition; `earlier`: the item a period before it, if there is one.
  template <class Item>
  bool add(Item const* earlier, Item& item) {
    if (length >= period) {
      if (!item.repeats(*earlier)) return false;
      std::vector<Index> step(item.numbers.size());
      std::ranges::transform(item.numbers, earlier->numbers, step.begin(), std::minus());
      if (length >= 2 * period && steps[length % period] != step) return false;
      if (length < 2 * period) steps.push_back(std::move(step));
    }
    ++length;
    return true;
  }

  std::size_t iterations() const { return length / period; }   ///< complete ones
  std::size_t items() const { return iterations() * period; }  ///< of complete iterations
  bool is_loop() const { return iterations() >= fewest; }      ///< worth a loop

  /// Of the loops of up to `longest_period` items at the beginning of the sequence, the one that saves most;
  /// size_of(item) is what an item takes. Without a loop the first item alone.
  template <class Item, class Size>
  static Repetition best(std::span<Item> sequence, std::size_t longest_period, Size&& size_of) {
    Repetition best{.length = 1};
    std::size_t most = 0, size = 0;
    for (std::size_t period = 1; period <= longest_period && fewest * period <= sequence.size(); ++period) {
      Repetition found{.period = period};
      for (std::size_t& at = found.length; at < sequence.size();)
        if (!found.add(at < period ? nullptr : &sequence[at - period], sequence[at])) break;
      size += std::invoke(size_of, sequence[period - 1]);
      std::size_t const saved = (found.iterations() - 1) * size;
      if (found.is_loop() && saved > most) best = std::move(found), most = saved;
    }
    return best;
  }
};

namespace roll_detail {

/// Appends the indices of an instruction.
inline void add_indices(Instruction& instruction, std::vector<Affine*>& found) {
  for_each_field(instruction, [&]<class Value>(std::string_view, Value& value, Use) {
    if constexpr (std::same_as<Value, Access>)
      found.push_back(&value.offset);
    else if constexpr (std::same_as<Value, Affine>)
      found.push_back(&value);
  });
}

/// Every index of a body, in the same order for bodies of the same form.
inline std::vector<Affine*> indices_of(Body& body) {
  std::vector<Affine*> found;
  for_each_node(body, [&](Node& node) {
    if (auto* section = std::get_if<Section>(&node.content)) found.push_back(&section->number);
    if (auto* instruction = std::get_if<Instruction>(&node.content)) add_indices(*instruction, found);
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

/// A body without the constants of its indices, and these constants.
struct RolledBody {
  Body body;
  std::vector<Index> numbers{};

  explicit RolledBody(Body of) : body(std::move(of)) {
    for (Affine* index : indices_of(body)) {
      numbers.push_back(index->constant());
      *index += -index->constant();
    }
  }
  bool repeats(RolledBody const& earlier) {
    if (body.size() != earlier.body.size()) return false;
    share_variables(earlier.body, body);
    return body == earlier.body;
  }
  /// The body in an iteration, in each of which its indices advance by `steps`.
  Body at(Affine const& iteration = {}, std::span<Index const> steps = {}) && {
    std::vector<Affine*> const indices = indices_of(body);
    for (std::size_t i = 0; i < indices.size(); ++i)
      *indices[i] += (steps.empty() ? Affine() : iteration * steps[i]) + numbers[i];
    return std::move(body);
  }
};

/// Appends the loop; `first` holds the bodies of its first iteration.
inline void append_loop(Builder& builder, std::string const& name, Repetition const& repetition,
                        std::span<RolledBody> first) {
  builder.loop(name, static_cast<Index>(repetition.iterations()), [&](Affine const& iteration) {
    for (std::size_t place = 0; place < repetition.period; ++place)
      builder.append(std::move(first[place]).at(iteration, repetition.steps[place]));
  });
}

}  // namespace roll_detail

/// Appends the bodies to the program. Where a sequence of up to `longest_period` bodies repeats at least three times,
/// each index advancing by its own constant step, the repetitions become a loop of that name.
inline void append_rolled(Builder& builder, std::string const& loop_name, std::vector<Body> bodies,
                          std::size_t longest_period = 1) {
  std::vector<roll_detail::RolledBody> items(std::move_iterator(bodies.begin()), std::move_iterator(bodies.end()));
  for (std::span rest(items); !rest.empty();) {
    auto const found = Repetition::best(rest, longest_period, [](auto const&) { return std::size_t{1}; });
    if (found.is_loop())
      append_loop(builder, loop_name, found, rest);
    else
      builder.append(std::move(rest.front()).at());
    rest = rest.subspan(found.items());
  }
}

/// Rolls bodies with one known period as they are added. Only the first and the last two repetitions of a run are held,
/// so a long run of large bodies is never in memory.
class Roller {
 public:
  Roller(Builder& builder, std::string loop_name, std::size_t period)
      : builder_(&builder), name_(std::move(loop_name)), run_{.period = period} {}

  void add(Body body) { add(roll_detail::RolledBody(std::move(body))); }

  /// Emits what is held; call after the last body.
  void flush() {
    std::span rest(held_);
    if (run_.is_loop()) {
      append_loop(*builder_, name_, run_, rest);
      rest = rest.last(run_.length % run_.period);
    }
    for (roll_detail::RolledBody& body : rest) builder_->append(std::move(body).at());
    held_.clear();
    run_ = {.period = run_.period};
  }

 private:
  void add(roll_detail::RolledBody body) {
    std::size_t const period = run_.period;
    if (run_.add(held_.size() < period ? nullptr : &held_[held_.size() - period], body)) {
      held_.push_back(std::move(body));
      if (run_.length > 3 * period) held_.erase(held_.begin() + period);
      return;
    }
    std::vector<roll_detail::RolledBody> again;
    if (!run_.is_loop()) {
      // No run starts at the first held body; retry from the second.
      again.swap(held_);
      builder_->append(std::move(again.front()).at());
      again.erase(again.begin());
    }
    flush();
    again.push_back(std::move(body));
    for (roll_detail::RolledBody& next : again) add(std::move(next));
  }

  Builder* builder_;
  std::string name_;
  Repetition run_;
  std::vector<roll_detail::RolledBody> held_;
};

}  // namespace annulus::nki
