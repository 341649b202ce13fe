"""Runs the annulus command, whose path is the script's only argument."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np

ANNULUS = os.path.abspath(sys.argv[1])
AXES = {"bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3), "bhds": (0, 2, 3, 1)}


class Folder:
    """A temporary folder that is the working directory, removed at the end."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="annulus-test-")
        self.before = os.getcwd()
        os.chdir(self.path)
        return self.path

    def __exit__(self, *exception):
        os.chdir(self.before)
        shutil.rmtree(self.path, ignore_errors=True)


@contextlib.contextmanager
def environment(variables):
    """Sets these environment variables within the context."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def run(*arguments, launcher=()):
    # Each job has a folder of its own: jobs of Open MPI that begin at the same time may fail to make the same one.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return subprocess.run([*launcher, ANNULUS, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=300, env={**os.environ, "TMPDIR": folder} if launcher else None)


def quiet(done):
    """True if a call of annulus nki succeeded and said nothing on stderr but the warning about unusual rings."""
    return done.returncode == 0 and done.stderr.count("\n") == done.stderr.startswith("annulus: warning: 1 ring of ")


def load(folder):
    """The results in a folder by name; the folder holds nothing else."""
    return {name[:-4]: np.load(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}


def aligned(arguments):
    """The arguments of a call whose queries and keys are aligned at the start, unless they say otherwise."""
    decides = {"--causal", "--window", "--chunk"} & set(arguments) and "--query-offset" not in arguments
    return [*arguments, *(["--query-offset", "0"] if decides else [])]


def attend(*arguments, out="out", launcher=()):
    """A call that must succeed; returns its results."""
    done = run("attend", *aligned(arguments), "--out-dir", out, launcher=launcher)
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    assert launcher or done.stderr == "", done.stderr
    results = load(out)
    shutil.rmtree(out)
    return results


def save_operands(q, k, v, dout=None, axes="bshd", order="C"):
    """Writes q.npy, k.npy, ...; returns the arguments that name them."""
    arguments = ["--axes", axes] if axes != "bshd" else []
    for name, array in (("q", q), ("k", k), ("v", v), ("dout", dout)):
        if array is not None:
            np.save(name + ".npy", np.asarray(array.transpose(AXES[axes]), order=order))
            arguments += ["--" + name, name + ".npy"]
    return arguments
