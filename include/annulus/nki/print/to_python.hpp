#pragma once
// NKI Python module of a tile program.

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "annulus/nki/definitions.hpp"
#include "annulus/nki/hardware/hardware.hpp"
#include "annulus/nki/print/python_names.hpp"
#if defined(ANNULUS_NKI_DEFINITIONS)
#include "annulus/nki/print/python_call.hpp"
#include "annulus/nki/print/python_checks.hpp"
#include "annulus/nki/print/python_lines.hpp"
#include "annulus/nki/print/stages.hpp"
#endif

namespace annulus::nki {

/// Replica groups that a printed kernel accepts where it looks up tables by the ids of ranks. Elsewhere it accepts any
/// groups with the ranks of its ring.
enum class GroupOrder {
  consecutive,  ///< ids 0, 1, .. in all groups of the tables, so that ids may count in the world or in the group
  any,          ///< the caller makes the tables for its groups
};

/// Text of an NKI Python module with one `@nki.jit` function that has the name of the program.
///
/// Arguments of the function: the buffers of Role::input in order, in HBM, shapes as in the program; then, where the
/// program has 2 ranks or more, replica_groups: a tuple of tuples of rank ids; then, where the mask has a table,
/// mask_fingerprint: a string that must be the program's, so that a table of another mask is refused. The function
/// asserts the shapes, the groups (see GroupOrder) and the fingerprint. Returns the tuple
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
                      std::vector<std::string> const& notes = {}, GroupOrder order = GroupOrder::consecutive);

#if defined(ANNULUS_NKI_DEFINITIONS)

namespace print_detail {

/// Builds the text. The body is printed first, because imports and declarations depend on what it uses.
class PythonModule {
 public:
  PythonModule(Program const& program, Spelling const& spelling, std::vector<std::string> const& notes,
               GroupOrder order)
      : program_(program),
        order_(order),
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
    for (std::string* name : {&run_, &tiles_, &row_, &stage_, &schedule_, &tensors_}) *name = names_.claim(*name);
    for (Function const& function : functions_) {
      functions_text_.define(function.name, function.parameters());
      // "tensor (nc_matmul) -> scores; 3 times in the text"
      functions_text_.comment(
          concat(joined(function.engines), " (", joined(function.instructions), ") -> ", joined(function.writes), "; ",
                 function.calls + function.rows, " times in the text"),
          2);
      print(functions_text_, function.body);
      functions_text_.close_block();
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
    if (!program_.with_role(Role::input).empty() || groups() > 0) define_check(lines);
    if (program_.ranks > 1) define_check_groups(lines, names_.loops(), groups() > 0);
    if (std::ranges::any_of(tiled_, [](Buffer const* buffer) { return buffer->rotation > 1; })) print_tiles(lines);
    lines.append(functions_text_);
    if (!schedules_.empty()) print_schedules(lines);
    std::string const& fingerprint = program_.mask_fingerprint;
    std::vector<std::string> parameters = names_of(Role::input);
    if (program_.ranks > 1) parameters.emplace_back(PythonNames::replica_groups);
    if (!fingerprint.empty()) parameters.emplace_back(PythonNames::mask_fingerprint);
    lines.define(program_.name, parameters, "@nki.jit");
    for (int number : program_.with_role(Role::input))
      check_shape(lines, names_.buffer(number), program_.buffer(number).shape);
    if (groups() > 0) check_number_of_groups(lines, groups());
    if (program_.ranks > 1) check_groups(lines, program_.ranks);
    if (!fingerprint.empty()) check_fingerprint(lines, fingerprint);
    for (Buffer const& buffer : program_.buffers)
      if (buffer.role != Role::input && !on_chip(buffer.memory)) declare(lines, buffer);
    if (calls_.uses_ring())
      lines.statement(concat(PythonNames::ring, " = ncc.ReplicaGroup(", PythonNames::replica_groups, ")"));
    if (calls_.uses_core()) lines.statement(names_.variable(core_variable) + " = nl.program_id(0)");
    for (Buffer const* buffer : tiled_) declare(lines, *buffer);
    if (!schedules_.empty()) lines.call(tensors_ + " = ", stage_names_);
    lines.blank();
    lines.append(body_);
    std::vector<std::string> const results = names_of(Role::output);
    detail::check<UnsupportedError>(!results.empty(), "the program ", program_.name,
                                    " has no output; accepted: one or more, in shared HBM");
    if (results.size() == 1)
      lines.statement("return " + results.front());
    else
      lines.call("return ", results);
    return lines.text();
  }

 private:
  /// Groups for which the tables have entries; 0: the kernel looks up none by the ids of ranks, or takes any groups.
  Index groups() const {
    return order_ == GroupOrder::any ? 0 : detail::ceil_divide(calls_.rank_entries(), Index{program_.ranks});
  }

  std::vector<std::string> names_of(Role role) const {
    std::vector<std::string> found;
    for (int number : program_.with_role(role)) found.push_back(names_.buffer(number));
    return found;
  }

  void introduce(PythonLines& lines) const {
    lines.comment(program_.name + ": a tile program printed as an NKI kernel.");
    lines.comment("Generated by annulus: change what generates it, not this text.");
    lines.comment("");
    lines.comment(concat("For ", name_of(program_.target), ", ", versions_of(spelling_), "."));
    int const cores = program_.cores, ranks = program_.ranks;
    lines.comment(concat("Launch: ", program_.name,
                         !spelling_.launch_grid ? concat("(...) with NEURON_LOGICAL_NC_CONFIG=", cores)
                         : cores > 1            ? concat("[", cores, "](...)")
                                                : "(...)"));
    if (cores > 1) lines.comment(concat("Runs once on each of the ", cores, " cores of a logical core."));
    if (ranks > 1) lines.comment(concat("Runs on ", ranks, " ranks that form a ring."));
    lines.comment("");
    lines.comment("Arguments, in this order:");
    describe(lines, Role::input);
    if (ranks > 1)
      lines.comment(concat("  replica_groups: tuple of tuples of rank ids; ",
                           groups() > 0 ? concat(groups(), groups() == 1 ? " group of " : " groups of ", ranks,
                                                 " consecutive ids, from 0 on")
                                        : concat("groups of ", ranks)));
    if (!program_.mask_fingerprint.empty())
      lines.comment("  mask_fingerprint: \"" + program_.mask_fingerprint +
                    "\", which names the mask; it comes with the table");
    lines.comment(program_.with_role(Role::output).size() > 1 ? "Returns the tuple of:" : "Returns:");
    describe(lines, Role::output);
    if (!notes_.empty()) lines.comment("");
    for (std::string const& note : notes_) lines.comment(note, 2);
    if (!program_.notes.empty()) lines.comment("");
    for (std::string const& note : program_.notes) lines.comment(note, 6);
    // A map of the kernel: its functions with engines and results, and the buffers on chip with their bytes.
    if (!functions_.empty()) lines.comment("");
    if (!functions_.empty())
      lines.comment("Stages in the order of their first run: engines -> what they write. Each says more at its head.");
    for (Function const& function : functions_)
      lines.comment(concat("  ", function.name, ": ", joined(function.engines), " -> ", joined(function.writes)), 6);
    map_tiles(lines, Memory::sbuf, "SBUF");
    map_tiles(lines, Memory::psum, "PSUM");
  }

  void map_tiles(PythonLines& lines, Memory memory, std::string_view title) const {
    Index total = 0;
    std::vector<std::string> rows;
    for (Buffer const* buffer : tiled_) {
      if (buffer->memory != memory) continue;
      total += bytes_per_partition(*buffer);
      rows.push_back(concat("  ", buffer->name, ": ", buffer->rotation, " x ",
                            bytes_per_partition(*buffer) / buffer->rotation, " bytes, ", name_of(buffer->type), " ",
                            literal(buffer->shape)));
    }
    if (rows.empty()) return;
    lines.comment("");
    lines.comment(concat(title, ", ", total, " bytes of each partition; tiles of a buffer take turns:"));
    for (std::string const& row : rows) lines.comment(row);
  }

  void describe(PythonLines& lines, Role role) const {
    for (int number : program_.with_role(role)) {
      Buffer const& buffer = program_.buffer(number);
      lines.comment(concat("  ", buffer.name, ": ", name_of(buffer.type), " ", literal(buffer.shape)));
    }
  }

  /// The function that runs the rows of a schedule, and the schedules.
  void print_schedules(PythonLines& lines) const {
    lines.blank();
    for (char const* line :
         {"Schedules. A row names a stage and gives it its integers: numbers of tiles (the tile modulo the number",
          "of tiles of the buffer is used) and places in them. Engines run side by side and wait only for data.",
          "`run` says which function each short name is, and names the integers of its rows."})
      lines.comment(line);
    std::vector<std::string> stages;
    for (Function const& function : functions_)
      if (function.rows > 0) stages.push_back(function.constant);
    std::size_t const count = stages.size();
    if (count == 1) stages.front() += ",";
    lines.call("", stages, concat(" = range(", count, ")"));
    print_run(lines);
    for (auto const& [name, rows] : schedules_) {
      lines.statement(name + " = (");
      lines.open_block();
      lines.list(rows, ")");
      lines.close_block();
    }
  }

  void print_run(PythonLines& lines) const {
    lines.define(run_, {schedule_, tensors_});
    lines.call("", stage_names_, " = " + tensors_);
    std::string const& i = names_.loops().front();
    lines.open_block(concat("for ", i, " in range(len(", schedule_, ")):"));
    lines.statement(concat(row_, " = ", schedule_, "[", i, "]"));
    for (Function const& function : functions_) {
      if (function.rows == 0) continue;
      lines.open_block(concat("if ", row_, "[0] == ", function.constant, ":"));
      if (!function.integers.empty()) {
        std::vector<std::string> fields{stage_};
        fields.insert(fields.end(), function.integers.begin(), function.integers.end());
        lines.call("", fields, " = " + row_);
      }
      lines.call(function.name, function.parameters());
      lines.close_block();
    }
    lines.close_block();
    lines.close_block();
  }

  /// Declares a tensor in HBM, or the tiles of a buffer on chip.
  void declare(PythonLines& lines, Buffer const& buffer) const {
    std::string const shape = tuple(buffer.shape);
    if (on_chip(buffer.memory) && buffer.rotation > 1)
      return lines.call(buffer.name + " = " + tiles_,
                        {literal(buffer.rotation), shape, concat("nl.", name_of(buffer.type)),
                         concat("nl.", name_of(buffer.memory))});
    std::vector<std::string> keywords{shape, concat("dtype=nl.", name_of(buffer.type)),
                                      concat("buffer=nl.", name_of(buffer.memory))};
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
    std::ranges::replace_if(
        title, [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
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
    places_.skip(loop.body, Affine::of(loop.variable));  // the earlier iterations
    std::vector<Statement> body = statements(loop.body);
    into.push_back(
        block(concat("for ", names_.variable(loop.variable), " in range(", loop.count, "):"), std::move(body)));
    places_.skip(loop.body, Affine(loop.count - 1) - Affine::of(loop.variable));
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
    std::string const claimed = names_.claim(concat(title, "_", ++parts_[title]));
    auto& rows = schedules_.emplace_back(claimed, std::vector<std::string>{}).second;
    for (Statement const& call : calls) rows.push_back(call.row);
    lines.call(run_, {claimed, tensors_});
  }

  void print(PythonLines& lines, std::vector<Statement> const& statements) {
    std::string title = "start";
    for (Statement const& statement : statements) {
      if (statement.kind == Statement::Kind::comment) title = statement.text.substr(2);
      if (statement.kind == Statement::Kind::schedule) {
        print_schedule(lines, capitals(title), statement.body);
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
        std::istringstream parts(text);
        std::string function;
        std::getline(parts, function, Statement::separator);
        std::vector<std::string> arguments;
        for (std::string part; std::getline(parts, part, Statement::separator);) arguments.push_back(part);
        lines.call(function, arguments);
      }
    }
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
  GroupOrder order_;
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
  std::string run_ = "run", tiles_ = "tiles_of", row_ = "row", stage_ = "stage", schedule_ = "schedule",
              tensors_ = "tensors";
  PythonLines functions_text_, body_;
};

}  // namespace print_detail

ANNULUS_NKI_INLINE std::string to_python(Program const& program, Spelling const& spelling,
                                         std::vector<std::string> const& notes, GroupOrder order) {
  return print_detail::PythonModule(program, spelling, notes, order).text();
}

#endif

}  // namespace annulus::nki
