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
            stage_of = {branch.test.comparators[0].id: branch.body[-1].value.func.id for branch in branches}
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
    """Stages of whose rows `run` names other integers than they have, or than the function takes that it calls."""
    tree = ast.parse(text)
    functions = {node.name: [argument.arg for argument in node.args.args]
                 for node in tree.body if isinstance(node, ast.FunctionDef)}
    lengths = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            for row in node.value.elts:
                lengths.setdefault(row.elts[0].id, set()).add(len(row.elts))
    wrong = set()
    for branch in ast.walk(tree):
        if isinstance(branch, ast.If) and ast.unparse(branch.test).startswith("row[0]"):
            stage, call = branch.test.comparators[0].id, branch.body[-1].value
            names = [name.id for name in branch.body[0].targets[0].elts[1:]] if len(branch.body) == 2 else []
            given = [argument.id for argument in call.args]
            if (lengths[stage], given, given[len(given) - len(names):]) != ({len(names) + 1}, functions[call.func.id],
                                                                            names):
                wrong.add(stage)
    return wrong


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
            (stage, b) = row
            f(a, b)


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
# Changes of the sound text after which a row of F has integers of other names or of another number.
UNNAMED = [("(stage, b) = row", "(stage, b, c) = row"), ("(stage, b) = row", "(stage, c) = row"),
           ("(F, 2)", "(F, 2, 3)"), ("def f(a, b)", "def f(b, a)")]
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

    def test_unnamed_integers_are_found(self):
        self.assertEqual(unnamed_columns(SOUND), set())
        for change in UNNAMED:
            with self.subTest(change):
                self.assertEqual(unnamed_columns(SOUND.replace(*change)), {"F"})

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
