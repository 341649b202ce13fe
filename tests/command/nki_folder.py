"""The launchers and the check of annulus nki --emit, on the numpy model of NKI behind the frameworks' interfaces."""

import contextlib
import io
import os
import pathlib
import re
import shutil

import numpy as np

from support.command import environment, main
from support.launchers import (ALL, FolderCase, cores, edit, inside, run_experimental_jax, run_jax, run_native,
                               run_torch, simulate)
from support.nki_tests import frameworks, nki_model

STRIPED = "--ranks 4 --tokens-per-rank 40 --query-heads 2 --kv-heads 1 --head-dim 16 --causal --sharding striped"
GROUPS = ("--ranks 2 --groups 2 --tokens-per-rank 32 --head-dim 8 --window 9,4 --softcap 3 --lnc 1 --dtype f32 "
          "--nki-version 0.7 --sink-tokens 2")
BIAS = STRIPED + " --batch 2 --bias heads,queries,keys --bias-dtype bf16 --bias-gradient"
QUERY_BIAS = ("--ranks 2 --groups 2 --tokens-per-rank 32 --head-dim 8 --dtype f32 --bias queries,heads --bias-gradient "
              "--documents 0,40")
# Launchers, ranks of all rings, ring order, options. The launchers hand all tensors of any problem over alike.
CASES = [
    ((run_torch, run_native, run_jax), 4, [2, 0, 3, 1], STRIPED),
    ((run_torch, run_experimental_jax), 4, None, GROUPS),
    ((run_native, run_jax), 4, [1, 0, 3, 2], BIAS),
    ((run_torch,), 2, None, "--ranks 2 --tokens-per-rank 64 --head-dim 16 --value-dim 8 --causal --documents 0,30,96 "
                            "--sharding zigzag --tp-q --lse-dtype bf16 --dtype f16"),
    ((run_native,), 2, None,
     "--ranks 2 --tokens-per-rank 32 --head-dim 8 --causal --query-offset -7 --dtype f32 --sinks 0"),
    ((run_jax,), 2, None,
     "--ranks 2 --tokens-per-rank 32 --head-dim 8 --chunk 20 --scale -0.3 --sinks 2 --dtype f32 --batch 2"),
    ((run_torch,), 2, None, "--ranks 2 --tokens-per-rank 32 --head-dim 8 --query-heads 2 --dtype f32 --softcap 3 "
                            "--sharding zigzag --bias keys --bias-gradient --backward keys"),
    ((run_jax,), 4, None, QUERY_BIAS),
    ((run_torch,), 2, None,
     "--ranks 2 --tokens-per-rank 130 --query-heads 3 --kv-heads 3 --head-dim 24 --value-dim 8 --causal "
     "--backward keys --tp-q --tp-k --dtype f32"),
    ((run_native,), 3, [1, 0, 2], "--ranks 3 --tokens-per-rank 20 --batch 2 --query-heads 2 --kv-heads 1 --head-dim 8 "
                                  "--sharding zigzag --lnc 1 --window 9,4 --softcap 3 --dtype f32"),
]
# Correct results are accepted: with a rounded output, which delta takes; where all terms cancel; with large logits; of
# few rows; with a bias that TensorE adds.
CORRECT = [
    "--ranks 2 --tokens-per-rank 256 --query-heads 2 --head-dim 64 --causal --dtype f32 --output-dtype bf16",
    "--ranks 2 --tokens-per-rank 32 --head-dim 16 --window 0,0 --dtype f32",
    "--ranks 2 --tokens-per-rank 64 --head-dim 512 --dtype f16 --scale 10 --causal",
    "--ranks 2 --tokens-per-rank 64 --head-dim 512 --dtype f32 --scale 40",
    "--ranks 2 --tokens-per-rank 2 --head-dim 64 --causal",
    "--ranks 1 --tokens-per-rank 3 --head-dim 320 --dtype f16",
    "--ranks 2 --tokens-per-rank 128 --query-heads 2 --head-dim 40 --causal "
    "--bias heads,queries,keys --bias-dtype bf16",
]
KEYS_STATIONARY = "--tokens-per-rank 130 --query-heads 2 --head-dim 16 --causal --keys-stationary"
SMALL = "--ranks 2 --tokens-per-rank 64 --head-dim 8 --dtype f32 --causal"


def cores_of(options):
    return cores(1 if "--lnc 1" in options else 2)


def beyond_range(folder, ranks):
    """True if a rank of the last launch reported a row that needs the kernel with a running maximum."""
    return any(np.load(os.path.join(folder, "results", f"beyond_range.rank{rank}.npy")).any() for rank in range(ranks))


def tables(folder):
    return {path.name for path in pathlib.Path(folder).glob("*.npy")}


class Launchers(FolderCase):
    def test_each_accepts_the_results_of_the_kernels(self):
        for number, (launchers, ranks, order, options) in enumerate(CASES):
            with self.subTest(options), cores_of(options):
                folder = f"kernels{number}"
                self.emit(folder, options)
                results = ALL + ["dbias"] * ("--bias-gradient" in options)
                outcomes = []
                for launcher in launchers:
                    shutil.rmtree(os.path.join(folder, "results"), ignore_errors=True)
                    outcomes.append(self.errors(launcher(folder, ranks, order), results=results, ranks=ranks,
                                                exact="--dtype f32" in options))
                self.assertEqual(outcomes, outcomes[:1] * len(launchers))

    def test_correct_results_of_hard_problems_are_accepted(self):
        for number, options in enumerate(CORRECT):
            with self.subTest(options):
                self.emit(f"correct{number}", options)
                self.errors(run_torch(f"correct{number}", int(options.split()[1])))

    def test_one_kernel_alone(self):
        """The backward kernel then reads output and lse of the reference."""
        for only, results in (("fwd", ALL[:2]), ("bwd", ALL[2:])):
            with self.subTest(only):
                self.emit(only, f"--ranks 2 --tokens-per-rank 32 --head-dim 8 --dtype f32 --causal --only {only}")
                self.errors(run_torch(only, 2), results=results, exact=True)

    def test_wrong_numbers_of_processes_devices_and_cores_are_refused(self):
        """Before anything runs."""
        self.emit("striped", STRIPED)
        frameworks.install_torch(False)
        with inside("striped", "run_torch") as launcher:
            self.ends_with(lambda: frameworks.World(3).run(launcher.main), "3 processes", "--nproc_per_node 4")
        frameworks.install_jax(3)
        with inside("striped", "run_jax") as launcher:
            self.ends_with(launcher.main, "3 devices", "4")
        with cores(1):
            self.ends_with(lambda: run_torch("striped", 4), "NEURON_LOGICAL_NC_CONFIG=1", "2")

    def test_importing_the_check_sets_the_number_of_cores(self):
        """Before a launcher opens a device."""
        self.emit("groups", GROUPS)
        with environment(NEURON_LOGICAL_NC_CONFIG=None), inside("groups", "check"):
            self.assertEqual(os.environ["NEURON_LOGICAL_NC_CONFIG"], "1")

    def test_the_simulator_takes_one_rank(self):
        """A folder for more prints the command that makes such a folder."""
        self.emit("striped", STRIPED)
        frameworks.install_simulator()
        with inside("striped", "simulate") as launcher:
            self.ends_with(launcher.main, "--ranks 1 --tokens-per-rank 40", "--emit one_rank")
            told = launcher.problem.COMMAND_OF_ONE_RANK.split()
        self.emit("one_rank", " ".join(told[2:]).replace("--emit one_rank", ""))
        self.errors(simulate("one_rank"))

    def test_the_simulator_on_both_numbers_of_cores(self):
        """In the call of the kernel and, from NKI 0.7 on, in the environment."""
        for version in ("0.6", "0.7"):
            for count in (1, 2):
                with self.subTest(version, cores=count), cores(count):
                    name = f"one_{version[2:]}_{count}"
                    self.emit(name, "--ranks 1 --tokens-per-rank 100 --head-dim 64 --causal --dtype f32 "
                                    f"--lnc {count} --nki-version {version}")
                    self.errors(simulate(name), exact=True)


class TwoForwardKernels(FolderCase):
    """The one with a running maximum runs only if a rank reports a row that needs it."""

    def test_on_rings(self):
        for folder, options in (("narrow", "--documents 0,70,200 --softcap 5"), ("wide", "--scale 6")):
            with self.subTest(folder):
                self.emit(folder, f"--ranks 2 {KEYS_STATIONARY} {options}")
                self.errors(run_torch(folder, 2), ranks=2)
                self.errors(run_jax(folder, 2, [1, 0]), ranks=2)
                self.assertEqual(beyond_range(folder, 2), folder == "wide")
                os.remove(os.path.join(folder, "ring_attention_fwd.py"))
                for launcher in (run_torch, run_jax):
                    if folder == "narrow":
                        self.errors(launcher(folder, 2), ranks=2)
                    else:
                        with self.assertRaises(ModuleNotFoundError) as raised:
                            launcher(folder, 2)
                        self.assertEqual(raised.exception.name, "ring_attention_fwd")

    def test_in_the_simulator(self):
        for folder, options in (("narrow", ""), ("wide", "--scale 6")):
            with self.subTest(folder):
                self.emit(folder, f"--ranks 1 {KEYS_STATIONARY} {options} --only fwd")
                if folder == "narrow":
                    os.remove(os.path.join(folder, "ring_attention_fwd.py"))
                self.errors(simulate(folder), results=ALL[:2])
                self.assertEqual(beyond_range(folder, 1), folder == "wide")


class Check(FolderCase):
    def wrong_results(self, folder, result, change_all):
        """Lines with TOO LARGE, as (result, rank), after each change of a file of results."""
        with inside(folder, "check") as check, contextlib.redirect_stdout(io.StringIO()) as told:
            self.assertTrue(check.check())
            path = os.path.join(folder, "results", result + ".npy")
            values = np.load(path)
            for changed in change_all(values, check):
                np.save(path, changed)
                self.assertFalse(check.check())
        return [line.split()[:2] for line in told.getvalue().splitlines() if "TOO LARGE" in line]

    def test_wrong_results_are_found(self):
        self.emit("striped", STRIPED)
        self.errors(run_torch("striped", 4, [2, 0, 3, 1]))

        def changes(values, check):
            self.assertEqual(check.error_of("dk", np.full(2, np.nan), np.zeros(2), np.ones(2))[0], np.inf)
            return values + 0.02 * np.abs(values).max(), 1.01 * values, values * np.nan

        self.assertEqual(self.wrong_results("striped", "dk.rank2", changes), [["dk", "2"]] * 3)

    def test_the_gradient_of_a_bias_is_checked_on_its_own(self):
        """Its values, and zeros for the ranks of other rings; and a launcher sees a kernel that ignores its bias."""
        self.emit("biased", QUERY_BIAS)
        self.errors(run_torch("biased", 4), results=ALL + ["dbias"])

        def changes(values, check):
            ranks = check.problem.RANKS
            first_is_zero = (values[:ranks] == 0).all()
            self.assertNotEqual(first_is_zero, (values[ranks:] == 0).all())
            other = values.copy()
            other[0 if first_is_zero else ranks] = 1e-30
            return 1.001 * values, other

        self.assertEqual(self.wrong_results("biased", "dbias.rank3", changes), [["dbias", "3"]] * 2)
        edit("biased/check.py", re.escape("values = pair_table(ring.bias, "), "values = 0 * pair_table(ring.bias, ")
        text, status = run_torch("biased", 4)
        self.assertNotEqual(status, 0)
        self.assertIn("TOO LARGE", text)

    def test_its_bfloat16_is_that_of_the_device(self):
        self.emit("any", SMALL)
        values = np.random.default_rng(1).standard_normal(1000).astype(np.float32) * 10
        with inside("any", "check") as check:
            self.assertTrue(np.array_equal(check.rounded(values, "bfloat16"), nki_model.bfloat16(values).numpy()))


class Masks(FolderCase):
    """Tables and the kernels that they belong to."""

    OTHER = "the table is of another mask than this kernel"

    def test_a_kernel_refuses_the_table_of_other_documents(self):
        self.emit("first", SMALL + " --documents 0,64")
        self.emit("second", SMALL + " --documents 0,40")
        self.assertFalse(tables("first") & tables("second"))
        for name in ("problem.py", *tables("second")):
            shutil.copy(os.path.join("second", name), "first")
        self.fails(lambda: run_torch("first", 2), self.OTHER)

    def test_the_backward_kernel_refuses_the_table_of_the_forward_kernel(self):
        """In its pass the queries rotate."""
        self.emit("passes", SMALL)
        text = pathlib.Path("passes", "problem.py").read_text()
        forward, backward = re.findall(r'"mask": "(.*)"', text)
        fingerprints = re.findall(r'"mask_fingerprint": "(\w+)"', text)
        self.assertNotEqual(forward.split(".")[2], backward.split(".")[2])
        edit("passes/problem.py", re.escape(backward), forward)
        edit("passes/problem.py", fingerprints[1], fingerprints[0])
        self.fails(lambda: run_torch("passes", 2), self.OTHER)

    def test_one_kernel_serves_documents_that_are_an_argument(self):
        """Each with its own table, which the check makes."""
        for sharding in ("contiguous", "striped", "zigzag"):
            options = f"{SMALL} --run-time-documents --sharding {sharding} --sink-tokens 3 --window 50,50 --documents"
            folder, other = "first_" + sharding, "other_" + sharding
            first, second = self.emit(folder, options + " 0,64"), self.emit(other, options + " 0,9,40,100")
            for name in ("ring_attention_fwd.py", "ring_attention_bwd.py"):
                self.assertEqual(first[name], second[name])
            with inside(other, "check") as check:
                for kernel, about in check.problem.KERNELS.items():
                    ((_, _, shape),) = (tensor for tensor in about["inputs"] if tensor[0] == "mask_ranges")
                    for rank in range(2):
                        with self.subTest(sharding, kernel=kernel, rank=rank):
                            written = np.load(os.path.join(other, about["mask"].format(rank)))
                            self.assertTrue(np.array_equal(check.mask_table(kernel, rank, shape), written))
            for starts in ("0,64", "0,9,40,100", "0"):
                with self.subTest(sharding, starts=starts):
                    path = pathlib.Path(folder, "problem.py")
                    path.write_text(re.sub(r'"documents": .*', f'"documents": ({starts},),', path.read_text()))
                    self.errors(run_native(folder, 2), exact=True)


main()
