"""annulus nki --emit --plain: kernels in plain loops against the fast ones and dense attention, and what is refused."""

import ast
import contextlib
import io
import os
import pathlib
import re
import shlex
import sys
import unittest

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "support"), str(HERE.parent / "nki")]
from command import Folder, environment, run  # noqa: E402
from launchers import emit, inside, nki_model, run_torch, succeeds  # noqa: E402
from signatures import problems  # noqa: E402

# A difference of two results, in standard deviations of one: of a million normal numbers the largest is below 5.
FAR = 6 * 2**0.5
MASKS = {
    "none": "--ranks 1 --tokens-per-rank 300 --query-heads 2 --kv-heads 1 --head-dim 16 --scale 0.3 --lnc 1"
            " --dtype f32",
    "causal": "--ranks 2 --tokens-per-rank 300 --query-heads 2 --kv-heads 1 --head-dim 16 --causal --sharding zigzag",
    "documents": "--ranks 4 --tokens-per-rank 70 --batch 2 --query-heads 4 --kv-heads 2 --head-dim 24 --value-dim 40"
                 " --causal --documents 0,150 --softcap 3 --scale -0.4 --sinks 2 --tp-q --dtype f32",
    "window": "--ranks 2 --tokens-per-rank 130 --head-dim 32 --window 40,9 --sink-tokens 5 --sharding striped"
              " --dtype f16 --output-dtype f32",
    "masked_rows": "--ranks 2 --tokens-per-rank 140 --head-dim 8 --causal --query-offset -30 --masked-row zero"
                   " --lse-dtype bf16",
    "rows_without_keys": "--ranks 1 --tokens-per-rank 140 --keys-per-rank 200 --head-dim 8 --causal --query-offset -30"
                         " --dtype f32",
    "bias": "--ranks 2 --groups 2 --tokens-per-rank 150 --query-heads 3 --head-dim 200 --value-dim 24 --causal --tp-k"
            " --dtype f32 --bias heads,queries,keys",
    "bias_of_queries": "--ranks 1 --tokens-per-rank 90 --query-heads 2 --head-dim 16 --bias queries,heads"
                       " --bias-dtype bf16 --dtype f32",
    "inference": "--ranks 2 --tokens-per-rank 100 --head-dim 16 --chunk 60 --no-training --lnc 1 --target trn3"
                 " --nki-version 0.7",
    "run_time_documents": "--ranks 2 --tokens-per-rank 64 --head-dim 16 --documents 0,50 --run-time-documents"
                          " --dtype f32",
}


def on_model(folder):
    """Runs simulate.py --model, which compares all results with dense attention; returns its exit status and table."""
    with inside(folder, "simulate") as program, contextlib.redirect_stdout(io.StringIO()) as told:
        return program.main(["--model"]), told.getvalue()


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


def texts(folder):
    return {path.name: path.read_text() for path in pathlib.Path(folder).glob("ring_attention_*.py")}


def uncalled(text):
    """Functions of a module that nothing in it calls, but for the kernel; and marks of the template."""
    tree = ast.parse(text)
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and not node.decorator_list}
    return sorted(defined - called) + re.findall("#:|@(?!nki.jit)", text)


class Plain(unittest.TestCase):
    def setUp(self):
        folder = Folder()
        folder.__enter__()
        self.addCleanup(folder.__exit__, None, None, None)

    def alike(self, mask):
        options = MASKS[mask].split()
        emit("plain", *options, "--plain")
        emit("fast", *options, "--no-keys-stationary")
        version, target = (options[options.index(name) + 1] if name in options else fallback
                           for name, fallback in (("--nki-version", "0.3"), ("--target", "trn2")))
        for name, text in texts("plain").items():
            self.assertEqual(nki_model.subset.check(text), [], name)
            self.assertEqual(problems(text, version, target)[0], [], name)
            self.assertEqual(uncalled(text), [], name)
            self.assertLessEqual(max(map(len, text.splitlines())), 120, name)
            self.assertLess(text.count("\n"), 350, name)
        for folder in ("plain", "fast"):
            status, table = on_model(folder)
            self.assertEqual(status, 0, (folder, table))
        fast = results("fast")
        plain = results("plain")
        self.assertEqual(plain.keys(), fast.keys())
        for (name, rank), (values, exact, size) in plain.items():
            for what, other in (("dense attention", exact), ("the fast kernel", fast[name, rank][0])):
                infinite = np.isneginf(other)
                self.assertTrue(np.array_equal(np.isneginf(values), infinite), (what, name, rank))
                apart = np.abs(np.where(infinite, 0, values) - np.where(infinite, 0, other))
                self.assertTrue((apart <= FAR * size).all(), (what, name, rank, np.max(apart - FAR * size)))

    def test_runs_in_any_order_of_the_ring(self):
        emit("plain", *MASKS["documents"].split(), "--plain")
        with environment({"NEURON_LOGICAL_NC_CONFIG": "2"}):
            for order in ([2, 0, 3, 1], [3, 2, 1, 0]):
                errors = succeeds(*run_torch("plain", 4, order), order)
                self.assertEqual(len(errors), 5 * 4)

    def test_finds_a_wrong_kernel(self):
        emit("plain", *MASKS["causal"].split(), "--plain")
        path = pathlib.Path("plain", "ring_attention_fwd.py")
        text = path.read_text()
        for right, wrong in (("nisa.tensor_copy(dst=maximum, src=highest)", "pass"),
                             ("data=total, op0=nl.multiply, operand0=correction", "data=total, op0=nl.add, operand0=0"),
                             ("comp_op1=nl.less,", "comp_op1=nl.less_equal,"),
                             ("here_v, next_v = next_v, here_v", "pass")):
            self.assertEqual(text.count(right), 1, right)
            path.write_text(text.replace(right, wrong))
            status, table = on_model("plain")
            self.assertTrue(status == 1 and "TOO LARGE" in table, (right, table))

    def test_is_made_again_by_the_command_line_of_its_readme(self):
        emit("plain", *MASKS["documents"].split(), "--plain")
        readme = pathlib.Path("plain", "README.md").read_text()
        self.assertIn("in plain loops, for a reader", readme)
        emit("again", *shlex.split(re.search(r"^annulus nki (.*) --emit \.$", readme, re.M)[1]))
        self.assertEqual(texts("again"), texts("plain"))

    def test_replaces_the_fast_kernels_of_a_folder(self):
        emit("kernels", "--ranks", 2, "--tokens-per-rank", 64, "--causal")
        emit("kernels", "--ranks", 2, "--tokens-per-rank", 64, "--causal", "--plain")
        self.assertEqual(set(texts("kernels")), {"ring_attention_fwd.py", "ring_attention_bwd.py"})

    def refuses(self, words, *arguments, to=("--emit", "kernels")):
        done = run("nki", "--plain", *to, "--ranks", 2, *arguments)
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1), done)
        self.assertIn(words, done.stderr)
        self.assertFalse(os.path.exists("kernels"))

    def test_refuses_what_it_does_not_take(self):
        short = ["--tokens-per-rank", 64]
        self.refuses("--plain is given with no --emit", *short, "--cost-only", to=())
        for named, *value in (["--simulate"], ["--cost-only"], ["--listing", "file"], ["--trace", "file"],
                              ["--like nkilib"], ["--keys-stationary"], ["--backward keys"],
                              ["--bias-gradient", "--bias", "keys"]):
            with self.subTest(option=named):
                self.refuses(f"--plain is given with {named}", *short, *named.split(), *value)

    def test_refuses_sums_that_do_not_fit(self):
        self.refuses("keep the sums of all tiles of a head in SBUF, 262144 bytes of a partition; accepted: up to 180",
                     "--tokens-per-rank", 32768)


for mask in MASKS:
    setattr(Plain, f"test_alike_{mask}", lambda self, mask=mask: self.alike(mask))

if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
