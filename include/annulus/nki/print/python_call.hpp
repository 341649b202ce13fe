#pragma once
// NKI Python calls of instructions.

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "annulus/nki/print/copy_axes.hpp"
#include "annulus/nki/print/python_operand.hpp"
#include "annulus/nki/print/spelling.hpp"

namespace annulus::nki::print_detail {

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
  void operator()(std::string_view keyword, Operator op) const { add(keyword, "nl." + std::string(name_of(op))); }
  void operator()(std::string_view keyword, std::optional<Operator> op) const {
    if (op) (*this)(keyword, *op);
  }
  void operator()(std::string_view keyword, Function function) const {
    add(keyword, "nl." + std::string(name_of(function)));
  }
  void operator()(std::string_view keyword, Engine engine) const {
    add(keyword, "nisa.engine." + std::string(name_of(engine)));
  }
  void operator()(std::string_view keyword, ReduceCommand command) const {
    add(keyword, "nisa.reduce_cmd." + std::string(name_of(command)));
  }
  void operator()(std::string_view keyword, Affine const& index) const {
    add(keyword, operand_.index(index));
    if (keyword == "iteration_id") add("replica_group", PythonNames::ring);
  }
  void operator()(std::string_view keyword, std::vector<Axis> const& pattern) const {
    add(keyword, literal(std::span<Axis const>(pattern)));
  }
  void operator()(std::string_view keyword, std::vector<int> const& numbers) const {
    add(keyword, literal(std::span<int const>(numbers)));
  }
  void operator()(std::string_view keyword, bool value) const { add(keyword, literal(value)); }
  void operator()(std::string_view keyword, float value) const { add(keyword, literal(value)); }
  void operator()(std::string_view keyword, Index value) const { add(keyword, literal(value)); }
  void operator()(std::string_view keyword, int value) const {
    add(keyword, keyword == "channel_ids" ? "[" + literal(value) + "]" : literal(value));
  }

 private:
  static constexpr bool is_permute = std::is_same_v<I, CollectivePermute> || std::is_same_v<I, CollectivePermuteReduce>;

  void add(std::string_view keyword, std::string_view text) const {
    if (!is_assumed(I::name, keyword, text)) arguments_.push_back(std::string(keyword) + "=" + std::string(text));
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
