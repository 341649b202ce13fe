#pragma once
// Asserts of a printed kernel that its arguments are those it was made for.

#include <string>
#include <string_view>
#include <vector>

#include "annulus/nki/print/python_lines.hpp"
#include "annulus/nki/print/python_names.hpp"

namespace annulus::nki::print_detail {

/// The function that other checks are calls of.
inline void define_check(PythonLines& lines) {
  lines.define(PythonNames::check, {"what", "given", "accepted"});
  lines.statement("assert given == accepted, f\"{what}: {given}; accepted: {accepted}\"");
  lines.close_block();
}

/// text: a Python expression; what: names it in the message.
inline void check_value(PythonLines& lines, std::string_view what, std::string const& text,
                        std::string const& accepted) {
  lines.call(PythonNames::check, {concat("\"", what, "\""), text, accepted});
}

inline void check_shape(PythonLines& lines, std::string const& tensor, std::vector<Index> const& shape) {
  check_value(lines, concat("shape of ", tensor), tensor + ".shape", tuple(shape));
}

/// The function that checks how many ranks each group has and, if ordered, that their ids are 0, 1, .. in all groups.
inline void define_check_groups(PythonLines& lines, std::vector<std::string> const& loops, bool ordered) {
  std::string const &i = loops[0], &j = loops[1];
  lines.define(PythonNames::check_groups, {"given", "ranks"});
  lines.open_block(concat("for ", i, " in range(len(given)):"));
  lines.statement(concat("assert len(given[", i, "]) == ranks, ",
                         "f\"replica_groups: {given}; accepted: groups of {ranks} ranks\""));
  if (ordered) {
    lines.comment("Tables have an entry for the id of each rank, whether ids count in the world or in the group.");
    lines.open_block(concat("for ", j, " in range(ranks):"));
    lines.statement(concat("assert given[", i, "][", j, "] == ranks * ", i, " + ", j,
                           ", f\"replica_groups: {given}; accepted: ids from 0 on in order\""));
    lines.close_block();
  }
  lines.close_block();
  lines.close_block();
}

/// Needs define_check_groups() in the module.
inline void check_groups(PythonLines& lines, int ranks) {
  lines.call(PythonNames::check_groups, {std::string(PythonNames::replica_groups), literal(ranks)});
}

inline void check_number_of_groups(PythonLines& lines, Index groups) {
  check_value(lines, "number of replica_groups", concat("len(", PythonNames::replica_groups, ")"), literal(groups));
}

/// The kernel takes the table of its own mask only.
inline void check_fingerprint(PythonLines& lines, std::string const& fingerprint) {
  lines.statement(concat("assert ", PythonNames::mask_fingerprint, " == \"", fingerprint,
                         "\", \"the table is of another mask than this kernel\""));
}

}  // namespace annulus::nki::print_detail
