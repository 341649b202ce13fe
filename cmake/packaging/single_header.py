#!/usr/bin/env python3
"""Writes the umbrella header with all that it includes as one file, for Compiler Explorer and for programs of one file.

single_header.py INCLUDE_FOLDER OUTPUT
"""

import pathlib
import re
import sys

INCLUDE = re.compile(r'\s*#\s*include\s*[<"](annulus/[^">]+)[">]')
CONDITION = re.compile(r"\s*#\s*(if|ifdef|ifndef|endif)\b")


def guard_of(name):
    return "ANNULUS_SINGLE_" + re.sub(r"\W", "_", name).upper()


def expand(folder, name, complete, lines):
    """Appends the header. `complete`: headers that are in the file outside of any condition, which need no second copy."""
    lines += [f"#ifndef {guard_of(name)}", f"#define {guard_of(name)}"]
    depth = 0
    for line in (folder / name).read_text().splitlines():
        condition, include = CONDITION.match(line), INCLUDE.match(line)
        if condition:
            depth += -1 if condition[1] == "endif" else 1
        if line.strip() == "#pragma once":
            continue
        if not include:
            lines.append(line)
        elif include[1] not in complete:
            if depth == 0:
                complete.add(include[1])
                expand(folder, include[1], complete, lines)
            else:
                expand(folder, include[1], set(complete), lines)
    lines.append(f"#endif  // {guard_of(name)}")


def main():
    folder, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    lines = ["// Annulus in one file, made from include/annulus. Apache License 2.0.", "#pragma once"]
    expand(folder, "annulus/annulus.hpp", {"annulus/annulus.hpp"}, lines)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
