"""Lost standard output is a failure: status 1 and one line on stderr, whatever the output."""

import os
import pathlib
import subprocess

import numpy as np

from support.arrays import ArrayCase, load, same, save_operands
from support.command import main, run

OPERANDS = np.random.default_rng(21).standard_normal((4, 1, 12, 2, 4)).astype("f4")
ATTEND = "attend --q q.npy --k k.npy --v v.npy --dout dout.npy"
CALLS = ["plan --tokens 64", "plan --tokens 64 --json",
         "plan --tokens 4096 --ranks 32 --json",  # larger than the buffers
         "--help", "attend --help", "demo --tokens 40 --head-dim 8 --ranks 2",
         f"{ATTEND} --out-dir out", f"{ATTEND} --out-dir out --verify",
         "nki --simulate --tokens-per-rank 16 --head-dim 16 --ranks 2",
         "nki --cost-only --tokens-per-rank 128 --head-dim 16 --ranks 2",
         "nki --emit kernels --tokens-per-rank 128 --head-dim 16 --ranks 2"]


class StandardOutput(ArrayCase):
    def setUp(self):
        super().setUp()
        save_operands(*OPERANDS)

    def each_is_lost(self, reason, **streams):
        for call in CALLS:
            with self.subTest(call):
                self.one_line(run(*call.split(), **streams), 1, "standard output cannot be written (", reason)
        self.assertEqual(set(load("out")), {"out", "lse", "dq", "dk", "dv"})

    def test_full_device(self):
        with open("/dev/full", "w") as full:
            self.each_is_lost("No space left on device", stdout=full)

    def test_closed(self):
        self.each_is_lost("Bad file descriptor", stdout=None, preexec_fn=lambda: os.close(1))

    def test_closed_pipe(self):
        reader, writer = os.pipe()
        self.addCleanup(os.close, writer)
        os.close(reader)
        # Python ignores SIGPIPE, and the child would inherit that.
        self.each_is_lost("Broken pipe", stdout=writer, restore_signals=True)

    def test_files_do_not_get_the_descriptors_of_closed_streams(self):
        done = subprocess.run([self.program, *ATTEND.split(), "--out-dir", "alone", "--trace", "trace.json"],
                              timeout=300, preexec_fn=lambda: os.closerange(0, 3))
        self.assertEqual(done.returncode, 1)
        self.assertTrue(same(load("alone"), self.attend(*ATTEND.split()[1:])))
        self.assertNotIn("annulus:", pathlib.Path("trace.json").read_text())

    def test_bad_call_has_status_2_all_the_same(self):
        with open("/dev/full", "w") as full:
            self.one_line(run("plan", stdout=full), 2, "--tokens")


main()
