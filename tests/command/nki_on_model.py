"""simulate.py --model of an emitted folder: runs what it holds, on the model that it holds, with NumPy alone."""

import sys

from support.command import environment, main, run_program
from support.launchers import ALL, FolderCase, contents, edit
from support.nki_tests import MODEL

SMALL = "--tokens-per-rank 40 --head-dim 16 --causal"
# Ranks of all rings, results, options.
CASES = [
    (4, ALL, "--ranks 4 --sharding striped"),
    (4, ALL, "--ranks 2 --groups 2 --lnc 1 --target trn3 --nki-version 0.7"),
    # A row needs the running maximum.
    (2, ALL[:2], "--ranks 2 --scale 6 --only fwd"),
    (2, ALL, "--ranks 2 --like nkilib"),
]


def simulate(folder, *arguments):
    """simulate.py in a process of its own, which finds no module but those of Python, of NumPy and of the folder."""
    with environment(PYTHONPATH=None):
        return run_program(sys.executable, f"{folder}/simulate.py", *arguments)


class OnModel(FolderCase):
    def ends(self, done, *words):
        self.assertEqual(done.returncode, 1)
        self.contains(done.stderr, *words)

    def test_the_folder_holds_the_model(self):
        sources = {name: text for name, text in contents(MODEL).items() if name.endswith(".py")}
        self.assertEqual(self.emit("kernels", SMALL)["nki_model"], sources)

    def test_runs_all_ranks(self):
        for number, (ranks, results, options) in enumerate(CASES):
            with self.subTest(options):
                self.emit(f"kernels{number}", f"{SMALL} {options}")
                done = simulate(f"kernels{number}", "--model")
                self.assertEqual(done.stderr, "")
                self.errors((done.stdout, done.returncode), results=results, ranks=ranks)

    def test_finds_a_wrong_kernel(self):
        self.emit("kernels", f"{SMALL} --ranks 2 --dtype f32 --only fwd")
        edit("kernels/ring_attention_fwd.py", r"scale=0\.25", "scale=0.26")
        done = simulate("kernels", "--model")
        self.ends(done)
        self.assertIn("TOO LARGE", done.stdout)

    def test_refuses_what_nki_refuses(self):
        self.emit("kernels", f"{SMALL} --ranks 2 --only fwd")
        edit("kernels/ring_attention_fwd_stationary.py", r"(buffer=|, )nl\.psum\b", r"\1nl.sbuf")
        self.ends(simulate("kernels", "--model"), "nc_matmul")

    def test_refuses_other_arguments_and_several_ranks_without_the_model(self):
        self.emit("kernels", f"{SMALL} --ranks 2")
        for arguments in ("--modle", "--model --model", "2"):
            with self.subTest(arguments):
                self.ends(simulate("kernels", *arguments.split()),
                          f"arguments: {arguments}; accepted: --model, or none\n")
        self.ends(simulate("kernels"), "simulate.py --model", "annulus nki --ranks 1 ")


main()
