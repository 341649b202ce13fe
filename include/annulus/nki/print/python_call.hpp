#pragma once
// NKI Python calls of instructions and their operands: slices where possible, else access patterns on whole tensors.

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/nki/print/python_names.hpp"
#include "annulus/nki/program/affine.hpp"

namespace annulus::nki::print_detail {

using Axes = std::vector<Axis>;

/// Axes for instructions that depend only on the number of elements per partition.
inline Axes flattened(Access const& access) {
  if (access.contiguous()) return {{access.axis(0).stride, access.partitions()}, {1, access.elements()}};
  return {access.axes().begin(), access.axes().end()};
}

/// Prints accesses and indices.
class PythonOperand {
 public:
  PythonOperand(Program const& program, PythonNames const& names) : program_(program), names_(names) {}

  /// Text of an index; the core variable is 0 in programs for one core.
  std::string index(Affine affine) {
    if (program_.cores == 1)
      for (Affine::Term const term : std::vector(affine.terms().begin(), affine.terms().end()))
        if (term.variable == core_variable) affine += Affine::of(core_variable, -term.coefficient);
    for (Affine::Term const& term : affine.terms()) uses_core_ = uses_core_ || term.variable == core_variable;
    return text_of(affine, names_.variables());
  }
  /// True if any index printed so far refers to the core.
  bool uses_core() const { return uses_core_; }

  /// Bare name, for calls that take whole tensors. Throws UnsupportedError for an access to a part.
  std::string whole(Access const& access) const {
    if (!is_whole(access))
      throw UnsupportedError("the program " + program_.name + " gives a part of " + name(access) +
                             " to a barrier or a collective; accepted: whole tensors");
    return name(access);
  }
  bool is_whole(Access const& access) const {
    Buffer const& buffer = program_.buffer(access);
    return access.offset == Affine(0) && access.start_partition == 0 && !access.register_offset &&
           access.size() == buffer.size() && access.contiguous() &&
           (access.partitions() == 1 || access.axis(0).stride == access.elements());
  }

  /// For instructions that depend only on the number of elements per partition.
  std::string flat(Access const& access) { return shaped(access, flattened(access)); }
  /// For instructions that see every axis.
  std::string shaped(Access const& access) { return shaped(access, Axes(access.axes().begin(), access.axes().end())); }

  /// With `axes` instead of those of the access.
  std::string shaped(Access const& access, Axes axes) {
    bool const chip = on_chip(program_.buffer(access).memory);
    return chip ? tile(access, std::move(axes)) : tensor(access, axes);
  }

 private:
  std::string name(Access const& access) const { return names_.tile(access.buffer, access.age); }

  std::string tile(Access const& access, Axes axes) {
    Index const row = program_.buffer(access).elements_per_partition();
    if (access.register_offset)
      throw UnsupportedError("the program " + program_.name + " adds a register to an offset in " + name(access) +
                             ", on chip; accepted: in HBM");
    if (axes.size() < 2) axes.push_back({1, 1});
    if (axes.size() == 2 && (axes[1].stride == 1 || axes[1].count == 1)) {
      Index const first = access.start_partition;
      return name(access) + "[" + literal(first) + ":" + literal(first + axes[0].count) + ", " + index(access.offset) +
             ":" + index(access.offset + axes[1].count) + "]";
    }
    axes.front().stride = row;
    return pattern(access, axes, access.offset + access.start_partition * row) + ")";
  }

  std::string tensor(Access const& access, Axes const& axes) {
    std::string text = pattern(access, axes, access.offset);
    if (access.register_offset)
      text += ", scalar_offset=" + names_.register_name(access.register_offset->register_number) +
              ", indirect_dim=" + literal(access.register_offset->dimension);
    return text + ")";
  }

  /// Access pattern without the closing parenthesis.
  std::string pattern(Access const& access, Axes const& axes, Affine const& offset) {
    return name(access) + ".ap(pattern=" + literal(std::span<Axis const>(axes)) + ", offset=" + index(offset);
  }

  Program const& program_;
  PythonNames const& names_;
  bool uses_core_ = false;
};

/// The coarsest extents into which both lists of axes can be cut; nullopt if there are none.
inline std::optional<std::vector<Index>> common_extents(std::span<Axis const> a, std::span<Axis const> b) {
  std::vector<Index> extents;
  std::size_t i = a.size(), j = b.size();
  Index left_a = 1, left_b = 1;
  while (true) {
    while (left_a == 1 && i > 0) left_a = a[--i].count;
    while (left_b == 1 && j > 0) left_b = b[--j].count;
    if (left_a == 1 && left_b == 1) break;
    Index const extent = std::min(left_a, left_b);
    if (extent < 2 || left_a % extent != 0 || left_b % extent != 0) return std::nullopt;
    extents.push_back(extent);
    left_a /= extent;
    left_b /= extent;
  }
  std::ranges::reverse(extents);
  return extents;
}

/// Splits the axes at these extents; elements and their order stay the same.
inline Axes cut(std::span<Axis const> axes, std::span<Index const> extents) {
  Axes made(extents.size());
  std::size_t i = axes.size();
  Axis left;
  for (std::size_t e = extents.size(); e-- > 0;) {
    if (extents[e] == 1) continue;
    while (left.count == 1) left = axes[--i];
    made[e] = {left.stride, extents[e]};
    left = {left.stride * extents[e], left.count / extents[e]};
  }
  return made;
}

/// Axes of dst and of src, unchanged if their extents are equal, else both cut to common extents if possible. The axis
/// of `partitions` of a side on chip is not cut; partitions = 0: neither side is on chip.
inline std::pair<Axes, Axes> copy_axes(Access const& dst, Access const& src, Index partitions) {
  Axes const own_dst(dst.axes().begin(), dst.axes().end()), own_src(src.axes().begin(), src.axes().end());
  if (std::ranges::equal(own_dst, own_src, {}, &Axis::count, &Axis::count)) return {own_dst, own_src};
  auto extents = common_extents(own_dst, own_src);
  if (!extents) return {own_dst, own_src};
  if (partitions == 1) extents->insert(extents->begin(), 1);
  while (extents->size() < 2) extents->push_back(1);
  if ((partitions != 0 && extents->front() != partitions) || extents->size() > Access::most_axes)
    return {own_dst, own_src};
  return {cut(own_dst, *extents), cut(own_src, *extents)};
}

/// A call: function and keyword arguments.
struct PythonCall {
  std::string function;  ///< "nisa.activation", or "r0 = ncc...."
  std::vector<std::string> arguments;
};

/// True for a keyword whose value is the default of every NKI version, so that it is omitted. Fills, offsets and the
/// start of a reduction are always written, because their defaults differ between versions; so is the engine, which NKI
/// would otherwise choose.
inline bool is_assumed(std::string_view instruction, std::string_view keyword, std::string_view text) {
  struct Assumed {
    std::string_view instruction, keyword, text;
  };
  constexpr Assumed table[] = {
      {"activation", "bias", "0.0"},
      {"activation", "scale", "1.0"},
      {"activation", "reduce_cmd", "nisa.reduce_cmd.idle"},
      {"tensor_scalar", "reverse0", "False"},
      {"tensor_scalar", "reverse1", "False"},
      {"scalar_tensor_tensor", "reverse0", "False"},
      {"scalar_tensor_tensor", "reverse1", "False"},
      {"tensor_reduce", "negate", "False"},
      {"exponential", "max_value", "0.0"},
      {"exponential", "reduce_cmd", "nisa.reduce_cmd.idle"},
  };
  return std::ranges::any_of(table, [&](Assumed const& row) {
    return row.instruction == instruction && row.keyword == keyword && row.text == text;
  });
}

/// Writes the keyword arguments of one instruction, in the order of its fields.
template <class I>
class KeywordWriter {
 public:
  KeywordWriter(I const& instruction, PythonOperand& operand, Program const& program,
                std::vector<std::string>& arguments)
      : instruction_(instruction), operand_(operand), program_(program), arguments_(arguments) {}

  void operator()(std::string_view keyword, Use, Access const& access) const {
    if constexpr (std::is_same_v<I, CoreBarrier>) {
      add(keyword, operand_.whole(access));
      add("cores", "(0, 1)");
    } else if constexpr (is_permute) {
      add(keyword, "[[" + operand_.whole(access) + "]]");
      if (keyword == "dsts_by_channel") add("replica_group", PythonNames::ring);
    } else if constexpr (std::is_same_v<I, DmaCopy>) {
      add(keyword, copied(access));
    } else if constexpr (std::is_same_v<I, DmaTranspose> || std::is_same_v<I, TensorReduce>) {
      add(keyword, operand_.shaped(access));
    } else {
      add(keyword, operand_.flat(access));
    }
  }
  void operator()(std::string_view keyword, Use use, std::optional<Access> const& access) const {
    if (access) (*this)(keyword, use, *access);
  }
  void operator()(std::string_view keyword, Scalar const& scalar) const {
    if constexpr (std::is_same_v<I, TensorScalar>)
      if (keyword == "operand1" && !instruction_.op1) return;
    auto const* access = std::get_if<Access>(&scalar);
    add(keyword, access ? operand_.flat(*access) : literal(std::get<float>(scalar)));
  }
  void operator()(std::string_view keyword, std::variant<float, int> const& value) const {
    add(keyword, std::visit([](auto number) { return literal(number); }, value));
  }
  void operator()(std::string_view keyword, Operator op) const { add(keyword, "nl.", name_of(op)); }
  void operator()(std::string_view keyword, std::optional<Operator> op) const {
    if (op) (*this)(keyword, *op);
  }
  void operator()(std::string_view keyword, Function function) const { add(keyword, "nl.", name_of(function)); }
  void operator()(std::string_view keyword, Engine engine) const { add(keyword, "nisa.engine.", name_of(engine)); }
  void operator()(std::string_view keyword, ReduceCommand command) const {
    add(keyword, "nisa.reduce_cmd.", name_of(command));
  }
  void operator()(std::string_view keyword, Affine const& index) const {
    add(keyword, operand_.index(index));
    if (keyword == "iteration_id") add("replica_group", PythonNames::ring);
  }
  template <class Item>
  void operator()(std::string_view keyword, std::vector<Item> const& items) const {
    add(keyword, literal(std::span<Item const>(items)));
  }
  template <class Value>
  requires std::is_arithmetic_v<Value>
  void operator()(std::string_view keyword, Value value) const {
    add(keyword, keyword == "channel_ids" ? "[" + literal(value) + "]" : literal(value));
  }

 private:
  static constexpr bool is_permute = std::is_same_v<I, CollectivePermute> || std::is_same_v<I, CollectivePermuteReduce>;

  void add(std::string_view keyword, std::string_view text, std::string_view name = {}) const {
    std::string const value = std::string(text).append(name);
    if (!is_assumed(I::name, keyword, value)) arguments_.push_back(std::string(keyword) + "=" + value);
  }

  std::string copied(Access const& access) const {
    Access const &dst = instruction_.dst, &src = instruction_.src;
    Buffer const &to = program_.buffer(dst), &from = program_.buffer(src);
    bool const to_chip = on_chip(to.memory), from_chip = on_chip(from.memory);
    if (!to_chip && !from_chip && to.shape == from.shape && operand_.is_whole(dst) && operand_.is_whole(src))
      return operand_.whole(access);
    if (to_chip && from_chip && dst.partitions() != src.partitions()) return operand_.shaped(access);
    auto const [dst_axes, src_axes] = copy_axes(dst, src,
                                                to_chip     ? dst.partitions()
                                                : from_chip ? src.partitions()
                                                            : 0);
    return operand_.shaped(access, &access == &dst ? dst_axes : src_axes);
  }

  I const& instruction_;
  PythonOperand& operand_;
  Program const& program_;
  std::vector<std::string>& arguments_;
};

/// The call of an instruction. Throws UnsupportedError for a collective in a program for one rank.
template <class I>
PythonCall python_call(I const& instruction, PythonOperand& operand, Program const& program, PythonNames const& names,
                       Spelling const& spelling) {
  constexpr bool collective = std::is_same_v<I, CollectivePermute> || std::is_same_v<I, CollectivePermuteReduce> ||
                              std::is_same_v<I, ProcessingRank>;
  PythonCall call{(collective ? "ncc." : "nisa.") + std::string(I::name), {}};
  if constexpr (std::is_same_v<I, ProcessingRank>)
    call.function.insert(0, names.register_name(instruction.register_number) + " = ");
  if (collective && program.ranks < 2)
    throw UnsupportedError("the program " + program.name + " holds " + std::string(I::name) +
                           " but its ring has 1 rank; accepted: collectives in programs for 2 ranks or more");
  I::fields(instruction, KeywordWriter<I>(instruction, operand, program, call.arguments));
  if constexpr (std::is_same_v<I, TensorScalarReduce>)
    if (spelling.tensor_scalar_reduce_command) call.arguments.push_back("reduce_cmd=nisa.reduce_cmd.reset_reduce");
  return call;
}

}  // namespace annulus::nki::print_detail
