"""attend over MPI: the bits of simulated ranks; and all processes end, with one line, if a call is bad."""

import os

import numpy as np

from support.arrays import same, save_all, save_operands
from support.command import main, run
from support.mpi import MpiCase, launcher, needs_mpi

random = np.random.default_rng(10)
OPERANDS = [random.standard_normal(s) for s in ((1, 23, 4, 8), (1, 29, 2, 8), (1, 29, 2, 5), (1, 23, 4, 5))]
SQUARE = [random.standard_normal(s) for s in ((1, 40, 4, 8), (1, 40, 2, 8), (1, 40, 2, 8), (1, 40, 4, 8))]
OPTIONAL = {
    "bias": random.standard_normal((1, 4, 23, 29)), "mask": random.random((1, 1, 23, 29)) < 0.7,
    "sinks": random.standard_normal(4),
    "q_ids": random.integers(1, 3, (1, 23)), "k_ids": random.integers(1, 3, (1, 29)),
    "joint_k": random.standard_normal((1, 2, 6, 8)), "joint_v": random.standard_normal((1, 2, 6, 5)),
    "ids": np.repeat([[1, 2, 0, 2]], 10, axis=1),
}
# ranks, options of both calls, options of the simulated ranks alone
SAME_BITS = [
    (1, "--causal", ""),
    (3, "--causal --sharding zigzag --dtype bf16", ""),
    (3, "--bias bias.npy --bias-gradient --mask mask.npy --sinks sinks.npy --q-segments q_ids.npy "
        "--kv-segments k_ids.npy --dropout 0.2 --seed 5", ""),
    (3, "--window 3,0 --rotation queries", ""),
    (2, "--sharding striped --dtype f32 --verify", ""),
    (3, "--joint-k joint_k.npy --joint-v joint_v.npy --causal --query-offset 0", ""),
    # A double ring without a group takes the ranks of a node, here all.
    (3, "--schedule double-ring", "--schedule-group 3"),
]
# ranks, options, words of the message
REFUSED = [
    (3, "--out-dir new --bias missing.npy", "missing.npy: does not exist"),
    (3, "--out-dir new --ranks 2", "--ranks 2: mpirun started 3"),
    (2, "--out-dir new --dropout 2", "dropout"),
    (2, "--out-dir new --ranks none", "--ranks"),
]


@needs_mpi
class OverMpi(MpiCase):
    def setUp(self):
        super().setUp()
        self.files = save_operands(*OPERANDS, axes="bhsd", order="F")
        save_all(**OPTIONAL)

    def same_bits(self, ranks, arguments, simulated_only=()):
        over_mpi = self.attend(*arguments, "--comm", "mpi", launcher=launcher(ranks))
        simulated = self.attend(*arguments, "--ranks", str(ranks), *simulated_only)
        self.assertGreaterEqual(len(simulated), 5)
        self.assertEqual(set(over_mpi), set(simulated))
        self.assertTrue(same(over_mpi, simulated))

    def test_same_bits_as_simulated_ranks(self):
        for ranks, options, simulated_only in SAME_BITS:
            with self.subTest(options, ranks=ranks):
                self.same_bits(ranks, [*self.files, *options.split()], simulated_only.split())

    def test_balanced_sharding_of_documents_that_rank_0_alone_reads(self):
        files = save_operands(*SQUARE)
        self.same_bits(3, [*files, *"--causal --sharding balanced --q-segments ids.npy --kv-segments ids.npy".split()])

    def test_refused(self):
        for ranks, options, words in REFUSED:
            with self.subTest(options, ranks=ranks):
                self.refuses_job([["attend", "--comm", "mpi", *self.files, *options.split()]] * ranks, words)

    def test_help_is_printed_once(self):
        done = run("attend", "--comm", "mpi", "--help", launcher=launcher(2))
        self.assertEqual((done.returncode, done.stdout.count("--out-dir")), (0, 1))


class WithoutMpi(MpiCase):
    def test_mpi_is_refused_in_a_build_without_it(self):
        arguments = ["attend", *save_operands(*OPERANDS), "--comm", "mpi", "--out-dir", "out"]
        if "ANNULUS_MPIEXEC" in os.environ or run(*arguments).returncode == 0:
            self.skipTest("the command has MPI")
        self.refuses(arguments, "no MPI; accepted: sim")


main()
