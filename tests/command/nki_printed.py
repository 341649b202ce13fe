"""Printed kernels of the sizes of the guide: every name has a value, and stages are used as often as they say."""

import ast
import builtins
import pathlib
import re
import symtable

from support.command import Case, main, run

# Functions that have no comment with the number of their uses.
WITHOUT_COMMENT = ("run", "tiles_of", "check", "check_groups", "kernel")


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
            stage_of = {branch.test.comparators[0].id: branch.body[0].value.func.id for branch in branches}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            used += [stage_of.get(row.elts[0].id, "no stage") for row in node.value.elts]
    return used


def problems(text):
    """Names without a value and false comments in the text of a kernel, which must compile."""
    compile(text, "kernel", "exec")
    module = symtable.symtable(text, "kernel", "exec")
    of_module = {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    known = set(dir(builtins)) | of_module
    functions = [child for child in module.get_children() if child.get_type() == "function"]
    found = [f"{function.get_name()}: no value for {name}"
             for function in functions for name in set(function.get_globals()) - known]
    used = uses(ast.parse(text))
    comments = re.findall(r"^def (\w+)\([^)]*\):\n((?:    # .*\n)+)", text, re.M)
    counts = [(name, re.search(r"; (\d+) times in the text", re.sub(r"[\s#]+", " ", comment)))
              for name, comment in comments]
    told = [(name, int(count.group(1))) for name, count in counts if count]
    without = sum(function.get_name() in WITHOUT_COMMENT or function.get_name().startswith("ring_attention")
                  for function in functions)
    if len(told) != len(functions) - without:
        found.append(f"{len(functions)} functions with the kernel, {len(told)} comments")
    if "no stage" in used:
        found.append("a row names no stage")
    return found + [f"{name}: told {times} uses, has {used.count(name)}"
                    for name, times in told if not 0 < times == used.count(name)]


def unnamed_columns(text):
    """Stages whose rows have other integers than the list of their names above the schedules, which are parameters of
    the stage."""
    legend = {stage: re.findall(r"\w+", names)
              for stage, names in re.findall(r"^#   ([A-Z]\w*): (.*(?:\n#       .*)*)", text, re.M)}
    body = ast.parse(text).body
    functions = {node.name: [argument.arg for argument in node.args.args]
                 for node in body if isinstance(node, ast.FunctionDef)}
    stages = dict(re.findall(r"if row\[0\] == (\w+):\n +(\w+)\(", text))
    rows = [row for node in body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
            for row in node.value.elts]
    wrong = {row.elts[0].id for row in rows if len(row.elts) - 1 != len(legend.get(row.elts[0].id, []))}
    return wrong | {stage for stage, names in legend.items() if functions[stages[stage]][-len(names):] != names}


def unused_constants(text):
    """Constants that the comment explains and the code does not have."""
    comment, code = text.split("\nimport nki\n")
    explained = comment.split("# Constants: ")[1].split(".\n#")[0].replace("\n#", "")
    return [number for number in re.findall(r"\d[\d.]*e[+-]\d+", explained) if number not in code]


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
            f(a, row[1])


def kernel(a):
    f(a, 1)
    f(a, 2)
    run(STEP, a)
"""
# A change of the sound text, what is then wrong.
UNSOUND = [
    (("print(a)", "print(j)"), ["f: no value for j"]),
    (("4 times", "3 times"), ["f: told 3 uses, has 4"]),
    (("(F, 2)", "(G, 2)"), ["a row names no stage", "f: told 4 uses, has 3"]),
    (("    # b; 4 times in the\n    #   text\n", ""), ["3 functions with the kernel, 0 comments"]),
]
CASES = [
    "--ranks 4 --tokens-per-rank 4096 --query-heads 2 --causal --sharding striped",
    "--ranks 1 --tokens-per-rank 2304 --causal --lnc 1 --head-dim 32",
    "--ranks 2 --tokens-per-rank 2048 --query-heads 4 --kv-heads 2 --head-dim 256 --causal --sharding zigzag",
]


class PrintedKernels(Case):
    def test_each_problem_is_found(self):
        self.assertEqual(problems(SOUND), [])
        for change, wanted in UNSOUND:
            with self.subTest(change):
                self.assertEqual(problems(SOUND.replace(*change))[-len(wanted):], wanted)

    def test_kernels(self):
        functions = 0
        for arguments in CASES:
            done = run("nki", "--emit", "kernels", *arguments.split())
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            for name in ("ring_attention_fwd.py", "ring_attention_bwd.py"):
                with self.subTest(arguments, name=name):
                    text = pathlib.Path("kernels", name).read_text()
                    self.assertEqual((problems(text), unnamed_columns(text), unused_constants(text)), ([], set(), []))
                    self.contains(text, "\n# Algorithm: ", "\n# Constants: ")
                    functions += text.count("\ndef make_")
        self.assertGreater(functions, 30)


main()
