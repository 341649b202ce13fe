#pragma once
// Changes of a tile program, chosen by the bytes of an input: fields of instructions, buffers, loops, and their order.

#include <algorithm>
#include <concepts>
#include <limits>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/nki/program/program.hpp"
#include "fuzz/byte_reader.hpp"

namespace annulus_fuzz {

namespace nki = annulus::nki;
using annulus::Index;

class ProgramMutation {
 public:
  ProgramMutation(nki::Program& program, ByteReader& in) : program_(program), in_(in) {}

  /// Makes one change.
  void apply() {
    switch (in_.between(0, 7)) {
      case 0:
        return change_buffer();
      case 1:
        return change_head();
      case 2:
        return reorder(chosen_body());
      default:
        return change_node();
    }
  }

 private:
  int below(std::size_t count) {
    return static_cast<int>(in_.between(0, static_cast<std::int64_t>(std::max<std::size_t>(count, 1)) - 1));
  }
  /// A number from -1 to count: mostly one that exists.
  int reference(std::size_t count) { return static_cast<int>(in_.between(-1, static_cast<std::int64_t>(count))); }

  void change_head() {
    switch (in_.between(0, 3)) {
      case 0:
        program_.cores = static_cast<int>(in_.between(0, 3));
        break;
      case 1:
        program_.ranks = static_cast<int>(in_.between(0, 4));
        break;
      case 2:
        program_.registers.assign(static_cast<std::size_t>(in_.between(0, 3)),
                                  {in_.between(-1, 4), in_.between(-1, 4)});
        break;
      default:
        program_.target = in_.of({nki::Target::trn2, nki::Target::trn3});
    }
  }

  void change_buffer() {
    if (program_.buffers.empty()) return;
    nki::Buffer& buffer = program_.buffers[static_cast<std::size_t>(below(program_.buffers.size()))];
    switch (in_.between(0, 5)) {
      case 0:
        buffer.memory = static_cast<nki::Memory>(in_.between(0, 3));
        break;
      case 1:
        buffer.type = static_cast<nki::ElementType>(in_.between(0, 3));
        break;
      case 2:
        buffer.role = static_cast<nki::Role>(in_.between(0, 2));
        break;
      case 3:
        buffer.rotation = static_cast<int>(in_.between(-1, 4));
        break;
      case 4:
        buffer.shape.resize(static_cast<std::size_t>(in_.between(0, 4)), 1);
        break;
      default:
        if (!buffer.shape.empty())
          buffer.shape[static_cast<std::size_t>(below(buffer.shape.size()))] = in_.any_number();
    }
  }

  /// The body of the program, or of a loop or branch in it.
  nki::Body& chosen_body() {
    std::vector<nki::Body*> bodies{&program_.body};
    nki::for_each_node(program_.body, [&](nki::Node& node) {
      std::visit(
          [&](auto& content) {
            if constexpr (requires { content.body; }) bodies.push_back(&content.body);
          },
          node.content);
    });
    return *bodies[static_cast<std::size_t>(below(bodies.size()))];
  }

  /// Removes, repeats or moves a node.
  void reorder(nki::Body& body) {
    if (body.empty()) return;
    auto const at = body.begin() + below(body.size());
    switch (in_.between(0, 2)) {
      case 0:
        body.erase(at);
        break;
      case 1: {
        nki::Node const copy = *at;
        body.insert(body.begin() + below(body.size()), copy);
        break;
      }
      default:
        std::iter_swap(at, body.begin() + below(body.size()));
    }
  }

  void change_node() {
    std::vector<nki::Node*> nodes;
    nki::for_each_node(program_.body, [&](nki::Node& node) { nodes.push_back(&node); });
    if (nodes.empty()) return;
    nki::Node& node = *nodes[static_cast<std::size_t>(below(nodes.size()))];
    std::visit([&](auto& content) { change(content); }, node.content);
  }

  void change(nki::Allocate& allocate) { allocate.buffer = reference(program_.buffers.size()); }
  void change(nki::Section& section) { change(section.number); }
  void change(nki::OnCore& branch) { branch.core = static_cast<int>(in_.between(-1, 2)); }
  void change(nki::Loop& loop) {
    if (in_.one_in(2))
      loop.variable = reference(program_.variables.size());
    else
      loop.count = in_.any_number();
  }
  void change(nki::Instruction& instruction) {
    std::visit([&](auto& typed) { change_instruction(typed); }, instruction);
  }

  template <class I>
  void change_instruction(I& instruction) {
    if constexpr (requires { instruction.register_number; }) instruction.register_number = reference(2);
    int fields = 0;
    I::fields(instruction, [&](std::string_view, auto&, auto...) { ++fields; });
    int chosen = below(static_cast<std::size_t>(fields));
    I::fields(instruction, [&](std::string_view, auto& field, auto...) {
      if (chosen-- == 0) change(field);
    });
  }

  void change(nki::Access& access) {
    switch (in_.between(0, 6)) {
      case 0:
        access.buffer = reference(program_.buffers.size());
        break;
      case 1:
        access.age = static_cast<int>(in_.between(-1, 4));
        break;
      case 2:
        access.start_partition = in_.any_number();
        break;
      case 3:
        change(access.offset);
        break;
      case 4:
        access.register_offset.reset();
        if (in_.one_in(2))
          access.register_offset = {.register_number = reference(2), .dimension = static_cast<int>(in_.between(-1, 3))};
        break;
      default:
        change_axes(access);
    }
  }

  void change_axes(nki::Access& access) {
    std::vector<nki::Axis> axes(access.axes().begin(), access.axes().end());
    if (in_.one_in(4))
      axes.resize(static_cast<std::size_t>(in_.between(0, static_cast<std::int64_t>(nki::Access::most_axes))));
    else
      change(axes);
    axes.resize(std::min(axes.size(), nki::Access::most_axes));
    nki::Access changed =
        axes.empty() ? nki::Access{} : nki::Access(access.buffer, axes[0], std::span(axes).subspan(1));
    changed.buffer = access.buffer;
    changed.age = access.age;
    changed.start_partition = access.start_partition;
    changed.offset = access.offset;
    changed.register_offset = access.register_offset;
    access = changed;
  }

  void change(std::vector<nki::Axis>& axes) {
    if (axes.empty() || in_.one_in(6)) axes.emplace_back();
    if (in_.one_in(6)) axes.pop_back();
    if (axes.empty()) return;
    nki::Axis& axis = axes[static_cast<std::size_t>(below(axes.size()))];
    (in_.one_in(2) ? axis.stride : axis.count) = in_.any_number();
  }

  void change(nki::Affine& affine) {
    if (in_.one_in(2)) {
      nki::Variable const variable = reference(program_.variables.size());
      affine += nki::Affine::of(variable, in_.any_number() % 1024);
      return;
    }
    nki::Affine changed = in_.any_number();
    for (nki::Affine::Term const& term : affine.terms()) changed += nki::Affine::of(term.variable, term.coefficient);
    affine = changed;
  }
  void change(bool& flag) { flag = !flag; }
  void change(int& number) { number = static_cast<int>(in_.between(-1, 6)); }
  void change(Index& number) { number = in_.any_number(); }
  void change(float& number) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    number = in_.of({0.0f, 1.0f, -1.0f, 300.0f, 3e38f, -infinity, infinity, std::numeric_limits<float>::quiet_NaN()});
  }
  void change(nki::Operator& op) { op = static_cast<nki::Operator>(in_.between(0, 8)); }
  void change(nki::Function& function) { function = static_cast<nki::Function>(in_.between(0, 3)); }
  void change(nki::ReduceCommand& command) { command = static_cast<nki::ReduceCommand>(in_.between(0, 3)); }
  void change(nki::Engine& engine) { engine = static_cast<nki::Engine>(in_.between(0, nki::engine_count - 1)); }
  /// A field that the type of the instruction fixes.
  template <class Fixed>
  requires std::is_const_v<Fixed>
  void change(Fixed&) {}
  template <class Value>
  void change(std::optional<Value>& field) {
    if (field && in_.one_in(3))
      field.reset();
    else
      change(field ? *field : field.emplace());
  }
  template <class... Values>
  void change(std::variant<Values...>& field) {
    if (in_.one_in(3))
      field = field.index() == 0 ? std::variant<Values...>(std::in_place_index<1>) : std::variant<Values...>();
    std::visit([&](auto& value) { change(value); }, field);
  }

  nki::Program& program_;
  ByteReader& in_;
};

}  // namespace annulus_fuzz
