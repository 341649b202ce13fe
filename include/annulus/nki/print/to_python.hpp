#pragma once
// NKI Python module of a tile program.

#include "annulus/core/definitions.hpp"
#include "annulus/nki/print/python_names.hpp"
#if defined(ANNULUS_NKI_DEFINITIONS)
#include "annulus/nki/print/python_call.hpp"
#include "annulus/nki/print/python_lines.hpp"
#include "annulus/nki/print/stages.hpp"
#endif

namespace annulus::nki {

/// Text of an NKI Python module with one `@nki.jit` function that has the name of the program.
///
/// Arguments of the function: the buffers of Role::input in order, in HBM, shapes as in the program; then, where the
/// program has 2 ranks or more, replica_groups: a tuple of tuples of rank ids; then, where the mask has a table,
/// mask_fingerprint: a string that must be the program's, so that a table of another mask is refused. Returns the tuple
/// of Role::output buffers, or the buffer itself if there is only one. With 2 cores it is launched as `name[2](...)`;
/// without Spelling::launch_grid as `name(...)`, with NEURON_LOGICAL_NC_CONFIG=2.
///
/// The text depends only on program and spelling, uses only Python that all front ends of NKI accept, always writes
/// accumulate= and applies .ap to whole tensors only. A buffer that keeps several tiles is a list of them (see
/// TilePlaces), and statements that repeat are loops (see Repeats), functions and tables of their calls (see Stages).
/// Requires a valid program. Throws UnsupportedError for names that are no Python identifiers, non-finite values,
/// collectives without a ring, and a program without output.
/// notes: paragraphs for the comment on top.
std::string to_python(Program const& program, Spelling const& spelling = spelling_of(Version::nki_0_3),
                      std::vector<std::string> const& notes = {});

#if defined(ANNULUS_NKI_DEFINITIONS)

namespace print_detail {

/// Builds the text. The body is printed first, because imports and declarations depend on what it uses.
class PythonModule {
 public:
  PythonModule(Program const& program, Spelling const& spelling, std::vector<std::string> const& notes)
      : program_(program),
        notes_(notes),
        spelling_(spelling),
        names_(program),
        places_(program),
        calls_(program, names_, places_),
        repeats_(names_.loops()) {
    std::set<int> tiled;
    for_each_node(program.body, [&](Node const& node) {
      if (auto const* allocate = node.as<Allocate>()) tiled.insert(allocate->buffer);
    });
    for (int number : tiled) tiled_.push_back(&program.buffer(number));
    std::vector<Statement> body = statements(program.body);
    functions_ = Stages(repeats_, names_).extract(body);
    for (Function const& function : functions_)
      for (std::string const& name : function.names)
        if (function.rows > 0 && std::ranges::find(stage_names_, name) == stage_names_.end())
          stage_names_.push_back(name);
    run_ = names_.claim("run");
    tiles_ = names_.claim("tiles_of");
    row_ = names_.claim("row");
    schedule_ = names_.claim("schedule");
    tensors_ = names_.claim("tensors");
    for (Function const& function : functions_) {
      PythonLines& lines = function_bodies_.emplace_back();
      lines.open_block();
      lines.comment(summary(function), 2);
      print(lines, function.body);
    }
    body_.open_block();
    print(body_, body);
  }

  std::string text() const {
    PythonLines lines;
    introduce(lines);
    lines.blank();
    lines.statement("import nki");
    if (calls_.uses_ring()) lines.statement("import nki.collectives as ncc");
    lines.statement("import nki.isa as nisa");
    lines.statement("import nki.language as nl");
    if (std::ranges::any_of(tiled_, [](Buffer const* buffer) { return buffer->rotation > 1; })) print_tiles(lines);
    for (Function const& function : functions_) {
      lines.define(function.name, function.parameters());
      lines.append(function_bodies_[&function - functions_.data()]);
      lines.close_block();
    }
    print_schedules(lines);
    std::vector<std::string> parameters = names_of(Role::input);
    if (program_.ranks > 1) parameters.emplace_back(PythonNames::replica_groups);
    if (!program_.mask_fingerprint.empty()) parameters.emplace_back(PythonNames::mask_fingerprint);
    lines.define(program_.name, parameters, "@nki.jit");
    if (!program_.mask_fingerprint.empty())
      lines.statement("assert " + std::string(PythonNames::mask_fingerprint) + " == \"" + program_.mask_fingerprint +
                      "\", \"the table is of another mask than this kernel\"");
    for (Buffer const& buffer : program_.buffers)
      if (buffer.role != Role::input && !on_chip(buffer.memory)) declare(lines, buffer);
    if (calls_.uses_ring())
      lines.statement(std::string(PythonNames::ring) + " = ncc.ReplicaGroup(" +
                      std::string(PythonNames::replica_groups) + ")");
    if (calls_.uses_core()) lines.statement(names_.variable(core_variable) + " = nl.program_id(0)");
    declare_tiles(lines);
    if (!schedules_.empty()) lines.call(tensors_ + " = ", stage_names_);
    lines.blank();
    lines.append(body_);
    print_return(lines);
    return lines.text();
  }

 private:
  std::vector<std::string> names_of(Role role) const {
    std::vector<std::string> found;
    for (int number : program_.with_role(role)) found.push_back(names_.buffer(number));
    return found;
  }

  void introduce(PythonLines& lines) const {
    lines.comment(program_.name + ": a tile program printed as an NKI kernel.");
    lines.comment("Generated by annulus: change what generates it, not this text.");
    lines.comment("");
    lines.comment("For " + std::string(name_of(program_.target)) + ", " + versions_of(spelling_) + ".");
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
    if (!notes_.empty()) lines.comment("");
    for (std::string const& note : notes_) lines.comment(note, 2);
    draw_map(lines);
  }

  /// A map of the kernel: its functions with engines and results, and the buffers on chip with their bytes.
  void draw_map(PythonLines& lines) const {
    if (!functions_.empty()) lines.comment("");
    if (!functions_.empty())
      lines.comment("Stages in the order of their first run: engines -> what they write. Each says more at its head.");
    for (Function const& function : functions_)
      lines.comment("  " + function.name + ": " + joined(function.engines) + " -> " + joined(function.writes), 6);
    for (Memory memory : {Memory::sbuf, Memory::psum}) {
      Index total = 0;
      std::vector<std::string> rows;
      for (Buffer const* buffer : tiled_) {
        if (buffer->memory != memory) continue;
        Index const bytes = buffer->elements_per_partition() * bytes_of(buffer->type);
        total += buffer->rotation * bytes;
        rows.push_back("  " + buffer->name + ": " + literal(buffer->rotation) + " x " + literal(bytes) + " bytes, " +
                       std::string(name_of(buffer->type)) + " " + literal(buffer->shape));
      }
      if (rows.empty()) continue;
      lines.comment("");
      lines.comment(std::string(memory == Memory::sbuf ? "SBUF" : "PSUM") + ", " + literal(total) +
                    " bytes of each partition; tiles of a buffer take turns:");
      for (std::string const& row : rows) lines.comment(row);
    }
  }

  static std::string joined(auto const& names) {
    std::string text;
    for (std::string const& name : names) text += (text.empty() ? "" : ", ") + name;
    return text;
  }

  /// "tensor (nc_matmul) -> scores; 3 times in the text"
  static std::string summary(Function const& function) {
    return joined(function.engines) + " (" + joined(function.instructions) + ") -> " + joined(function.writes) + "; " +
           std::to_string(function.calls + function.rows) + " times in the text";
  }

  /// The schedules, and the function that runs one of their rows.
  void print_schedules(PythonLines& lines) const {
    if (schedules_.empty()) return;
    lines.separate();
    lines.comment(
        "Schedules. A row names a stage and gives it its integers: numbers of tiles (the tile modulo the number");
    lines.comment(
        "of tiles of the buffer is used) and places in them. Engines run side by side and wait only for data.");
    lines.comment(
        "`run` below says which function each short name is. Integers of the rows of each stage, in their order:");
    std::vector<std::string> stages;
    for (Function const& function : functions_)
      if (function.rows > 0) stages.push_back(function.constant);
    stages.back() += stages.size() == 1 ? "," : "";
    for (Function const& function : functions_)
      if (function.rows > 0 && !function.integers.empty())
        lines.comment("  " + function.constant + ": " + joined(function.integers), 6);
    lines.call("", stages, " = range(" + std::to_string(stages.size()) + ")");
    lines.blank();
    for (auto const& [name, rows] : schedules_) {
      lines.statement(name + " = (");
      lines.open_block();
      lines.list(rows, ")");
      lines.close_block();
    }
    lines.define(run_, {schedule_, tensors_});
    lines.call("", stage_names_, " = " + tensors_);
    std::string const& i = names_.loops().front();
    lines.open_block("for " + i + " in range(len(" + schedule_ + ")):");
    lines.statement(row_ + " = " + schedule_ + "[" + i + "]");
    for (Function const& function : functions_) {
      if (function.rows == 0) continue;
      lines.open_block("if " + row_ + "[0] == " + function.constant + ":");
      std::vector<std::string> arguments = function.names;
      for (std::size_t i = 0; i < function.integers.size(); ++i)
        arguments.push_back(row_ + "[" + std::to_string(i + 1) + "]");
      lines.call(function.name, arguments);
      lines.close_block();
    }
    lines.close_block();
    lines.close_block();
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

  /// The function that makes the tiles of a buffer.
  void print_tiles(PythonLines& lines) const {
    std::string const& i = names_.loops().front();
    lines.define(tiles_, {"count", "shape", "dtype", "buffer"});
    lines.statement("made = []");
    lines.open_block("for " + i + " in range(count):");
    lines.statement("made.append(nl.ndarray(shape, dtype=dtype, buffer=buffer))");
    lines.close_block();
    lines.statement("return made");
    lines.close_block();
  }

  void print_return(PythonLines& lines) const {
    std::vector<std::string> const results = names_of(Role::output);
    detail::check<UnsupportedError>(!results.empty(), "the program ", program_.name,
                                    " has no output; accepted: one or more, in shared HBM");
    if (results.size() == 1)
      lines.statement("return " + results.front());
    else
      lines.call("return ", results);
  }

  /// Statements of a body, in order, with its loops.
  std::vector<Statement> statements(Body const& body) {
    std::vector<Statement> into;
    add(into, body);
    return repeats_.rolled(std::move(into));
  }

  void add(std::vector<Statement>& into, Body const& body) {
    for (Node const& node : body) std::visit([&](auto const& content) { this->add_node(into, content); }, node.content);
  }

  void add_node(std::vector<Statement>& into, Section const& section) {
    std::string title = section.name + " " + calls_.index(section.number);
    for (char& c : title)
      if (static_cast<unsigned char>(c) < ' ') c = ' ';
    into.push_back({.text = "# " + title, .kind = Statement::Kind::comment});
  }

  void add_node(std::vector<Statement>& into, Instruction const& instruction) {
    if (auto const* load = std::get_if<RegisterLoad>(&instruction))  // a new one, so that none waits for older uses
      into.push_back({.text = names_.register_name(load->register_number) + " = nisa.register_alloc",
                      .kind = Statement::Kind::assignment});
    into.push_back({.text = std::visit([&](auto const& typed) { return calls_.call(typed); }, instruction),
                    .engine = name_of(engine_of(instruction))});
    if (std::holds_alternative<ProcessingRank>(instruction)) into.back().kind = Statement::Kind::assignment;
  }

  void add_node(std::vector<Statement>&, Allocate const& allocate) { places_.allocate(allocate.buffer); }

  void add_node(std::vector<Statement>& into, Loop const& loop) {
    if (loop.count < 1) return;
    if (!has_statement(loop.body)) return places_.skip(loop.body, loop.count);
    if (loop.count == 1) {
      calls_.set_to_zero(loop.variable);
      return add(into, loop.body);
    }
    places_.enter(loop);
    std::vector<Statement> body = statements(loop.body);
    into.push_back(
        block("for " + names_.variable(loop.variable) + " in range(" + literal(loop.count) + "):", std::move(body)));
    places_.leave(loop);
  }

  void add_node(std::vector<Statement>& into, OnCore const& branch) {
    if (branch.core >= program_.cores) return;
    if (program_.cores == 1) return add(into, branch.body);
    places_.only_on(branch.core);
    if (has_statement(branch.body))
      into.push_back(block("if " + calls_.is_core(branch.core) + ":", statements(branch.body)));
    else
      places_.skip(branch.body, 1);
    places_.only_on(-1);
  }

  /// Prints a loop over a schedule, which is kept for print_schedules().
  void print_schedule(PythonLines& lines, std::string const& title, std::vector<Statement> const& calls) {
    std::string const name = capitals(title);
    std::string const part = name + "_" + std::to_string(++parts_[name]);
    auto& [claimed, rows] = schedules_.emplace_back(names_.claim(part), std::vector<std::string>{});
    for (Statement const& call : calls) rows.push_back(call.row);
    lines.call(run_, {claimed, tensors_});
  }

  void print(PythonLines& lines, std::vector<Statement> const& statements) {
    std::string title = "start";
    for (Statement const& statement : statements) {
      if (statement.kind == Statement::Kind::comment) title = statement.text.substr(2);
      if (statement.kind == Statement::Kind::schedule) {
        print_schedule(lines, title, statement.body);
        continue;
      }
      std::string const text = worked_out(statement.text);
      if (!statement.body.empty()) {
        lines.open_block(text);
        print(lines, statement.body);
        lines.close_block();
      } else if (statement.kind == Statement::Kind::comment) {
        if (!lines.at_block_start()) lines.blank();
        lines.statement(text);
      } else {
        std::vector<std::string> arguments;
        std::size_t at = text.find(Statement::separator);
        std::string const function = text.substr(0, at);
        while (at != std::string::npos) {
          std::size_t const next = text.find(Statement::separator, at + 1);
          arguments.push_back(text.substr(at + 1, next == std::string::npos ? next : next - at - 1));
          at = next;
        }
        lines.call(function, arguments);
      }
    }
  }

  /// Declares the tiles of every buffer on chip that the program makes tiles of.
  void declare_tiles(PythonLines& lines) const {
    for (Buffer const* buffer : tiled_)
      if (buffer->rotation == 1)
        declare(lines, *buffer);
      else
        lines.call(buffer->name + " = " + tiles_,
                   {literal(buffer->rotation), tuple(buffer->shape), "nl." + std::string(name_of(buffer->type)),
                    "nl." + std::string(name_of(buffer->memory))});
  }

  /// True if a statement is printed for the body; Python does not allow blocks without one.
  bool has_statement(Body const& body) const {
    return std::ranges::any_of(body, [this](Node const& node) {
      if (auto const* loop = node.as<Loop>()) return loop->count >= 1 && has_statement(loop->body);
      if (auto const* branch = node.as<OnCore>()) return branch->core < program_.cores && has_statement(branch->body);
      return node.as<Instruction>() != nullptr;
    });
  }

  Program const& program_;
  std::vector<std::string> const& notes_;
  Spelling spelling_;
  PythonNames names_;
  std::vector<Buffer const*> tiled_;  ///< buffers on chip of which the program makes tiles
  TilePlaces places_;
  PythonCalls calls_;
  Repeats repeats_;
  std::vector<Function> functions_;
  std::vector<std::pair<std::string, std::vector<std::string>>> schedules_;  ///< name, rows
  std::map<std::string, int> parts_;                                         ///< of each title: schedules so far
  std::vector<std::string> stage_names_;                                     ///< that the stages of schedules are given
  std::string run_, tiles_, row_, schedule_, tensors_;
  std::vector<PythonLines> function_bodies_;
  PythonLines body_;
};

}  // namespace print_detail

ANNULUS_INLINE std::string to_python(Program const& program, Spelling const& spelling,
                                     std::vector<std::string> const& notes) {
  return print_detail::PythonModule(program, spelling, notes).text();
}

#endif

}  // namespace annulus::nki
