#pragma once
// Readable text of a tile program: its buffers, then one line per instruction, with loops and core branches indented.

#include <algorithm>
#include <array>
#include <concepts>
#include <iomanip>
#include <locale>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/nki/definitions.hpp"
#include "annulus/nki/program/program.hpp"

namespace annulus::nki {

/// Text of the program; equal programs give equal text. On-chip buffers show bytes per partition x rotation.
std::string listing(Program const& program);

#if defined(ANNULUS_NKI_DEFINITIONS)

namespace listing_detail {

/// Builds the text.
class Listing {
 public:
  explicit Listing(Program const& program) : program_(program) {
    out_.imbue(std::locale::classic());
    out_ << std::left << "program " << program.name << ": " << name_of(program.target);
    list_count(program.cores, " core");
    list_count(program.ranks, " rank");
    list_count(std::ssize(program.registers), " register");
    out_ << "\nbuffers\n";
    std::size_t width = 0;
    for (Buffer const& buffer : program.buffers) width = std::max(width, buffer.name.size());
    for (Buffer const& buffer : program.buffers) list_buffer(buffer, static_cast<int>(width));
    out_ << "body\n";
    list(program.body, 1);
  }
  std::string text() const { return out_.str(); }

 private:
  void list_count(Index count, std::string_view what) { out_ << ", " << count << what << (count == 1 ? "" : "s"); }

  void list_buffer(Buffer const& buffer, int width) {
    bool const chip = on_chip(buffer.memory);
    out_ << "  " << std::setw(width) << buffer.name << "  " << std::setw(12) << name_of(buffer.memory) << std::setw(9)
         << name_of(buffer.type) << std::setw(22) << "[" + joined(buffer.shape) + "]"
         << buffer.bytes() / buffer.partitions() << " bytes";
    if (chip) out_ << " per partition x " << buffer.rotation;
    if (!chip && buffer.role != Role::internal) out_ << (buffer.role == Role::input ? ", input" : ", output");
    out_ << "\n";
  }

  void list(Body const& body, int depth) {
    for (Node const& node : body) {
      out_ << std::setw(2 * depth) << "";
      std::visit([&](auto const& content) { this->list(content, depth); }, node.content);
    }
  }
  void list(Allocate const& made, int) { out_ << "allocate " << program_.buffer(made.buffer).name << "\n"; }
  void list(Section const& section, int) {
    out_ << "-- " << section.name << " " << text_of(section.number, program_.variables) << "\n";
  }
  void list(Loop const& loop, int depth) {
    out_ << "for " << nth(program_.variables, loop.variable) << " < " << loop.count << "\n";
    list(loop.body, depth + 1);
  }
  void list(OnCore const& branch, int depth) {
    out_ << "on core " << branch.core << "\n";
    list(branch.body, depth + 1);
  }
  void list(Instruction const& instruction, int) {
    out_ << name_of(instruction);
    if (int const* set = register_of(instruction)) out_ << " r" << *set;
    for_each_field(instruction, [this](std::string_view keyword, auto const& value, Use) {
      out_ << "  " << keyword << "=";
      this->write(value);
    });
    out_ << "\n";
  }

  void write(bool value) { out_ << (value ? "yes" : "no"); }
  void write(float value) { out_ << text_of(value); }
  void write(std::integral auto value) { out_ << value; }
  template <class Name>
  requires std::is_enum_v<Name>
  void write(Name value) { out_ << name_of(value); }
  void write(Affine const& index) { out_ << text_of(index, program_.variables); }
  void write(std::span<Axis const> axes) {
    char const* separator = "";
    for (Axis const& axis : axes) out_ << std::exchange(separator, " ") << axis.stride << "x" << axis.count;
  }
  void write(std::vector<Axis> const& pattern) {
    out_ << "[";
    write(std::span(pattern));
    out_ << "]";
  }
  void write(std::array<int, 32> const& numbers) { out_ << numbers.front() << " x " << numbers.size(); }

  /// name'1 is the tile before the newest. On chip [partitions, elements] where the elements are adjacent, else
  /// [partitions, offset; stride x count of each axis]; in HBM the same without partitions, or the bare name for all.
  void write(Access const& access) {
    Buffer const& buffer = program_.buffer(access);
    bool const chip = on_chip(buffer.memory);
    out_ << buffer.name;
    if (access.age > 0) out_ << "'" << access.age;
    if (!chip && access.partitions() == 1 && access.elements() == buffer.size() && access.contiguous()) return;
    out_ << "[";
    if (chip) out_ << access.start_partition << ":" << access.start_partition + access.partitions() << ", ";
    write(access.offset);
    if (!chip && access.register_offset)
      out_ << " + r" << access.register_offset->register_number << " on axis " << access.register_offset->dimension;
    out_ << (chip && access.contiguous() ? ":" : "; ");
    if (chip && access.contiguous())
      write(access.offset + access.elements());
    else
      write(chip ? access.free_axes() : access.axes());
    out_ << "]";
  }

  Program const& program_;
  std::ostringstream out_;
};

}  // namespace listing_detail

ANNULUS_NKI_INLINE std::string listing(Program const& program) { return listing_detail::Listing(program).text(); }

#endif

}  // namespace annulus::nki
