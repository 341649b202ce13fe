"""Every call in printed kernels is one that the NKI version and the chip have: golden files, and a sweep of kernels."""

import itertools
import pathlib

from support.command import Case, main, run
from support.nki_tests import GOLDEN, signatures

# A call, what is wrong with it in NKI 0.3 on trn2.
WRONG = {
    "nisa.nc_matmul(dst=a, stationary=b)": "nisa.nc_matmul lacks moving",
    "nisa.nc_matmul(dst=a[0:128, 0:513], stationary=b, moving=c)": "nisa.nc_matmul has 513 elements in dst",
    "nisa.tensor_copy(dst=a[0:129, 0:1], src=b)": "nisa.tensor_copy has 129 partitions in dst",
    "nisa.tensor_copy(dst=a, src=b, speed=1)": "nisa.tensor_copy has no speed",
    "nisa.tensor_copy(a, src=b, dst=c)": "nisa.tensor_copy has 1 positional arguments",
    "nisa.tensor_scalar(dst=a, data=b, op0=nl.add, operand0=1.0, engine=(nisa.engine.vector, nisa.engine.gpsimd)[i])":
        "nisa.tensor_scalar on gpsimd",
    "nisa.tensor_scalar_reduce(dst=a, data=b, op0=nl.add, operand0=1.0, reduce_op=nl.add, reduce_cmd=c)":
        "nisa.tensor_scalar_reduce has no reduce_cmd in 0.3",
    "nisa.exponential(dst=a, src=b)": "nisa.exponential is not on trn2",
    "nisa.fill(dst=a)": "nisa.fill is unknown",
    "nisa.reciprocal(dst=a, data=nl.one)": "nl.one is unknown",
}
CASES = [
    "--ranks 4 --tokens-per-rank 512 --query-heads 2 --causal --sharding striped",
    "--ranks 2 --tokens-per-rank 512 --causal --sharding zigzag --head-dim 256 --dtype f32",
    # Stages whose instructions run on engines that the schedule chooses.
    "--ranks 4 --tokens-per-rank 4096 --query-heads 2 --causal --sharding zigzag",
    "--ranks 2 --tokens-per-rank 512 --window 100,0 --softcap 20 --sinks 2 --tp-q --tp-k",
    "--ranks 1 --tokens-per-rank 320 --documents 0,100,200 --lnc 1 --query-heads 4 --kv-heads 2",
    "--ranks 2 --tokens-per-rank 512 --backward keys --chunk 128",
    "--ranks 2 --tokens-per-rank 512 --bias heads,queries,keys --bias-gradient --bias-dtype bf16 --softcap 20",
]


class Signatures(Case):
    def check(self, path, version, target):
        """Returns the number of calls in a kernel's text."""
        found, calls = signatures.problems(path.read_text(), version, target)
        self.assertEqual(found[:5], [], path.name)
        return calls

    def test_each_kind_of_problem_is_found(self):
        for text, wanted in WRONG.items():
            with self.subTest(text):
                self.assertEqual(signatures.problems(text, "0.3", "trn2")[0], [wanted])
        self.assertEqual(signatures.problems("nisa.exponential(dst=a, src=b)", "0.3", "trn3"), ([], 1))

    def test_golden_files(self):
        for path in GOLDEN.glob("*.py"):
            with self.subTest(path.name):
                self.check(path, "0.3", "trn2")

    def test_kernels(self):
        calls = 0
        for number, arguments in enumerate(CASES):
            versions = signatures.VERSIONS if number == 0 else signatures.VERSIONS[::len(signatures.VERSIONS) - 1]
            for target, version in itertools.product(("trn2", "trn3"), versions):
                with self.subTest(arguments, target=target, version=version):
                    folder = f"{number}-{target}-{version}"
                    done = run("nki", "--emit", folder, "--target", target, "--nki-version", version,
                               *arguments.split())
                    self.assertEqual(done.returncode, 0)
                    calls += sum(self.check(path, version, target)
                                 for path in pathlib.Path(folder).glob("ring_attention_*.py"))
        self.assertGreater(calls, 5000)


main()
