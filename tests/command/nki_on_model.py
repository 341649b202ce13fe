"""simulate.py --model of an emitted folder: runs what it holds, on the model that it holds, with NumPy alone."""

import os
import re
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "support"))
from command import Folder, run  # noqa: E402

MODEL = os.path.join(HERE, "..", "nki", "nki_model")
SMALL = ["--tokens-per-rank", 40, "--head-dim", 16, "--causal"]


def emit(*arguments):
    done = run("nki", "--emit", "kernels", *arguments)
    assert done.returncode == 0, done


def simulate(*arguments):
    """simulate.py in a process of its own, which finds no module but those of Python, of NumPy and of the folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([sys.executable, os.path.join("kernels", "simulate.py"), *arguments], env=environment,
                          capture_output=True, text=True)


def results(text):
    """Names of the results and their ranks, as in the printed table."""
    return set(re.findall(r"^(\w+) +(\d+) +\S+ +\S+$", text, re.M))


class OnModel(unittest.TestCase):
    def setUp(self):
        folder = Folder()
        folder.__enter__()
        self.addCleanup(folder.__exit__, None, None, None)

    def checks(self, ranks, names):
        done = simulate("--model")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertEqual(results(done.stdout), {(name, str(rank)) for name in names for rank in range(ranks)})

    def test_holds_the_model(self):
        emit(*SMALL)
        written = os.path.join("kernels", "nki_model")
        sources = {name for name in os.listdir(MODEL) if name.endswith(".py")}
        self.assertEqual(set(os.listdir(written)), sources)
        for name in sources:
            with open(os.path.join(written, name)) as copy, open(os.path.join(MODEL, name)) as source:
                self.assertEqual(copy.read(), source.read(), name)

    def test_runs_all_ranks(self):
        emit("--ranks", 4, "--sharding", "striped", *SMALL)
        self.checks(4, ["output", "lse", "dq", "dk", "dv"])

    def test_runs_the_ranks_of_all_rings(self):
        emit("--ranks", 2, "--groups", 2, "--lnc", 1, "--target", "trn3", "--nki-version", "0.7", *SMALL)
        self.checks(4, ["output", "lse", "dq", "dk", "dv"])

    def test_runs_the_running_maximum_where_a_row_needs_it(self):
        emit("--ranks", 2, "--scale", 6, "--only", "fwd", *SMALL)
        self.checks(2, ["output", "lse"])

    def test_runs_functions_like_nkilibs(self):
        emit("--ranks", 2, "--like", "nkilib", *SMALL)
        self.checks(2, ["output", "lse", "dq", "dk", "dv"])

    def test_finds_a_wrong_kernel(self):
        emit("--ranks", 2, "--dtype", "f32", "--only", "fwd", *SMALL)
        path = os.path.join("kernels", "ring_attention_fwd.py")
        with open(path) as file:
            text = file.read()
        self.assertIn("scale=0.25", text)
        with open(path, "w") as file:
            file.write(text.replace("scale=0.25", "scale=0.26"))
        done = simulate("--model")
        self.assertEqual(done.returncode, 1, done)
        self.assertIn("TOO LARGE", done.stdout)

    def test_refuses_what_nki_refuses(self):
        emit("--ranks", 2, "--only", "fwd", *SMALL)
        path = os.path.join("kernels", "ring_attention_fwd_stationary.py")
        with open(path) as file:
            text = file.read()
        with open(path, "w") as file:
            file.write(text.replace("buffer=nl.psum", "buffer=nl.sbuf").replace("nl.psum)", "nl.sbuf)"))
        done = simulate("--model")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("nc_matmul", done.stderr)

    def test_refuses_other_arguments(self):
        emit("--ranks", 2, *SMALL)
        for arguments in (["--modle"], ["--model", "--model"], ["2"]):
            done = simulate(*arguments)
            self.assertEqual(done.returncode, 1)
            self.assertEqual(done.stderr, f"arguments: {' '.join(arguments)}; accepted: --model, or none\n")

    def test_says_what_runs_several_ranks(self):
        emit("--ranks", 2, *SMALL)
        done = simulate()
        self.assertEqual(done.returncode, 1)
        self.assertIn("simulate.py --model", done.stderr)
        self.assertIn("annulus nki --ranks 1 ", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
