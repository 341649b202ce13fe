"""annulus nki --emit --plain: kernels in plain loops against the fast ones and dense attention, and what is refused."""

import ast
import os
import pathlib
import re

import numpy as np

from support.command import Case, main, run
from support.launchers import ALL, FolderCase, command_of, contents, inside, run_on_model, run_torch

# A difference of two results, in standard deviations of one: of a million normal numbers the largest is below 5.
FAR = 6 * 2**0.5
CAUSAL = "--ranks 2 --tokens-per-rank 300 --query-heads 2 --kv-heads 1 --head-dim 16 --causal --sharding zigzag"
DOCUMENTS = ("--ranks 4 --tokens-per-rank 70 --batch 2 --query-heads 4 --kv-heads 2 --head-dim 24 --value-dim 40 "
             "--causal --documents 0,150 --softcap 3 --scale -0.4 --sinks 2 --tp-q --dtype f32")
CASES = [
    "--ranks 1 --tokens-per-rank 300 --query-heads 2 --kv-heads 1 --head-dim 16 --scale 0.3 --lnc 1 --dtype f32",
    CAUSAL,
    DOCUMENTS,
    "--ranks 2 --tokens-per-rank 130 --head-dim 32 --window 40,9 --sink-tokens 5 --sharding striped --dtype f16 "
    "--output-dtype f32",
    # Rows that see no key, with each value of their lse.
    "--ranks 2 --tokens-per-rank 140 --head-dim 8 --causal --query-offset -30 --masked-row zero --lse-dtype bf16",
    "--ranks 1 --tokens-per-rank 140 --keys-per-rank 200 --head-dim 8 --causal --query-offset -30 --dtype f32",
    "--ranks 2 --groups 2 --tokens-per-rank 150 --query-heads 3 --head-dim 200 --value-dim 24 --causal --tp-k "
    "--dtype f32 --bias heads,queries,keys",
    "--ranks 1 --tokens-per-rank 90 --query-heads 2 --head-dim 16 --bias queries,heads --bias-dtype bf16 --dtype f32",
    "--ranks 2 --tokens-per-rank 100 --head-dim 16 --chunk 60 --no-training --lnc 1 --target trn3 --nki-version 0.7",
    "--ranks 2 --tokens-per-rank 64 --head-dim 16 --documents 0,50 --run-time-documents --dtype f32",
]
# Changes of the forward kernel of CAUSAL.
FAULTS = [
    ("nisa.tensor_copy(dst=maximum, src=highest)", "pass"),
    ("data=total, op0=nl.multiply, operand0=correction", "data=total, op0=nl.add, operand0=0"),
    ("comp_op1=nl.less,", "comp_op1=nl.less_equal,"),
    ("here_v, next_v = next_v, here_v", "pass"),
]
# Arguments, words of the message.
REFUSED = [
    ("--tokens-per-rank 64 --cost-only", "--plain is given with no --emit"),
    *[(f"--tokens-per-rank 64 --emit new {options}", f"--plain is given with {options.split()[0]}") for options in (
        "--simulate", "--cost-only", "--listing file", "--trace file", "--like nkilib", "--keys-stationary",
        "--backward keys", "--bias-gradient --bias keys")],
    ("--tokens-per-rank 32768 --emit new", "keep the sums of all tiles of a head in SBUF, 262144 bytes of a partition",
     "accepted: up to 180"),
]


def results(folder):
    """Of each result of each rank: values, dense attention in double, and the size of each element's error."""
    found = {}
    with inside(folder, "check") as check:
        for about in check.problem.KERNELS.values():
            for name, _, shape in about["outputs"]:
                for rank, (_, place) in check.PLACES.items():
                    values = np.load(os.path.join(check.RESULTS, f"{name}.rank{rank}.npy")).astype(np.float64)
                    rows = [of[name][:, :, check.positions(place, name)] for of in check.ring_of(rank).dense()]
                    found[name, rank] = values, *(check.lse_tile(x, shape) if name == "lse" else x for x in rows)
    return found


def uncalled(text):
    """Functions of a module that nothing in it calls, except the kernel; and marks of the template."""
    tree = ast.parse(text)
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.decorator_list}
    return sorted(defined - called) + re.findall("#:|@(?!nki.jit)", text)


class Plain(FolderCase):
    def plain(self, folder, options):
        return self.kernels(folder, f"{options} --plain")

    def near(self, found, expected, size):
        infinite = np.isneginf(expected)
        self.assertTrue(np.array_equal(np.isneginf(found), infinite))
        apart = np.abs(np.where(infinite, 0, found) - np.where(infinite, 0, expected))
        self.assertLessEqual((apart - FAR * size).max(), 0)

    def test_results_of_each_element(self):
        for number, options in enumerate(CASES):
            with self.subTest(options):
                for name, text in self.plain(f"plain{number}", options).items():
                    self.assertEqual(uncalled(text), [], name)
                    self.assertLess(text.count("\n"), 350, name)
                self.emit(f"fast{number}", f"{options} --no-keys-stationary")
                for folder in (f"plain{number}", f"fast{number}"):
                    self.errors(run_on_model(folder), results=ALL[:1] if "--no-training" in options else ALL)
                plain, fast = results(f"plain{number}"), results(f"fast{number}")
                self.assertEqual(plain.keys(), fast.keys())
                for result, (values, exact, size) in plain.items():
                    with self.subTest(options, result=result):
                        self.near(values, exact, size)
                        self.near(values, fast[result][0], size)

    def test_any_order_of_the_ring(self):
        self.plain("plain", DOCUMENTS)
        for order in ([2, 0, 3, 1], [3, 2, 1, 0]):
            with self.subTest(order):
                self.errors(run_torch("plain", 4, order), ranks=4)

    def test_wrong_kernels_are_found(self):
        text = self.plain("plain", CAUSAL)["ring_attention_fwd"]
        for right, wrong in FAULTS:
            with self.subTest(right):
                self.assertEqual(text.count(right), 1)
                pathlib.Path("plain", "ring_attention_fwd.py").write_text(text.replace(right, wrong))
                table, status = run_on_model("plain")
                self.assertEqual(status, 1)
                self.assertIn("TOO LARGE", table)

    def test_the_command_line_in_the_readme(self):
        self.plain("plain", DOCUMENTS)
        self.contains(pathlib.Path("plain", "README.md").read_text(), "in plain loops, for a reader")
        self.assertEqual(run(*command_of("plain"), "--emit", "again").returncode, 0)
        self.assertEqual(contents("again"), contents("plain"))

    def test_replaces_the_fast_kernels_of_a_folder(self):
        self.emit("kernels", CAUSAL)
        self.assertEqual(set(self.plain("kernels", CAUSAL)), {"ring_attention_fwd", "ring_attention_bwd"})


class Refusals(Case):
    def test_refusals(self):
        self.refuses_all(REFUSED, ["nki", "--plain", "--ranks", "2"])


main()
