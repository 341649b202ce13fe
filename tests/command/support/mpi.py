"""Calls of the annulus command on the processes of mpirun."""

import os
import shlex
import unittest

from support.arrays import ArrayCase
from support.command import ANNULUS, listing, run

needs_mpi = unittest.skipUnless("ANNULUS_MPIEXEC" in os.environ,
                                "the command was built without MPI, or ANNULUS_MPIEXEC is not set")


def mpiexec():
    return shlex.split(os.environ["ANNULUS_MPIEXEC"])


def launcher(ranks):
    return [*mpiexec(), str(ranks)]


def lines_of_annulus(output):
    """The lines of the command, without those that mpirun adds if a program fails."""
    return [line for line in output.splitlines() if "annulus:" in line]


def run_each(*commands):
    """Runs one job with a process for each list of arguments, which begins with the subcommand."""
    *launch, count = mpiexec()
    words = []
    for arguments in commands[:-1]:
        words += [count, "1", ANNULUS, *arguments, ":"]
    return run(*commands[-1], launcher=[*launch, *words, count, "1"])


class MpiCase(ArrayCase):
    def refuses_job(self, commands, *words):
        """As refuses, with a process for each command; all of them together print the one line."""
        before = listing()
        done = run_each(*commands)
        lines = lines_of_annulus(done.stderr + done.stdout)
        self.assertEqual((done.returncode, len(lines)), (2, 1))
        self.contains(lines[0], *words)
        self.assertEqual(listing(), before)
