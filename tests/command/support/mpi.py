"""Calls of the annulus command on the processes of mpirun."""

import os
import shlex
import sys

from command import ANNULUS, run
from refusals import listing

SKIPPED = 77


def mpiexec():
    return shlex.split(os.environ["ANNULUS_MPIEXEC"])


def require_mpi():
    """Skips the script if ANNULUS_MPIEXEC is not set."""
    if "ANNULUS_MPIEXEC" not in os.environ:
        print("the command was built without MPI")
        sys.exit(SKIPPED)


def launcher(ranks):
    return [*mpiexec(), str(ranks)]


def lines_of_annulus(output):
    """The lines of the command, without those that mpirun adds if a program fails."""
    return [line for line in output.splitlines() if "annulus:" in line]


def require_refused(done, before, says, what):
    """Status 2, one line with all of the words, and the same files as before."""
    assert done.returncode == 2, (what, done)
    lines = lines_of_annulus(done.stderr + done.stdout)
    assert len(lines) == 1, (what, lines)
    for word in [says] if isinstance(says, str) else says:
        assert word in lines[0], (what, word, lines)
    assert listing() == before, what


def refused(ranks, *arguments, says):
    """Checks that `annulus attend --comm mpi` with these arguments is refused on this number of ranks."""
    before = listing()
    done = run("attend", "--comm", "mpi", *arguments, launcher=launcher(ranks))
    require_refused(done, before, says, arguments)


def run_each(*commands):
    """Runs one job with a process for each list of arguments."""
    launch = mpiexec()
    words = [*launch[:-1]]
    for rank, arguments in enumerate(commands[:-1]):
        words += [*([":"] if rank else []), launch[-1], "1", ANNULUS, *arguments]
    return run(*commands[-1], launcher=[*words, *([":"] if len(commands) > 1 else []), launch[-1], "1"])


def refused_each(*commands, says):
    """As refused, with arguments for each process; they begin with the subcommand."""
    before = listing()
    require_refused(run_each(*commands), before, says, commands)
