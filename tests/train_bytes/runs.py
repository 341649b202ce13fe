"""Runs of train_bytes: the same curve on every ring, and over MPI the same bits; results that are printed and written.

Arguments: the program, then the launcher of MPI up to the number of ranks, if the program has MPI.
"""

import csv
import os
import re
import subprocess
import sys
import tempfile

PROGRAM = os.path.abspath(sys.argv[1])
LAUNCHER = sys.argv[2:]
MODEL = ["--layers", "2", "--width", "32", "--context", "64", "--batch", "2", "--learning-rate", "0.01", "--warm-up", "2"]
TEXT = ["--text", "text.txt"]


def run(*arguments, launcher=(), status=0):
    done = subprocess.run([*launcher, PROGRAM, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, (arguments, done)
    return done


def train(*arguments, launcher=()):
    """The text of the CSV file of a run."""
    run(*MODEL, *TEXT, "--steps", "12", "--csv", "curve.csv", *arguments, launcher=launcher)
    with open("curve.csv") as file:
        return file.read()


def losses(text):
    return [float(row["bits_per_byte"]) for row in csv.DictReader(text.splitlines())]


def mpi(ranks):
    return [*LAUNCHER, str(ranks)]


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    with open("text.txt", "w") as file:
        for i in range(2000):
            file.write(f"The square of {i} is {i * i}.\n")

    alone = train("--ranks", "1")
    expected = losses(alone)
    assert len(expected) == 12 and expected[-1] < expected[0] - 1, expected
    assert train("--ranks", "1") == alone
    assert losses(train("--ranks", "1", "--seed", "2")) != expected
    # A loss of up to 8 is off by up to 16 roundings, the square root of the 256 terms of the longest sum, in each of 12
    # steps.
    for dtype, rounding in (("f32", 2**-24), ("f64", 2**-53)):
        bound = 8 * 16 * 12 * rounding
        reference = losses(train("--ranks", "1", "--dtype", dtype))
        for ranks in (2, 4):
            for sharding in ("contiguous", "zigzag"):
                found = losses(train("--ranks", str(ranks), "--sharding", sharding, "--dtype", dtype))
                difference = max(abs(a - b) for a, b in zip(found, reference, strict=True))
                assert difference <= bound, (dtype, ranks, sharding, difference)
    assert reference != expected and max(abs(a - b) for a, b in zip(reference, expected)) < 1e-3

    # With leaves the curves are equal, not close.
    alone = train("--ranks", "1", "--reproducible", "4")
    assert losses(alone) != expected
    for ranks in (2, 4, 8):
        for sharding in ("contiguous", "zigzag"):
            assert train("--ranks", str(ranks), "--sharding", sharding, "--reproducible", "4") == alone, (ranks, sharding)
    done = run(*MODEL, *TEXT, "--steps", "1", "--ranks", "3", "--reproducible", "4", status=2)
    assert "whole leaves of reproducible_leaf = 4" in done.stderr, done.stderr

    # A time instead of a number of steps; text; and a picture.
    done = run(*MODEL, *TEXT, "--minutes", "0.01", "--generate", "20", "--prompt", "The square", "--svg", "one.svg", "--csv", "one.csv")
    steps = int(re.search(r"training +(\d+) steps", done.stdout).group(1))
    with open("one.csv") as file:
        assert len(losses(file.read())) == steps >= 1
    assert re.search(r"validation +\d\.\d+ bits per byte", done.stdout), done.stdout
    assert "generated   at temperature 0.7:\nThe square" in done.stdout, done.stdout
    with open("one.svg") as file:
        assert file.read().startswith("<svg ")

    # Text is the same on every ring at temperature 0, and any curves are drawn together.
    texts = [run(*MODEL, *TEXT, "--steps", "40", "--ranks", ranks, "--generate", "30", "--temperature", "0").stdout.split("generated")[1] for ranks in "13"]
    assert texts[0] == texts[1], texts
    done = run("--plot", "one.csv", "curve.csv", "--svg", "both.svg")
    assert "one and curve differ by at most" in done.stdout, done.stdout

    if LAUNCHER:
        for sharding in ("contiguous", "zigzag"):
            simulated = train("--ranks", "2", "--sharding", sharding)
            assert train("--comm", "mpi", "--sharding", sharding, launcher=mpi(2)) == simulated, sharding
        assert train("--comm", "mpi", "--reproducible", "4", launcher=mpi(2)) == alone

        def refused(*arguments, says):
            lines = run(*MODEL, *arguments, launcher=mpi(2), status=2).stderr.splitlines()
            lines = [line for line in lines if line.startswith("train_bytes: ")]
            assert len(lines) == 1 and says in lines[0], (arguments, lines)

        refused(*TEXT, says="without --comm mpi")
        refused(*TEXT, "--comm", "mpi", "--ranks", "3", says="MPI connects 2")
        refused(*TEXT, "--comm", "mpi", "--batch", "0", says="--batch")
        refused("--comm", "mpi", "--text", "absent.txt", says="absent.txt: cannot be read")
    else:
        assert "this build has no MPI" in run(*MODEL, *TEXT, "--comm", "mpi", status=2).stderr

print("ok")
