"""Limits on threads and memory: status 1 and one line on stderr, never an abort."""

import os
import resource
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import ANNULUS, Folder, save_operands  # noqa: E402

random = np.random.default_rng(24)
MIB = 1 << 20
SKIPPED = 77


def limited(*arguments, **limits):
    """Runs with soft and hard limits by name, e.g. AS=bytes."""
    def set_limits():
        for name, value in limits.items():
            resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))
    return subprocess.run([ANNULUS, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, preexec_fn=set_limits)


def one_line(done):
    # UCX, which Open MPI may load, reports on standard output that it cannot start a thread of its own.
    printed = [line for line in done.stdout.splitlines() if "UCX" not in line]
    assert done.returncode == 1 and not printed, done
    assert done.stderr.startswith("annulus: ") and done.stderr.count("\n") == 1 and done.stderr.endswith("\n"), done


with Folder():
    if limited("plan", "--tokens", "8", AS=1024 * MIB).returncode != 0:
        print("this build of the command needs more memory than the limits allow, as with a sanitizer")
        sys.exit(SKIPPED)
    files = save_operands(*(random.standard_normal((1, 64, 2, 8)) for _ in range(4)))

    # Stacks of 256 MiB: a few threads fit.
    for call in (["attend", *files, "--ranks", "32", "--out-dir", "out"], ["demo", "--tokens", "64", "--heads", "64", "--kv-heads", "1", "--ranks", "1", "--head-dim", "8"],
                 ["demo", "--tokens", "64", "--ranks", "32"], ["nki", "--simulate", "--tokens-per-rank", "16", "--head-dim", "16", "--ranks", "16", "--out-dir", "out"]):
        done = limited(*call, AS=2048 * MIB, STACK=256 * MIB)
        one_line(done)
        assert "thread" in done.stderr, (call, done.stderr)
        assert not os.path.exists("out"), os.listdir("out")

    # Memory limits from one at which the program cannot start to one at which the call succeeds.
    files = save_operands(*(random.standard_normal((1, 1500, 4, 32)).astype("f4") for _ in range(4)))
    seen = set()
    for megabytes in range(4, 244, 4):
        done = limited("attend", *files, "--out-dir", "out", "--ranks", "2", "--window", "40,0", "--trace", "trace.json", AS=megabytes * MIB)
        if done.returncode == 127 or "error while loading shared libraries" in done.stderr or done.stderr.startswith("Fatal") or (done.returncode < 0 and not seen):
            continue  # the program itself does not start
        assert done.returncode in (0, 1), (megabytes, done)
        if done.returncode == 1:
            one_line(done)
            assert not os.path.exists("out") and not os.path.exists("trace.json"), megabytes
        else:
            assert done.stderr == "", done
            for name in os.listdir("out"):
                os.remove(os.path.join("out", name))
            os.rmdir("out")
            os.remove("trace.json")
        seen.add(done.returncode)
    assert seen == {0, 1}, seen

print("ok")
