"""All ranks of a job must have the same command line: a difference is refused on all ranks before a file is touched.

That every option is compared: ../command_unit/option_values_test.cpp. Launches without MPI: attend_refusals.py.
"""

import numpy as np

from support.arrays import load, save_operands
from support.command import main, run
from support.mpi import MpiCase, launcher, lines_of_annulus, needs_mpi, run_each

OPERANDS = np.random.default_rng(11).standard_normal((3, 1, 6, 2, 8))
SPELLINGS = ["--scale 100000 --window 3,-1 --causal", "--causal --window=3,-1 --scale 1e5 --axes bshd",
             "--window 03,-1 --causal --scale 100000.0 --threads 0 --softcap 0.0 --timeout 6e2"]


@needs_mpi
class CommandLines(MpiCase):
    def setUp(self):
        super().setUp()
        self.inputs = ["attend", *save_operands(*OPERANDS)]
        self.alone = [*self.inputs, "--out-dir", "new"]
        self.mpi = [*self.alone, "--comm", "mpi"]

    def test_bad_option_of_the_first_rank(self):
        self.refuses_job([[*self.mpi, "--threads", "none"], self.mpi, self.mpi], "rank 0", "--threads", "'none'")

    def test_bad_subcommand_of_the_last_rank(self):
        self.refuses_job([self.mpi, self.mpi, ["attack", "--comm", "mpi"]], "rank 2", "'attack'")

    def test_help_on_one_rank(self):
        self.refuses_job([self.mpi, ["attend", "--comm=mpi", "--help"]], "--help", "rank 0", "rank 1")

    def test_another_subcommand(self):
        self.refuses_job([self.mpi, ["demo"]], "subcommand", "'attend' on rank 0", "'demo' on rank 1")

    def test_ranks_without_comm_mpi(self):
        self.refuses_job([self.alone, self.mpi, self.alone], "--comm", "'sim' on rank 0", "'mpi' on rank 1")

    def test_differences_of_the_last_rank(self):
        other = [*self.inputs, "--comm", "mpi", "--out-dir", "other", "--trace", "trace.json"]
        self.refuses_job([self.mpi, self.mpi, other], "--out-dir is 'new' on rank 0 and 'other' on rank 2")

    def test_notation_order_and_defaults_make_no_difference(self):
        done = run_each(*([*self.mpi, *spelling.split()] for spelling in SPELLINGS))
        self.assertEqual((done.returncode, lines_of_annulus(done.stderr)), (0, []))
        self.assertEqual(set(load("new")), {"out", "lse"})

    def test_processes_that_would_each_compute_all_results(self):
        self.refuses_job([self.alone] * 2, "2 processes were started", "--comm sim",
                         "accepted: --comm mpi, or one process")

    def test_a_subcommand_without_mpi(self):
        self.refuses_job([["demo"]] * 2, "2 processes", "'demo'", "one process")
        done = run("plan", "--help", launcher=launcher(2))
        self.assertEqual((done.returncode, done.stdout.count("Usage")), (0, 1))
        done = run("plan", "--tokens", "4", launcher=launcher(1))
        self.assertEqual(done.returncode, 0)
        self.contains(done.stdout, "forward")


main()
