"""Runs the annulus command, whose path is the script's argument."""

import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "support"))
import cases  # noqa: E402  (found through the line above)
from cases import environment, listing, main, note  # noqa: E402, F401
from cases import run as run_program  # noqa: E402

(ANNULUS,) = map(os.path.abspath, cases.arguments())


class Case(cases.Case):
    program = ANNULUS


def run(*arguments, launcher=(), **how):
    # Each job has a folder of its own: jobs of Open MPI that begin at the same time may fail to make the same one.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        how = {"env": {**os.environ, "TMPDIR": folder}, **how} if launcher else how
        return run_program(*launcher, ANNULUS, *arguments, **how)


def quiet(done):
    """True if a call of annulus nki succeeded and said nothing on stderr but the warning about unusual rings."""
    return done.returncode == 0 and done.stderr.count("\n") == done.stderr.startswith("annulus: warning: 1 ring of ")
