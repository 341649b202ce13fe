#!/usr/bin/env python3
"""Mutation testing: changes one operator of the headers at a time, and counts the changes that no test sees.

tests/mutation/run.py                 more than 200 mutants of schedules, masks, shardings, merging and compared records
tests/mutation/run.py --tree FOLDER   with the headers and tests of another checkout
tests/mutation/run.py --every N       each Nth operator alone (default: so that some 240 are made)
tests/mutation/run.py --only 7,12     the mutants of these numbers
tests/mutation/run.py --list          the operators

All mutants are compiled into one build of the tests (see mutants.hpp), in build/mutation of the tree; it takes some
minutes. A mutant is killed if a test program fails, crashes or exceeds five times its time; programs run in the order
of PROGRAMS, until one kills it. Prints what kills each mutant, the survivors, and the counts of each file. Operators
that no test evaluates are counted apart.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
HEADERS = ("mask/*.hpp", "sharding/*.hpp", "numerics/softmax.hpp", "attention/agreement.hpp", "attention/records.hpp",
           "schedule/*_actions.hpp", "schedule/leaf*.hpp", "schedule/merge_plan.hpp", "schedule/visible_tiles.hpp",
           "schedule/balanced_sharding.hpp", "schedule/rank_groups.hpp", "schedule/plan_slots.hpp", "ring/executor.hpp",
           "ring/slots.hpp", "ring/step_places.hpp")
# Test executables and their cases, the fastest first.
PROGRAMS = (("mask",), ("sharding",), ("numerics",), ("ring",), ("attention",), ("attention_cache",), ("schedule",),
            ("integration", "[trap],[sweep]"))
KINDS = {"<": "Less", "<=": "LessEqual", ">": "Greater", ">=": "GreaterEqual", "==": "Equal", "!=": "NotEqual",
         "+": "Plus", "-": "Minus"}
OPERATOR = re.compile(r"(?<=[\w)\]}]) (<=|>=|==|!=|<|>|\+|-) (?=[\w({*&!-])")
NO_CODE = re.compile(r'//.*|"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)+\'')


class Site:
    """One operator that can be changed."""

    def __init__(self, header, line, begin, operator):
        self.header, self.line, self.begin, self.operator = header, line, begin, operator

    def __str__(self):
        return f"{self.header}:{self.line + 1}:{self.begin + 2}: '{self.operator}' becomes the operator of mutants.hpp"


def sites_of(include):
    sites = []
    for header in sorted({path for pattern in HEADERS for path in (include / "annulus").glob(pattern)
                          if path.name != "print_actions.hpp"}):
        for number, line in enumerate(header.read_text().splitlines()):
            code = NO_CODE.sub(lambda match: " " * len(match.group()), line)
            if "operator" in code or "template" in code or code.lstrip().startswith("#"):
                continue
            sites += [Site(header.relative_to(include), number, match.start(), match.group(1))
                      for match in OPERATOR.finditer(code)]
    return sites


def plant(include, sites):
    """Writes the mutants, numbered from 1, into the headers."""
    by_header = collections.defaultdict(list)
    for number, site in enumerate(sites, 1):
        by_header[site.header].append((site, number))
    for header, planted in by_header.items():
        lines = (include / header).read_text().splitlines()
        for site, number in sorted(planted, key=lambda one: (one[0].line, one[0].begin), reverse=True):
            line, end = lines[site.line], site.begin + 2 + len(site.operator)
            between = f" {site.operator} mutants::{KINDS[site.operator]}<{number}>{{}} {site.operator} "
            lines[site.line] = line[: site.begin] + between + line[end:]
        first = next(i for i, line in enumerate(lines) if line.startswith("#pragma once"))
        lines.insert(first + 1, f'#include "{HERE / "mutants.hpp"}"')
        (include / header).write_text("\n".join(lines) + "\n")


def build(tree, folder, sites):
    copy = folder / "tree"
    shutil.rmtree(copy, ignore_errors=True)
    files = subprocess.run(["git", "ls-files"], cwd=tree, check=True, capture_output=True, text=True).stdout
    for name in files.splitlines():
        target = copy / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(tree / name, target)
    plant(copy / "include", sites)
    off = [f"-DANNULUS_{what}=OFF" for what in ("WITH_MPI", "BUILD_C", "BUILD_EXAMPLES", "BUILD_BENCHMARKS", "CPU_LEVELS")]
    options = [*off, "-DANNULUS_SHORT_BUILD=ON", "-DCMAKE_CXX_FLAGS=-w"]
    subprocess.run(["cmake", "-S", copy, "-B", folder / "build", "-G", "Ninja", *options], check=True,
                   stdout=subprocess.DEVNULL)
    targets = [f"annulus_{program[0]}_tests" for program in PROGRAMS]
    subprocess.run(["cmake", "--build", folder / "build", "--target", *targets], check=True)


class Tests:
    """The test programs of a build."""

    def __init__(self, folder):
        self.commands = [[folder / "build" / "tests" / f"annulus_{name}_tests", *cases, "--rng-seed", "1", "--abort"]
                         for name, *cases in PROGRAMS]
        self.seconds = []

    def run_unchanged(self):
        """Runs all without a mutant, and returns the numbers of the operators that they evaluate."""
        with tempfile.NamedTemporaryFile() as reached:
            for command in self.commands:
                begin = time.monotonic()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL,
                               env={**os.environ, "ANNULUS_MUTANTS_REACHED": reached.name})
                self.seconds.append(time.monotonic() - begin)
            return sorted({int(line) for line in reached.read().split()})

    def kill(self, number):
        """The name of the first program that sees the mutant, or None."""
        for command, seconds in zip(self.commands, self.seconds):
            try:
                result = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                        timeout=5 + 5 * seconds, env={**os.environ, "ANNULUS_MUTANT": str(number)})
            except subprocess.TimeoutExpired:
                return self.killed(number, command)
            if result.returncode != 0:
                return self.killed(number, command)
        return None

    def killed(self, number, command):
        print(f"{number:4} killed by {command[0].name}", flush=True)
        return command[0].name


def report(sites, killers, evaluated):
    """`killers`: what killed each mutant that ran, or None."""
    counts = collections.defaultdict(collections.Counter)
    for number, site in enumerate(sites, 1):
        if number in evaluated and number not in killers:
            continue  # not asked for
        state = "not evaluated" if number not in evaluated else "killed" if killers[number] else "survived"
        counts[site.header][state] += 1
        if state == "survived":
            print(f"survived: {number:4} {site}")
    total = collections.Counter()
    for header, count in sorted(counts.items()):
        total += count
        print_counts(count, header)
    print_counts(total, "in all")


def print_counts(count, what):
    print(*(f"{count[state]:4} {state}" for state in ("killed", "survived", "not evaluated")), what)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=pathlib.Path, default=HERE.parent.parent)
    parser.add_argument("--every", type=int)
    parser.add_argument("--only", type=lambda text: {int(number) for number in text.split(",")})
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    sites = sites_of(arguments.tree / "include")
    sites = sites[:: arguments.every or -(-len(sites) // 240)]
    if arguments.list:
        print("\n".join(str(site) for site in sites))
        return 0
    folder = arguments.tree / "build" / "mutation"
    build(arguments.tree, folder, sites)
    tests = Tests(folder)
    evaluated = tests.run_unchanged()
    print(f"{len(sites)} mutants, {len(evaluated)} evaluated; the tests take {sum(tests.seconds):.0f} s", flush=True)
    asked = [number for number in evaluated if not arguments.only or number in arguments.only]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        killers = dict(zip(asked, pool.map(tests.kill, asked)))
    report(sites, killers, set(evaluated))
    return 0


if __name__ == "__main__":
    sys.exit(main())
