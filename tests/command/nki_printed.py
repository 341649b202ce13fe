"""Printed kernels of the sizes of the guide: every name has a value, and stages are used as often as they say."""

import ast
import builtins
import os
import re
import symtable
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import Folder, run  # noqa: E402


def uses(tree):
    """Names of the functions that the text calls: by name, and by the rows of its schedules."""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    used, stage_of = [], {}
    for function in functions:
        calls = [node for node in ast.walk(function) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        if function.name != "run":
            used += [call.func.id for call in calls]
        else:
            branches = [node for node in ast.walk(function) if isinstance(node, ast.If)]
            stage_of = {branch.test.comparators[0].id: branch.body[-1].value.func.id for branch in branches}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            used += [stage_of.get(row.elts[0].id, "no stage") for row in node.value.elts]
    return used


def problems(text):
    """Names without a value and false comments in the text of a kernel, which must compile."""
    compile(text, "kernel", "exec")
    module = symtable.symtable(text, "kernel", "exec")
    known = set(dir(builtins)) | {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    functions = [child for child in module.get_children() if child.get_type() == "function"]
    found = [f"{function.get_name()}: no value for {name}" for function in functions for name in set(function.get_globals()) - known]
    used = uses(ast.parse(text))
    comments = re.findall(r"^def (\w+)\([^)]*\):\n((?:    # .*\n)+)", text, re.M)
    counts = [(name, re.search(r"; (\d+) times in the text", re.sub(r"[\s#]+", " ", comment))) for name, comment in comments]
    told = [(name, int(count.group(1))) for name, count in counts if count]
    without = sum(function.get_name() in ("run", "tiles_of", "check", "check_groups", "kernel") or function.get_name().startswith("ring_attention") for function in functions)
    if len(told) != len(functions) - without:
        found.append(f"{len(functions)} functions with the kernel, {len(told)} comments")
    if "no stage" in used:
        found.append("a row names no stage")
    return found + [f"{name}: told {times} uses, has {used.count(name)}" for name, times in told if not 0 < times == used.count(name)]


def unnamed_columns(text):
    """Stages of whose rows `run` names other integers than they have, or than the function takes that it calls."""
    functions = {node.name: [argument.arg for argument in node.args.args] for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    rows = [row for node in ast.parse(text).body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple) for row in node.value.elts]
    lengths = {}
    for row in rows:
        lengths.setdefault(row.elts[0].id, set()).add(len(row.elts))
    wrong = set()
    for branch in [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.If) and ast.unparse(node.test).startswith("row[0]")]:
        stage, call = branch.test.comparators[0].id, branch.body[-1].value
        fields = [name.id for name in branch.body[0].targets[0].elts] if len(branch.body) == 2 else ["stage"]
        given = [argument.id for argument in call.args]
        if lengths[stage] != {len(fields)} or given != functions[call.func.id] or given[len(given) - len(fields) + 1:] != fields[1:]:
            wrong.add(stage)
    return wrong


# The check finds each of its problems.
SOUND = """def f(a, b):
    # b; 4 times in the
    #   text
    print(a)


(F,) = range(1)

STEP = (
    (F, 1), (F, 2))


def run(schedule, a):
    for i in range(len(schedule)):
        row = schedule[i]
        if row[0] == F:
            (stage, b) = row
            f(a, b)


def kernel(a):
    f(a, 1)
    f(a, 2)
    run(STEP, a)
"""
assert problems(SOUND) == [], problems(SOUND)
assert problems(SOUND.replace("print(a)", "print(j)")) == ["f: no value for j"]
assert problems(SOUND.replace("4 times", "3 times")) == ["f: told 3 uses, has 4"]
assert problems(SOUND.replace("(F, 2)", "(G, 2)"))[-2:] == ["a row names no stage", "f: told 4 uses, has 3"]
assert problems(SOUND.replace("    # b; 4 times in the\n    #   text\n", "")) == ["3 functions with the kernel, 0 comments"]

assert unnamed_columns(SOUND) == set()
for wrong in (SOUND.replace("(stage, b) = row", "(stage, b, c) = row"), SOUND.replace("(stage, b) = row", "(stage, c) = row"),
              SOUND.replace("(F, 2)", "(F, 2, 3)"), SOUND.replace("def f(a, b)", "def f(b, a)")):
    assert unnamed_columns(wrong) == {"F"}, wrong

CASES = [
    ["--ranks", 4, "--tokens-per-rank", 4096, "--query-heads", 2, "--causal", "--sharding", "striped"],
    ["--ranks", 1, "--tokens-per-rank", 2304, "--causal", "--lnc", 1, "--head-dim", 32],
    ["--ranks", 2, "--tokens-per-rank", 2048, "--query-heads", 4, "--kv-heads", 2, "--head-dim", 256, "--causal", "--sharding", "zigzag"],
]
functions = 0
with Folder():
    for arguments in CASES:
        done = run("nki", "--emit", "kernels", *arguments)
        assert done.returncode == 0 and done.stderr == "", (arguments, done)
        for name in ("ring_attention_fwd", "ring_attention_bwd"):
            with open(os.path.join("kernels", name + ".py")) as file:
                text = file.read()
            assert problems(text) == [] and unnamed_columns(text) == set(), (arguments, name, problems(text), unnamed_columns(text))
            assert all(f"\n# {word}: " in text for word in ("Algorithm", "Constants")), (arguments, name)
            # The comment explains no constant that is not in the code.
            comment, code = text.split("\nimport nki\n")
            constants = comment.split("# Constants: ")[1].split(".\n#")[0].replace("\n#", "")
            assert all(number in code for number in re.findall(r"\d[\d.]*e[+-]\d+", constants)), (arguments, name, constants)
            functions += text.count("\ndef make_")
assert functions > 30, functions
print(f"ok: {2 * len(CASES)} kernels, {functions} functions")
