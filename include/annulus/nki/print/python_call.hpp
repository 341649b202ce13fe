#pragma once
// NKI Python calls of instructions and their operands: slices where possible, else access patterns on whole tensors.

#include <algorithm>
#include <array>
#include <concepts>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/nki/print/repeats.hpp"

namespace annulus::nki::print_detail {

/// Counts tiles while a program is read in order. A buffer that keeps several tiles is a list in Python, with one tile
/// for each place; the tile that an Allocate makes takes the places in turn. An access says how many Allocates ago its
/// tile was made. A loop makes equally many tiles in every iteration, so the number of a tile is affine in the
/// enclosing loop variables, for each core.
class TilePlaces {
 public:
  explicit TilePlaces(Program const& program)
      : made_(static_cast<std::size_t>(program.cores), std::vector<Affine>(program.buffers.size())) {}

  void allocate(int buffer) {
    for (std::size_t core = 0; core < made_.size(); ++core)
      if (runs_on(core)) nth(made_[core], buffer) += 1;
  }
  /// Counts the tiles of so many iterations of a body, which are not read.
  void skip(Body const& body, Affine const& iterations) {
    for (std::size_t core = 0; core < made_.size(); ++core)
      if (runs_on(core))
        for_each_executed(body, static_cast<int>(core), [&](Node const& node, Index times) {
          if (auto const* made = node.as<Allocate>()) nth(made_[core], made->buffer) += iterations * times;
        });
  }
  /// The nodes that follow are for one core alone; -1: for all.
  void only_on(int core) { only_ = core; }

  /// Number of the tile of an access, for each core that executes it.
  std::vector<Affine> numbers(Access const& access) const {
    std::vector<Affine> numbers;
    for (std::size_t core = 0; core < made_.size(); ++core)
      if (runs_on(core)) numbers.push_back(nth(made_[core], access.buffer) - Index{access.age + 1});
    return numbers;
  }

 private:
  bool runs_on(std::size_t core) const { return only_ < 0 || core == static_cast<std::size_t>(only_); }

  std::vector<std::vector<Affine>> made_;  ///< [core][buffer], in the variables of the enclosing loops
  int only_ = -1;
};

using Axes = std::vector<Axis>;
inline Axes axes_of(Access const& access) { return {access.axes().begin(), access.axes().end()}; }

/// Cuts pieces off a list of axes, innermost first; elements and their order stay the same.
struct AxisCutter {
  std::span<Axis const> rest;
  Axis current{};
  Axes pieces{};

  /// Extent that is left of the innermost axis; 1 if nothing is left.
  Index extent() {
    while (current.count == 1 && !rest.empty()) {
      current = rest.back();
      rest = rest.first(rest.size() - 1);
    }
    return current.count;
  }
  bool cut(Index count) {
    if (current.count % count != 0) return false;
    pieces.push_back({current.stride, count});
    current = {current.stride * count, current.count / count};
    return true;
  }
};

/// Axes of dst and of src, unchanged if their extents are equal, else both cut to the coarsest common extents if
/// possible. The axis of `partitions` of a side on chip is not cut; partitions = 0: neither side is on chip.
inline std::pair<Axes, Axes> copy_axes(Access const& dst, Access const& src, Index partitions) {
  std::pair const uncut(axes_of(dst), axes_of(src));
  if (std::ranges::equal(dst.axes(), src.axes(), {}, &Axis::count, &Axis::count)) return uncut;
  AxisCutter to{dst.axes()}, from{src.axes()};
  while (to.extent() != 1 || from.extent() != 1) {
    Index const extent = std::min(to.extent(), from.extent());
    if (extent < 2 || !to.cut(extent) || !from.cut(extent)) return uncut;
  }
  for (Axes* pieces : {&to.pieces, &from.pieces}) {
    if (partitions == 1) pieces->push_back({});
    std::ranges::reverse(*pieces);
    pieces->resize(std::max<std::size_t>(pieces->size(), 2));
  }
  bool const partitions_cut = partitions != 0 && to.pieces.front().count != partitions;
  if (partitions_cut || to.pieces.size() > Access::most_axes) return uncut;
  return {to.pieces, from.pieces};
}

/// True for a keyword whose value is the default of every NKI version, so that it is omitted. Fills, offsets and the
/// start of a reduction are always written, because their defaults differ between versions; so is the engine, which NKI
/// would otherwise choose.
inline bool is_assumed(std::string_view instruction, std::string_view keyword, std::string_view text) {
  constexpr std::array<std::string_view, 3> table[] = {{"activation", "bias", "0.0"},
                                                       {"activation", "scale", "1.0"},
                                                       {"activation", "reduce_cmd", "nisa.reduce_cmd.idle"},
                                                       {"tensor_reduce", "negate", "False"}};
  return std::ranges::find(table, std::array{instruction, keyword, text}) != std::end(table);
}

/// Prints instructions and indices, and records what they refer to.
class PythonCalls {
 public:
  PythonCalls(Program const& program, PythonNames const& names, TilePlaces const& places)
      : program_(program), names_(names), places_(places) {}

  /// The call of an instruction, with keywords in the order of its fields, as the text of a Statement. Throws
  /// UnsupportedError for a collective in a program for one rank, for a part of a tensor where the whole is required,
  /// and for values that Python cannot write.
  template <class I>
  std::string call(I const& instruction) {
    constexpr bool collective = is_permute<I> || std::same_as<I, ProcessingRank>;
    std::string call = concat(collective ? "ncc." : "nisa.", I::name);
    auto const add = [&](std::string_view keyword, std::string_view text) {
      if (!is_assumed(I::name, keyword, text)) (((call += Statement::separator) += keyword) += '=') += text;
    };
    if constexpr (std::same_as<I, ProcessingRank>) {
      call.insert(0, names_.register_name(instruction.register_number) + " = ");
      rank_registers_.insert(instruction.register_number);
    }
    if constexpr (std::same_as<I, RegisterLoad>) add("dst", names_.register_name(instruction.register_number));
    detail::check<UnsupportedError>(!collective || program_.ranks >= 2, "the program ", program_.name, " holds ",
                                    I::name,
                                    " but its ring has 1 rank; accepted: collectives in programs for 2 ranks or more");
    uses_ring_ = uses_ring_ || collective;
    for_each_field(instruction, [&]<class Value>(std::string_view keyword, Value const& value, Use) {
      if constexpr (std::same_as<I, TensorScalar>)
        if (keyword == "operand1" && !instruction.op1) return;
      if constexpr (std::same_as<Value, Access>)
        add(keyword, operand(instruction, value));
      else if constexpr (std::same_as<Value, Affine>)
        add(keyword, index(value));
      else
        add(keyword, keyword == "channel_ids" ? "[" + literal(value) + "]" : literal(value));
      if (keyword == "dsts_by_channel" || keyword == "iteration_id") add("replica_group", PythonNames::ring);
      if (std::same_as<I, CoreBarrier>) add("cores", "(0, 1)");
    });
    return call;
  }

  /// Leaves out a variable that is always 0.
  void set_to_zero(Variable variable) { zero_.push_back(variable); }

  /// Text of an index; the core variable is 0 in programs for one core.
  std::string index(Affine affine) {
    if (program_.cores == 1) affine = affine.with(core_variable, 0);
    for (Variable variable : zero_) affine = affine.with(variable, 0);
    uses_core_ = uses_core_ || affine.coefficient(core_variable) != 0;
    return text_of(affine, names_.variables());
  }
  /// Condition of a block that one core executes.
  std::string is_core(int core) {
    uses_core_ = true;
    return names_.variable(core_variable) + " == " + literal(core);
  }

  /// True if anything printed so far refers to the core, or to the ring.
  bool uses_core() const { return uses_core_; }
  bool uses_ring() const { return uses_ring_; }
  /// Fewest entries of the tables in which rank ids have been looked up so far; 0 if none have been.
  Index rank_entries() const { return rank_entries_; }

 private:
  template <class I>
  static constexpr bool is_permute = std::same_as<I, CollectivePermute> || std::same_as<I, CollectivePermuteReduce>;

  template <class I>
  std::string operand(I const& instruction, Access const& access) {
    if constexpr (std::same_as<I, CoreBarrier>) return whole(access);
    if constexpr (is_permute<I>) return "[[" + whole(access) + "]]";
    if constexpr (std::same_as<I, DmaCopy>) return copied(instruction, access);
    // The others depend only on the number of elements per partition.
    bool const sees_axes = std::same_as<I, DmaTranspose> || std::same_as<I, TensorReduce>;
    if (sees_axes || !access.contiguous()) return shaped(access, axes_of(access));
    return shaped(access, {{access.axis(0).stride, access.partitions()}, {1, access.elements()}});
  }

  std::string copied(DmaCopy const& copy, Access const& access) {
    Access const &dst = copy.dst, &src = copy.src;
    Buffer const &to = program_.buffer(dst), &from = program_.buffer(src);
    bool const to_chip = on_chip(to.memory), from_chip = on_chip(from.memory);
    if (!to_chip && !from_chip && to.shape == from.shape && is_whole(dst) && is_whole(src)) return name(access);
    if (to_chip && from_chip && dst.partitions() != src.partitions()) return shaped(access, axes_of(access));
    Index const partitions = to_chip ? dst.partitions() : from_chip ? src.partitions() : 0;
    auto const [dst_axes, src_axes] = copy_axes(dst, src, partitions);
    return shaped(access, &access == &dst ? dst_axes : src_axes);
  }

  /// Bare name, for calls that take whole tensors.
  std::string whole(Access const& access) {
    std::string const tensor = name(access);
    detail::check<UnsupportedError>(is_whole(access), "the program ", program_.name, " gives a part of ", tensor,
                                    " to a barrier or a collective; accepted: whole tensors");
    return tensor;
  }
  bool is_whole(Access const& access) const {
    Buffer const& buffer = program_.buffer(access);
    return access.offset == Affine(0) && access.start_partition == 0 && !access.register_offset &&
           access.size() == buffer.size() && access.contiguous() &&
           (access.partitions() == 1 || access.axis(0).stride == access.elements());
  }
  /// Name of a tensor or tile; with its place, if the buffer keeps several tiles.
  std::string name(Access const& access) {
    Buffer const& buffer = program_.buffer(access);
    std::string const& name = names_.buffer(access.buffer);
    if (!on_chip(buffer.memory) || buffer.rotation == 1) return name;
    std::vector<Affine> const numbers = places_.numbers(access);
    Affine number = reduced(numbers.front(), buffer.rotation);
    std::string text;
    if (numbers.size() == 2 && numbers[1] != numbers[0]) {
      Affine const apart = numbers[1] - numbers[0];
      if (apart.is_constant())
        number += Affine::of(core_variable, apart.constant());
      else
        text = concat(index(number), " if ", is_core(0), " else ", index(reduced(numbers[1], buffer.rotation)));
    }
    if (text.empty()) text = index(number);
    if (text.find(' ') != std::string::npos) text = "(" + text + ")";
    return concat(name, "[", text, " % ", buffer.rotation, "]");
  }
  /// Equal modulo `rotation`: coefficients of loop variables in 0 to rotation - 1.
  static Affine reduced(Affine const& number, int rotation) {
    Affine result = number.constant();
    for (Affine::Term const& term : number.terms())
      result += Affine::of(term.variable, (term.coefficient % rotation + rotation) % rotation);
    return result;
  }

  /// With `axes` in place of those of the access.
  std::string shaped(Access const& access, Axes axes) {
    Buffer const& buffer = program_.buffer(access);
    bool const chip = on_chip(buffer.memory);
    Affine offset = access.offset;
    std::string register_offset;
    if (auto const& moved = access.register_offset) {
      detail::check<UnsupportedError>(!chip, "the program ", program_.name, " adds a register to an offset in ",
                                      name(access), ", on chip; accepted: in HBM");
      if (rank_registers_.contains(moved->register_number)) {
        Index const entries = nth(program_.buffer(access).shape, moved->dimension);
        rank_entries_ = rank_entries_ == 0 ? entries : std::min(rank_entries_, entries);
      }
      register_offset =
          concat(", scalar_offset=", names_.register_name(moved->register_number), ", indirect_dim=", moved->dimension);
    }
    if (chip) {
      if (axes.size() < 2) axes.push_back({1, 1});
      Index const first = access.start_partition;
      if (axes.size() == 2 && (axes[1].stride == 1 || axes[1].count == 1))
        return concat(name(access), "[", first, ":", first + axes[0].count, ", ", index(offset), ":",
                      index(offset + axes[1].count), "]");
      axes.front().stride = buffer.elements_per_partition();
      offset += first * axes.front().stride;
    }
    return concat(name(access), ".ap(pattern=", literal(axes), ", offset=", index(offset), register_offset, ")");
  }

  Program const& program_;
  PythonNames const& names_;
  TilePlaces const& places_;
  std::vector<Variable> zero_;
  bool uses_core_ = false, uses_ring_ = false;
  std::set<int> rank_registers_;  ///< that hold rank ids
  Index rank_entries_ = 0;
};

}  // namespace annulus::nki::print_detail
