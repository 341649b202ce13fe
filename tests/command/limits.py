"""Limits on threads and memory: status 1 and one line on stderr, never an abort."""

import os
import resource
import shutil

import numpy as np

from support.arrays import ArrayCase, save_operands
from support.command import main, run

random = np.random.default_rng(24)
MIB = 1 << 20
MANY_THREADS = ["attend --q q.npy --k k.npy --v v.npy --ranks 32 --out-dir out",
                "demo --tokens 64 --heads 64 --kv-heads 1 --ranks 1 --head-dim 8",
                "demo --tokens 64 --ranks 32",
                "nki --simulate --tokens-per-rank 16 --head-dim 16 --ranks 16 --out-dir out"]
WITH_TRACE = "attend --q q.npy --k k.npy --v v.npy --out-dir out --ranks 2 --window 40,0 --trace trace.json".split()


def limited(*arguments, **limits):
    """Runs with soft and hard limits by name, e.g. AS=bytes."""
    def set_limits():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))
    done = run(*arguments, preexec_fn=set_limits)
    # UCX, which Open MPI may load, reports on standard output that it cannot start a thread of its own.
    done.stdout = "".join(line for line in done.stdout.splitlines(True) if "UCX" not in line)
    return done


def started(done):
    return done.returncode >= 0 and done.returncode != 127 and not done.stderr.startswith("Fatal") \
        and "error while loading shared libraries" not in done.stderr


class Limits(ArrayCase):
    def setUp(self):
        super().setUp()
        if limited("plan", "--tokens", "8", AS=1024 * MIB).returncode != 0:
            self.skipTest("this build of the command needs more memory than the limits allow, as with a sanitizer")

    def test_threads_beyond_the_memory_for_their_stacks(self):
        save_operands(*(random.standard_normal((1, 64, 2, 8)) for _ in range(4)))
        for call in MANY_THREADS:
            with self.subTest(call):
                # Stacks of 256 MiB: a few threads fit.
                self.one_line(limited(*call.split(), AS=2048 * MIB, STACK=256 * MIB), 1, "thread")
                self.assertFalse(os.path.exists("out"))

    def test_memory_from_too_little_to_start_to_enough(self):
        save_operands(*(random.standard_normal((1, 1500, 4, 32)).astype("f4") for _ in range(4)))
        seen = set()
        for megabytes in range(4, 244, 4):
            with self.subTest(megabytes=megabytes):
                done = limited(*WITH_TRACE, AS=megabytes * MIB)
                if not seen and not started(done):
                    continue
                seen.add(done.returncode)
                if done.returncode != 0:
                    self.one_line(done, 1)
                    self.assertFalse(os.path.exists("out") or os.path.exists("trace.json"))
                else:
                    self.assertEqual(done.stderr, "")
                    shutil.rmtree("out")
                    os.remove("trace.json")
        self.assertEqual(seen, {0, 1})


main()
