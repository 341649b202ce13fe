#pragma once
// Readable text of a tile program: its buffers, then one line per instruction, with loops and core branches indented.

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/nki/program/program.hpp"

namespace annulus::nki {

namespace listing_detail {

inline std::string padded(std::string text, std::size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

inline std::string shortest_digits(float value) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

/// Builds the text.
class Listing {
 public:
  explicit Listing(Program const& program) : program_(program) {
    text_ = "program " + program.name + ": " + std::string(name_of(program.target)) + ", " +
            std::to_string(program.cores) + (program.cores == 1 ? " core, " : " cores, ") +
            std::to_string(program.ranks) + (program.ranks == 1 ? " rank, " : " ranks, ") +
            std::to_string(program.registers) + (program.registers == 1 ? " register\n" : " registers\n");
    list_buffers();
    text_ += "body\n";
    list(program.body, 1);
  }
  std::string take() && { return std::move(text_); }

 private:
  void list_buffers() {
    text_ += "buffers\n";
    std::size_t width = 0;
    for (Buffer const& buffer : program_.buffers) width = std::max(width, buffer.name.size());
    for (Buffer const& buffer : program_.buffers) {
      std::string shape;
      for (Index extent : buffer.shape) shape += (shape.empty() ? "" : ", ") + std::to_string(extent);
      text_ += "  " + padded(buffer.name, width) + "  " + padded(std::string(name_of(buffer.memory)), 12) +
               padded(std::string(name_of(buffer.type)), 9) + padded("[" + shape + "]", 22);
      if (on_chip(buffer.memory)) {
        Index const bytes = buffer.elements_per_partition() * bytes_of(buffer.type);
        text_ += std::to_string(bytes) + " bytes per partition x " + std::to_string(buffer.rotation);
      } else {
        text_ += std::to_string(buffer.bytes()) + " bytes";
        if (buffer.role != Role::internal) text_ += buffer.role == Role::input ? ", input" : ", output";
      }
      text_ += "\n";
    }
  }

  void list(Body const& body, std::size_t depth) {
    for (Node const& node : body) {
      text_.append(2 * depth, ' ');
      Body const* inside = nullptr;
      if (auto const* instruction = node.as<Instruction>()) {
        std::visit([&](auto const& typed) { list(typed); }, *instruction);
      } else if (auto const* allocate = node.as<Allocate>()) {
        text_ += "allocate " + program_.buffer(allocate->buffer).name;
      } else if (auto const* section = node.as<Section>()) {
        text_ += "-- " + section->name + " " + index(section->number);
      } else if (auto const* loop = node.as<Loop>()) {
        text_ +=
            "for " + program_.variables[static_cast<std::size_t>(loop->variable)] + " < " + std::to_string(loop->count);
        inside = &loop->body;
      } else if (auto const* branch = node.as<OnCore>()) {
        text_ += "on core " + std::to_string(branch->core);
        inside = &branch->body;
      }
      text_ += "\n";
      if (inside) list(*inside, depth + 1);
    }
  }

  template <class I>
  void list(I const& instruction) {
    text_ += I::name;
    if constexpr (std::is_same_v<I, ProcessingRank>) text_ += " r" + std::to_string(instruction.register_number);
    I::fields(instruction, [this](std::string_view keyword, auto const&... rest) { this->field(keyword, rest...); });
  }

  void field(std::string_view keyword, Use, Access const& access) { write(keyword, operand(access)); }
  void field(std::string_view keyword, Use use, std::optional<Access> const& access) {
    if (access) field(keyword, use, *access);
  }
  void field(std::string_view keyword, Scalar const& scalar) {
    auto const* access = std::get_if<Access>(&scalar);
    write(keyword, access ? operand(*access) : shortest_digits(std::get<float>(scalar)));
  }
  void field(std::string_view keyword, std::variant<float, int> const& value) {
    auto const* whole = std::get_if<int>(&value);
    write(keyword, whole ? "int " + std::to_string(*whole) : shortest_digits(std::get<float>(value)));
  }
  void field(std::string_view keyword, std::optional<Operator> op) {
    if (op) write(keyword, name_of(*op));
  }
  void field(std::string_view keyword, std::vector<Axis> const& pattern) { write(keyword, "[" + axes(pattern) + "]"); }
  void field(std::string_view keyword, std::vector<int> const& numbers) {
    bool const alike = std::ranges::all_of(numbers, [&](int number) { return number == numbers.front(); });
    std::string text;
    for (int number : numbers) {
      if (!text.empty()) {
        if (alike) break;
        text += ',';
      }
      text += std::to_string(number);
    }
    write(keyword, alike ? text + " x " + std::to_string(numbers.size()) : text);
  }
  void field(std::string_view keyword, Affine const& affine) { write(keyword, index(affine)); }
  void field(std::string_view keyword, bool value) { write(keyword, value ? "yes" : "no"); }
  void field(std::string_view keyword, float value) { write(keyword, shortest_digits(value)); }
  void field(std::string_view keyword, int value) { write(keyword, std::to_string(value)); }
  void field(std::string_view keyword, Index value) { write(keyword, std::to_string(value)); }
  template <class Name>
  requires std::is_enum_v<Name>
  void field(std::string_view keyword, Name value) { write(keyword, name_of(value)); }

  void write(std::string_view keyword, std::string_view text) {
    text_ += "  " + std::string(keyword) + "=" + std::string(text);
  }

  std::string index(Affine const& affine) const { return text_of(affine, program_.variables); }

  static std::string axes(std::span<Axis const> all) {
    std::string text;
    for (Axis const& axis : all) {
      if (!text.empty()) text += ' ';
      text += std::to_string(axis.stride) + "x" + std::to_string(axis.count);
    }
    return text;
  }

  /// name'1 is the tile before the newest. On chip [partitions, elements] where the elements are adjacent, else
  /// [partitions, offset; stride x count of each axis]; in HBM the same without partitions, or the bare name for all.
  std::string operand(Access const& access) const {
    Buffer const& buffer = program_.buffer(access);
    std::string text = buffer.name + (access.age > 0 ? "'" + std::to_string(access.age) : "");
    if (!on_chip(buffer.memory)) {
      if (access.partitions() == 1 && access.elements() == buffer.size() && access.contiguous()) return text;
      text += "[" + index(access.offset);
      if (access.register_offset)
        text += " + r" + std::to_string(access.register_offset->register_number) + " on axis " +
                std::to_string(access.register_offset->dimension);
      return text + "; " + axes(access.axes()) + "]";
    }
    text += "[" + std::to_string(access.start_partition) + ":" +
            std::to_string(access.start_partition + access.partitions()) + ", ";
    if (access.contiguous()) return text + index(access.offset) + ":" + index(access.offset + access.elements()) + "]";
    return text + index(access.offset) + "; " + axes(access.free_axes()) + "]";
  }

  Program const& program_;
  std::string text_;
};

}  // namespace listing_detail

/// Text of the program; equal programs give equal text. On-chip buffers show bytes per partition x rotation.
inline std::string listing(Program const& program) { return listing_detail::Listing(program).take(); }

}  // namespace annulus::nki
