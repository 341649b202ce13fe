#pragma once
// NKI Python module of a tile program.

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "annulus/core/definitions.hpp"
#include "annulus/nki/print/python_names.hpp"
#include "annulus/nki/program/program.hpp"
#if defined(ANNULUS_NKI_DEFINITIONS)
#include "annulus/nki/print/older_tiles.hpp"
#include "annulus/nki/print/python_call.hpp"
#endif

namespace annulus::nki {

/// Text of an NKI Python module with one `@nki.jit` function that has the name of the program.
///
/// Arguments of the function: the buffers of Role::input in order, in HBM, shapes as in the program; then, where the
/// program has 2 ranks or more, replica_groups: a tuple of tuples of rank ids; then, where the mask has a table,
/// mask_fingerprint: a string that must be the program's, so that a table of another mask is refused. Returns the tuple of Role::output
/// buffers, or the one there is. With 2 cores it is launched as `name[2](...)`.
///
/// The text depends only on program and spelling, uses only Python that all front ends of NKI accept, always writes
/// accumulate= and applies .ap to whole tensors only. Older tiles of a buffer are passed from name to name (see
/// OlderTiles). Requires a valid program. Throws UnsupportedError for names that are no Python identifiers, non-finite
/// values, collectives without a ring, and a program without output.
std::string to_python(Program const& program, Spelling const& spelling = spelling_of(Version::nki_0_3));

#if defined(ANNULUS_NKI_DEFINITIONS)

namespace print_detail {

/// Collects lines of at most `width` columns where the text can be broken.
class PythonLines {
 public:
  static constexpr std::size_t width = 120;

  void open_block() {
    ++depth_;
    block_start_ = lines_.size();
  }
  void open_block(std::string_view head) {
    statement(head);
    open_block();
  }
  void close_block() { --depth_; }

  void blank() { lines_.emplace_back(); }
  void comment(std::string_view text) { statement((text.empty() ? "#" : "# ") + std::string(text)); }
  void statement(std::string_view text) { lines_.push_back(indentation() + std::string(text)); }

  /// Appends head(arguments)tail; `head` is without the parenthesis.
  void call(std::string_view head, std::vector<std::string> const& arguments, std::string_view tail = "") {
    std::string const end = ")" + std::string(tail);
    std::string line = indentation() + std::string(head) + "(", joined;
    for (std::string const& argument : arguments) joined += (joined.empty() ? "" : ", ") + argument;
    if (arguments.empty() || line.size() + joined.size() + end.size() <= width) {
      lines_.push_back(line + joined + end);
      return;
    }
    // If the parenthesis is far to the right, arguments begin on a new line.
    bool const aligned = line.size() <= width / 2;
    std::string const margin(aligned ? line.size() : indentation().size() + 2 * step, ' ');
    if (!aligned) lines_.push_back(std::exchange(line, margin));
    auto const add = [&](std::string_view piece) {
      if (line.size() > margin.size() && line.size() + without_trailing_space(piece).size() > width)
        lines_.emplace_back(without_trailing_space(std::exchange(line, margin)));
      line += piece;
    };
    for (std::string const& argument : arguments) {
      std::string const piece = argument + (&argument == &arguments.back() ? end : ", ");
      if (margin.size() + without_trailing_space(piece).size() <= width)
        add(piece);
      else
        for (std::string_view part : pieces(piece)) add(part);
    }
    lines_.push_back(line);
  }

  /// True if the next line is the first of a block.
  bool at_block_start() const { return lines_.size() == block_start_; }

  void append(PythonLines const& other) { lines_.insert(lines_.end(), other.lines_.begin(), other.lines_.end()); }

  std::string text() const {
    std::string all;
    for (std::string const& line : lines_) all += line + "\n";
    return all;
  }

 private:
  static constexpr std::size_t step = 4;

  std::string indentation() const { return std::string(depth_ * step, ' '); }

  static std::string_view without_trailing_space(std::string_view text) {
    return text.substr(0, text.find_last_not_of(' ') + 1);
  }

  /// Splits after commas and before signs, where a line inside parentheses may be broken.
  static std::vector<std::string_view> pieces(std::string_view text) {
    std::vector<std::string_view> found;
    std::size_t begin = 0;
    for (std::size_t i = 0; i + 2 < text.size(); ++i) {
      bool const comma = text[i] == ',' && text[i + 1] == ' ';
      bool const sign = text[i] == ' ' && (text[i + 1] == '+' || text[i + 1] == '-') && text[i + 2] == ' ';
      if (!comma && !sign) continue;
      std::size_t const end = comma ? i + 2 : i + 1;
      found.push_back(text.substr(begin, end - begin));
      begin = end;
    }
    found.push_back(text.substr(begin));
    return found;
  }

  std::vector<std::string> lines_;
  std::size_t depth_ = 0, block_start_ = 0;
};

/// Builds the text. The body is printed first, because imports and declarations depend on what it uses.
class PythonModule {
 public:
  PythonModule(Program const& program, Spelling const& spelling)
      : program_(program),
        spelling_(spelling),
        names_(program),
        older_tiles_(program),
        calls_(program, names_, spelling) {
    body_.open_block();
    print(program.body);
  }

  std::string text() const {
    PythonLines lines;
    introduce(lines);
    lines.blank();
    lines.statement("import nki");
    if (calls_.uses_ring()) lines.statement("import nki.collectives as ncc");
    lines.statement("import nki.isa as nisa");
    lines.statement("import nki.language as nl");
    lines.blank();
    lines.blank();
    lines.statement("@nki.jit");
    std::vector<std::string> parameters = names_of(Role::input);
    if (program_.ranks > 1) parameters.emplace_back(PythonNames::replica_groups);
    if (!program_.mask_fingerprint.empty()) parameters.emplace_back(PythonNames::mask_fingerprint);
    lines.call("def " + program_.name, parameters, ":");
    lines.open_block();
    if (!program_.mask_fingerprint.empty())
      lines.statement("assert " + std::string(PythonNames::mask_fingerprint) + " == \"" + program_.mask_fingerprint +
                      "\", \"the table is of another mask than this kernel\"");
    for (Buffer const& buffer : program_.buffers)
      if (buffer.role != Role::input && !on_chip(buffer.memory)) declare(lines, buffer);
    if (calls_.uses_ring())
      lines.statement(std::string(PythonNames::ring) + " = ncc.ReplicaGroup(" +
                      std::string(PythonNames::replica_groups) + ")");
    if (calls_.uses_core()) lines.statement(names_.variable(core_variable) + " = nl.program_id(0)");
    lines.blank();
    lines.append(body_);
    print_return(lines);
    return lines.text();
  }

 private:
  std::vector<std::string> names_of(Role role) const {
    std::vector<std::string> found;
    for (int number : program_.with_role(role)) found.push_back(program_.buffer(number).name);
    return found;
  }

  void introduce(PythonLines& lines) const {
    lines.comment(program_.name + ": a tile program printed as an NKI kernel.");
    lines.comment("Generated by annulus: change what generates it, not this text.");
    lines.comment("");
    lines.comment("For " + std::string(name_of(program_.target)) + ", NKI " + std::string(spelling_.version) +
                  " (Neuron SDK " + std::string(spelling_.sdk) + ") and later.");
    std::string const cores = std::to_string(program_.cores);
    lines.comment("Launch: " + program_.name +
                  (!spelling_.launch_grid ? "(...) with NEURON_LOGICAL_NC_CONFIG=" + cores
                   : program_.cores > 1   ? "[" + cores + "](...)"
                                          : "(...)"));
    if (program_.cores > 1)
      lines.comment("Runs once on each of the " + std::to_string(program_.cores) + " cores of a logical core.");
    if (program_.ranks > 1) lines.comment("Runs on " + std::to_string(program_.ranks) + " ranks that form a ring.");
    lines.comment("");
    lines.comment("Arguments, in this order:");
    for (int number : program_.with_role(Role::input)) describe(lines, program_.buffer(number));
    if (program_.ranks > 1)
      lines.comment("  replica_groups: tuple of tuples of rank ids; groups of " + std::to_string(program_.ranks) +
                    " consecutive ranks, the first a multiple of " + std::to_string(program_.ranks));
    if (!program_.mask_fingerprint.empty())
      lines.comment("  mask_fingerprint: \"" + program_.mask_fingerprint +
                    "\", which names the mask; it comes with the table");
    lines.comment(program_.with_role(Role::output).size() > 1 ? "Returns the tuple of:" : "Returns:");
    for (int number : program_.with_role(Role::output)) describe(lines, program_.buffer(number));
  }

  static void describe(PythonLines& lines, Buffer const& buffer) {
    lines.comment("  " + buffer.name + ": " + std::string(name_of(buffer.type)) + " " + literal(buffer.shape));
  }

  static void declare(PythonLines& lines, Buffer const& buffer) {
    std::vector<std::string> keywords{tuple(buffer.shape), "dtype=nl." + std::string(name_of(buffer.type)),
                                      "buffer=nl." + std::string(name_of(buffer.memory))};
    if (!on_chip(buffer.memory)) keywords.push_back("name=\"" + buffer.name + "\"");
    lines.call(buffer.name + " = nl.ndarray", keywords);
  }

  void print_return(PythonLines& lines) const {
    std::vector<std::string> const results = names_of(Role::output);
    if (results.empty())
      throw UnsupportedError("the program " + program_.name + " has no output; accepted: one or more, in shared HBM");
    if (results.size() == 1)
      lines.statement("return " + results.front());
    else
      lines.call("return ", results);
  }

  void print(Body const& body) {
    for (Node const& node : body) std::visit([this](auto const& content) { this->print_node(content); }, node.content);
  }

  void print_node(Section const& section) {
    std::string title = section.name + " " + calls_.index(section.number);
    for (char& c : title)
      if (static_cast<unsigned char>(c) < ' ') c = ' ';
    if (!body_.at_block_start()) body_.blank();
    body_.comment(title);
  }

  void print_node(Instruction const& instruction) {
    PythonCall const call = std::visit([&](auto const& typed) { return calls_.call(typed); }, instruction);
    body_.call(call.function, call.arguments);
  }

  void print_node(Allocate const& allocate) {
    for (TileShift const& shift : older_tiles_.before(allocate)) {
      if (shift.only_core) body_.open_block("if " + calls_.is_core(*shift.only_core) + ":");
      if (shift.where)
        body_.open_block("if " + calls_.index(shift.where->index) + " >= " + literal(shift.where->at_least) + ":");
      body_.statement(names_.tile(allocate.buffer, shift.age) + " = " + names_.tile(allocate.buffer, shift.age - 1));
      if (shift.where) body_.close_block();
      if (shift.only_core) body_.close_block();
    }
    declare(body_, program_.buffer(allocate.buffer));
  }

  void print_node(Loop const& loop) {
    if (loop.count < 1 || !has_statement(loop.body)) return;
    print_block("for " + names_.variable(loop.variable) + " in range(" + literal(loop.count) + "):", loop.body);
  }

  void print_node(OnCore const& branch) {
    if (branch.core >= program_.cores) return;
    if (program_.cores == 1)
      print(branch.body);
    else if (has_statement(branch.body))
      print_block("if " + calls_.is_core(branch.core) + ":", branch.body);
  }

  void print_block(std::string const& head, Body const& body) {
    body_.open_block(head);
    print(body);
    body_.close_block();
  }

  /// True if a statement is printed for the body; Python does not allow blocks without one.
  bool has_statement(Body const& body) const {
    return std::ranges::any_of(body, [this](Node const& node) {
      if (auto const* loop = node.as<Loop>()) return loop->count >= 1 && has_statement(loop->body);
      if (auto const* branch = node.as<OnCore>()) return branch->core < program_.cores && has_statement(branch->body);
      return node.as<Section>() == nullptr;
    });
  }

  Program const& program_;
  Spelling spelling_;
  PythonNames names_;
  OlderTiles older_tiles_;
  PythonCalls calls_;
  PythonLines body_;
};

}  // namespace print_detail

ANNULUS_INLINE std::string to_python(Program const& program, Spelling const& spelling) {
  return print_detail::PythonModule(program, spelling).text();
}

#endif

}  // namespace annulus::nki
