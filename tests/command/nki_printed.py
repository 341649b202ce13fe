"""Printed kernels of the sizes of the guide: every name has a value, and functions are called as often as they say."""

import ast
import builtins
import os
import re
import symtable
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import Folder, run  # noqa: E402


def problems(text):
    """Names without a value and false comments in the text of a kernel, which must compile."""
    compile(text, "kernel", "exec")
    module = symtable.symtable(text, "kernel", "exec")
    known = set(dir(builtins)) | {symbol.get_name() for symbol in module.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    functions = [child for child in module.get_children() if child.get_type() == "function"]
    found = [f"{function.get_name()}: no value for {name}" for function in functions for name in set(function.get_globals()) - known]
    called = [node.func.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    told = re.findall(r"^def (\w+)\([^)]*\):\n    # .*, called in (\d+) places?$", text, re.M)
    if len(told) != len(functions) - 1:
        found.append(f"{len(functions)} functions with the kernel, {len(told)} comments")
    return found + [f"{name}: told {times} calls, has {called.count(name)}" for name, times in told if not 0 < int(times) == called.count(name)]


# The check finds each of its problems.
SOUND = "def f(a):\n    # b, called in 2 places\n    print(a)\n\n\ndef kernel(a):\n    f(a)\n    f(a)\n"
assert problems(SOUND) == []
assert problems(SOUND.replace("print(a)", "print(j)")) == ["f: no value for j"]
assert problems(SOUND.replace("2 places", "3 places")) == ["f: told 3 calls, has 2"]
assert problems(SOUND.replace("2 places", "0 places").replace("    f(a)\n", "    print(a)\n")) == ["f: told 0 calls, has 0"]
assert problems(SOUND.replace(", called in 2 places", "")) == ["2 functions with the kernel, 0 comments"]

CASES = [
    ["--ranks", 4, "--tokens", 4096, "--query-heads", 2, "--causal", "--sharding", "striped"],
    ["--ranks", 1, "--tokens", 2304, "--causal", "--lnc", 1, "--head-dim", 32],
    ["--ranks", 2, "--tokens", 2048, "--query-heads", 4, "--kv-heads", 2, "--head-dim", 256, "--causal", "--sharding", "zigzag"],
]
functions = 0
with Folder():
    for arguments in CASES:
        done = run("nki", "--emit", "kernels", *arguments)
        assert done.returncode == 0 and done.stderr == "", (arguments, done)
        for name in ("ring_attention_fwd", "ring_attention_bwd"):
            with open(os.path.join("kernels", name + ".py")) as file:
                text = file.read()
            assert problems(text) == [], (arguments, name, problems(text))
            functions += text.count(", called in ")
assert functions > 30, functions
print(f"ok: {2 * len(CASES)} kernels, {functions} functions")
