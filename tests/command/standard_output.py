"""Lost standard output is a failure: status 1 and one line on stderr, whatever the output."""

import os
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import ANNULUS, Folder, load, save_operands  # noqa: E402

random = np.random.default_rng(21)


def lost(*arguments, reason, **streams):
    done = subprocess.run([ANNULUS, *arguments], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=300, **streams)
    assert done.returncode == 1, (arguments, reason, done)
    assert done.stderr.startswith("annulus: ") and done.stderr.count("\n") == 1 and done.stderr.endswith("\n"), (arguments, done.stderr)
    assert "standard output cannot be written (" in done.stderr and reason in done.stderr, (arguments, done.stderr)


def full_device(*arguments):
    with open("/dev/full", "w") as full:
        lost(*arguments, reason="No space left on device", stdout=full)


def closed(*arguments):
    lost(*arguments, reason="Bad file descriptor", preexec_fn=lambda: os.close(1))


def closed_pipe(*arguments):
    reader, writer = os.pipe()
    os.close(reader)
    try:
        # Python ignores SIGPIPE, and the child would inherit that.
        lost(*arguments, reason="Broken pipe", stdout=writer, restore_signals=True)
    finally:
        os.close(writer)


with Folder():
    files = save_operands(*(random.standard_normal((1, 12, 2, 4)).astype("f4") for _ in range(4)))
    calls = [["plan", "--tokens", "64"], ["plan", "--tokens", "64", "--json"],
             ["plan", "--tokens", "4096", "--ranks", "32", "--json"],  # larger than the buffers
             ["--help"], ["attend", "--help"], ["demo", "--tokens", "40", "--head-dim", "8", "--ranks", "2"],
             ["attend", *files, "--out-dir", "out"], ["attend", *files, "--out-dir", "out", "--verify"],
             ["nki", "--simulate", "--tokens-per-rank", "16", "--head-dim", "16", "--ranks", "2"],
             ["nki", "--cost-only", "--tokens-per-rank", "128", "--head-dim", "16", "--ranks", "2"],
             ["nki", "--emit", "kernels", "--tokens-per-rank", "128", "--head-dim", "16", "--ranks", "2"]]
    for call in calls:
        full_device(*call)
        closed(*call)
        closed_pipe(*call)
    assert set(load("out")) == {"out", "lse", "dq", "dk", "dv"}

    # Output files do not get the descriptors of closed standard streams.
    done = subprocess.run([ANNULUS, "attend", *files, "--out-dir", "alone", "--trace", "trace.json"], timeout=300,
                          preexec_fn=lambda: os.closerange(0, 3))
    assert done.returncode == 1, done
    expected = load("out")
    for name, array in load("alone").items():
        assert np.array_equal(array, expected[name]), name
    with open("trace.json") as file:
        assert "annulus:" not in file.read()

    # A bad call has status 2 even if standard output is lost.
    with open("/dev/full", "w") as full:
        done = subprocess.run([ANNULUS, "plan"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "--tokens" in done.stderr and done.stderr.count("\n") == 1, done

print("ok")
