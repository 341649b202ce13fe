"""Bad calls end with status 2 and one line on stderr that says what is wrong, and leave no files."""

import os
import pathlib
import shlex
import unittest

import numpy as np

from support.arrays import ArrayCase, save_all, save_operands
from support.command import environment, main, run

random = np.random.default_rng(9)
Q, K = random.standard_normal((2, 5, 4, 6)), random.standard_normal((2, 7, 2, 6))
V, DOUT = random.standard_normal((2, 7, 2, 3)), random.standard_normal((2, 5, 4, 3))
BIAS = random.standard_normal((1, 4, 5, 7))
HUGE = 2**62


def each(option, values, *words):
    return [(f"{option} {shlex.quote(value)}", option, *words) for value in values]


# Tables: arguments, words of the message.
COMMAND_LINES = [
    ("", "subcommand", "attend|demo|plan"),
    ("attack", "'attack'", "attend|demo|plan"),
    ("attend", "is required"),
    ("attend --q q.npy --k k.npy --out-dir new", "--v", "required"),
    ("attend --q q.npy --k k.npy --v v.npy", "--out-dir", "required"),
    ("attend --q q.npy --k k.npy --v v.npy --out-dir ''", "--out-dir"),
]
OPTIONS = [
    ("--frobnicate", "--frobnicate"),
    ("stray", "stray"),
    ("'two\nlines'", "two"),
    ("--ranks", "--ranks"),
    *each("--ranks", ("0", "-1", "2.5", "two", "", "99999999999999999999", "1025", "3x"),
          "accepted: a whole number, 1 to 1024"),
    ("--ranks 2 --ranks 3", "--ranks"),
    ("--sharding diagonal", "'diagonal'", "contiguous|striped|zigzag"),
    ("--sharding block-striped", "block-striped", "--block N"),
    ("--block 4", "--block", "block-striped"),
    ("--sharding block-striped --block 0", "--block", "accepted"),
    ("--causal=5", "causal was given a disallowed flag override"),
    ("--rotation values", "'values'", "auto|keys|queries"),
    ("--schedule tile", "'tile'", "ring|both-directions|two-levels|tiles|all-gather|auto|double-ring"),
    ("--schedule-group 2", "--schedule"),
    ("--ranks 4 --schedule tiles --schedule-group 3", "groups of 3 ranks", "accepted: [1, 2, 4]"),
    ("--ranks 2 --schedule all-gather --rotation keys", "no rows rotate; accepted: automatic rotation"),
    ("--ranks 4 --schedule double-ring --schedule-group 3", "schedule double ring with groups of 3 ranks"),
    ("--ranks 4 --schedule double-ring --schedule-group 2 --reproducible", "reproducible with schedule double ring",
     "accepted: schedule ring or both directions"),
    ("--ranks 2 --schedule double-ring", "--schedule double-ring requires", "--schedule-group N", "near each other"),
    ("--wire bf16 --dtype bf16", "wire bfloat16 for operands of 2 bytes", "accepted for 4 and 8, or as stored"),
    ("--reproducible --reproducible-leaf 2 --ranks 2", "whole leaves of 2 positions"),
    ("--reproducible --backend nki --dtype f32", "reproducible"),
    ("--reproducible-leaf 2", "--reproducible"),
    ("--comm carrier-pigeon", "sim|mpi|peer|nccl"),
    ("--comm peer", "--backend cpu with --comm peer", "accepted: --backend cuda"),
    ("--comm nccl --backend nki", "--backend nki with --comm nccl", "accepted: --backend cuda"),
    ("--comm sim --backend cuda", "--backend cuda with --comm sim", "accepted: --comm peer|nccl"),
    ("--backend cuda --threads 2", "--threads 2", "one thread per rank"),
    ("--backend cuda --dtype f32 --wire bf16", "--wire with --backend cuda", "accepted: stored"),
    ("--backend cuda --require-finite", "--require-finite with --backend cuda", "accepted: without it"),
    ("--dtype f8", "'f8'", "float64|float32|bfloat16|float16"),
    ("--axes sbhd", "bshd|bhsd|bhds"),
    ("--axes bhsd", "k.npy", "heads", "accepted"),
    ("--backend abacus", "'abacus'", "accepted: cpu|reference|nki|cuda"),
    ("--backend reference --threads 2", "--threads 2", "one thread per rank"),
    ("--threads -1", "--threads", "accepted"),
    *each("--timeout", ("0", "0.0009", "-1", "nan", "inf", "1e10", "soon", "", "1s"),
          "accepted: seconds, 0.001 to 1000000000, fractions too"),
    ("--trace ''", "--trace", "accepted"),
    *each("--window", ("3", "3,", ",3", "3,4,5", "a,b", "3;4", "1.5,2", "", "3, 4"), "L,R"),
    ("--sink-tokens 2", "--sink-tokens", "--window"),
    ("--sink-tokens -1 --window 1,1", "--sink-tokens", "accepted"),
    ("--chunk -1", "--chunk", "accepted"),
    *each("--scale", ("nan", "inf", "-inf", "1e999", "one", ""), "accepted: a finite number"),
    ("--scale 1e60 --dtype f32", "softmax scale", "accepted"),
    ("--softcap -1", "soft cap", "accepted"),
    ("--softcap nan", "--softcap", "accepted"),
    *[(f"--dropout {value}", "dropout", "0 <= probability < 1") for value in ("1", "-0.1", "1.5")],
    ("--seed 1", "--seed", "--dropout"),
    ("--dropout 0.1 --seed -1", "--seed", "accepted"),
    (f"--query-offset {HUGE}", "query offset", "accepted"),
    ("--causal", "query offset is unset", "set it to 0", "keys - queries = 2"),
    ("--query-offset 1e3", "--query-offset", "accepted"),
    # Options that need others.
    ("--bias-gradient", "--bias-gradient", "--bias"),
    ("--bias bias.npy --bias-gradient", "--bias-gradient", "--dout"),
    ("--q-segments q_ids.npy", "--kv-segments"),
    ("--kv-segments q_ids.npy", "--q-segments"),
    ("--bias bias.npy --rotation queries", "--rotation queries", "auto|keys"),
    ("--mask mask.npy --rotation queries", "--rotation queries", "auto|keys"),
    ("--joint-k k.npy", "--joint-v"),
    ("--joint-k k.npy --joint-v v.npy --dropout 0.1", "joint keys with dropout"),
    # Files that are no arrays.
    ("--bias missing.npy", "missing.npy", "does not exist"),
    ("--bias .", "folder"),
    ("--bias ''", "--bias"),
    ("--bias 'new\nline.npy'", "new\\x0aline.npy"),
    ("--bias archive.npz", "zip"),
    ("--bias pipe.npy", "not a regular file"),
    # Paths that cannot be written are refused before anything is computed.
    ("--trace q.npy", "q.npy", "is an input"),
    ("--trace missing/trace.json", "trace.json", "cannot be written"),
    ("--trace results", "results", "not a regular file"),
]
PATHS = [
    ("--out-dir plain", "plain", "not a folder"),
    ("--out-dir plain/below", "cannot be created"),
    ("--out-dir /proc/annulus", "cannot be created"),
    ("--out-dir made/" + "x" * 300, "cannot be created"),
    ("--out-dir taken", "lse.npy", "not a regular file"),
    ("--out-dir own", "out.npy", "is an input"),
    ("--out-dir results --trace results/../results/out.npy", "out.npy", "--trace"),
    ("--out-dir . --trace lse.npy", "lse.npy", "is the name of a result"),
]
# Option, array, further arguments, words of the message.
ARRAYS = [
    ("--dout", DOUT[:, :4], "", "accepted", "sequence 5"),
    ("--dout", DOUT.transpose(0, 2, 1, 3), "", "accepted", "sequence 5"),
    ("--bias", np.zeros((3, 4, 5, 7)), "", "accepted", "1 or batch 2"),
    ("--bias", np.zeros((2, 2, 5, 7)), "", "accepted", "1 or query_heads 4"),
    ("--bias", np.zeros((2, 4, 1, 7)), "", "accepted", "queries 5"),
    ("--bias", np.zeros((5, 7)), "", "accepted", "(5, 7)"),
    ("--mask", np.zeros((1, 1, 5, 8), bool), "", "accepted", "keys 7"),
    ("--q-segments", np.zeros((2, 6), int), "--kv-segments q_ids.npy", "accepted", "queries 5"),
    ("--kv-segments", np.zeros((1, 7), int), "--q-segments q_ids.npy", "accepted", "batch 2"),
    ("--sinks", np.zeros(3), "", "accepted", "query_heads 4"),
    ("--sinks", np.zeros((4, 0)), "", "accepted", "n at least 1"),
    ("--sinks", np.float64(1), "", "accepted", "()"),
    ("--joint-k", np.zeros((2, 3, 2, 5)), "--joint-v v.npy", "accepted", "dim 6"),
    ("--joint-v", np.zeros((2, 3, 2, 4)), "--joint-k k.npy", "accepted", "joint keys 7"),
    # Element types that would be converted unasked.
    ("--dout", DOUT.astype("f2"), "", "accepted", "holds f2, q.npy holds f8"),
    ("--bias", np.zeros((1, 1, 5, 7), "f4"), "", "accepted", "holds f4, q.npy holds f8"),
    ("--sinks", np.zeros(4, "f4"), "", "holds f4, q.npy holds f8; accepted: f8, or"),
    ("--joint-k", np.zeros((2, 7, 2, 6), "f4"), "--joint-v v.npy", "accepted", "holds f4"),
    ("--joint-v", V.astype("f4"), "--joint-k k.npy", "accepted", "holds f4"),
    # Element types and values that the option does not accept.
    ("--bias", np.zeros((1, 1, 5, 7), int), "", "accepted", "i8"),
    ("--bias", np.zeros((1, 1, 5, 7), complex), "", "accepted", "c16"),
    ("--bias", np.array([{"a": 1}], object), "", "accepted", "pickle"),
    ("--sinks", np.zeros(4, bool), "", "accepted", "b1"),
    ("--mask", np.ones((1, 1, 5, 7)), "", "f8", "accepted for a mask: b1"),
    ("--mask", np.full((1, 1, 5, 7), 2), "", "holds 2", "0 or 1"),
    ("--q-segments", np.ones((2, 5)), "--kv-segments k_ids.npy", "accepted", "f8"),
    ("--q-segments", np.full((2, 5), 2**40), "--kv-segments k_ids.npy", "accepted", "32 bits"),
]
# Another array of an operand, words of the message.
OPERANDS = [
    ("q", Q[0], "accepted", "(5, 4, 6)"),
    ("q", Q[:, :0], "accepted", "at least 1"),
    ("k", K[:1], "accepted", "batch 2"),
    ("k", K[..., :4], "accepted", "dim 6"),
    ("v", V[:, :6], "accepted", "sequence 7"),
    ("v", V[:, :, :1], "accepted", "heads 2"),
    ("v", V[..., :0], "accepted", "at least 1"),
    ("k", K.astype("f4"), "holds f4, q.npy holds f8; accepted: f8, or --dtype"),
    ("v", V.astype("f4"), "holds f4, q.npy holds f8; accepted: f8, or --dtype"),
]
DEMO = [
    ("--backend reference", "'reference'", "cpu|cuda"),
    ("--comm mpi", "'mpi'", "sim|peer|nccl"),
    ("--comm peer", "--backend cpu with --comm peer", "accepted: --backend cuda"),
    ("--backend cuda --comm sim", "--backend cuda with --comm sim", "accepted: --comm peer|nccl"),
    ("--tokens 0", "--tokens"),
    ("--tokens many", "--tokens"),
    ("--ranks 0", "--ranks"),
    ("--heads 3 --kv-heads 2", "divides"),
    ("--head-dim 7", "even"),
    ("--text missing", "missing"),
    ("--text .", "folder"),
    ("--text plain", "empty"),
    ("--text ''", "--text"),
    ("--timeout 0", "--timeout"),
    ("--seed 1", "--seed"),
]
PLAN = [
    ("", "--tokens"),
    ("--queries 4", "--keys"),
    ("--tokens 4 --keys 4", "--keys"),
    ("--tokens 4 --heads 3 --kv-heads 2", "divides"),
    ("--tokens 4 --block 2", "block-striped"),
    ("--tokens 4 --sharding block-striped", "--block"),
    (f"--tokens {2**26} --sharding block-striped --block 1", "blocks"),
    ("--tokens 8 --schedule double-ring", "--schedule double-ring requires", "--schedule-group N"),
    ("--tokens 4 --documents 0,4", "below the number of tokens, 4"),
    ("--tokens 4 --documents 1,2", "the first 0"),
    ("--queries 4 --keys 9 --documents 0", "equally many"),
    ("--queries 4 --keys 9 --sharding balanced", "equally many"),
    ("--tokens 4 --bandwidth 1", "--flops"),
    ("--tokens 4 --flops 0", "1e-6"),
    ("--tokens 4 --flops 1e-320", "1e-6"),
    ("--tokens 4 --flops 1 --bandwidth 4.9e-324", "1e-6"),
    ("--tokens 4 --flops 1 --group 2 --far-bandwidth 1e-7", "1e-6"),
    ("--tokens 4 --flops 1 --overlap 2", "0 to 1"),
    ("--tokens 4 --flops 1 --far-latency 1", "--group"),
    (f"--tokens {2**30} --heads 1024", "multiply-adds"),
    ("--tokens 4 --pass sideways", "both"),
    ("--tokens 4 --window 1", "L,R"),
    ("--tokens 4 --chunk -2", "--chunk"),
    ("--queries 4 --keys 9 --causal", "query offset is unset", "set it to 0", "keys - queries = 5"),
    (f"--tokens 4 --query-offset {2**63 - 1}", "query offset", "accepted"),
    (f"--tokens 4 --query-offset {-2**63} --json", "query offset", "accepted"),
    ("--tokens 4 --sink-tokens -1 --window 1,1", "--sink-tokens", "accepted"),
    ("--tokens 4 --sink-tokens 1", "--window"),
    ("--tokens 4 --softcap 2", "--softcap"),
    ("--tokens 4 --dropout 0.1", "--dropout"),
    (f"--tokens 4 --chunk {2**63}", "--chunk"),
    ("--tokens 4 --actions 4", "accepted: a rank from 0 to 3"),
    ("--tokens 4 --actions x", "accepted: a rank, or nothing for rank 0"),
    ("--tokens 16 --reproducible --reproducible-leaf 3", "whole leaves of 3 positions"),
]
# Of each process of a launch of 3.
SEVERAL = [
    ("demo", "3 processes", "'demo'", "one process"),
    ("plan --tokens 4", "'plan'"),
    ("nki --tokens-per-rank 128 --emit kernels", "'nki'"),
    ("attack", "'attack'"),
]
FIRST_OF_3 = [{"PMI_SIZE": "3", "PMI_RANK": "0"}, {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "0"}]


class Refusals(ArrayCase):
    def setUp(self):
        super().setUp()
        self.inputs = ["attend", *save_operands(Q, K, V)]
        self.call = [*self.inputs, "--out-dir", "new"]
        save_all(bias=BIAS, mask=np.ones((1, 4, 5, 7), bool), q_ids=np.ones((2, 5), int), k_ids=np.ones((2, 7), int))

    def test_command_lines(self):
        self.refuses_all(COMMAND_LINES)

    def test_options(self):
        np.savez("archive.npz", q=Q)
        os.mkfifo("pipe.npy")
        os.mkdir("results")
        self.refuses_all(OPTIONS, self.call)

    def test_output_paths(self):
        open("plain", "w").close()
        os.makedirs(os.path.join("taken", "lse.npy"))
        os.mkdir("own")
        os.link("q.npy", os.path.join("own", "out.npy"))
        os.mkdir("results")
        self.refuses_all(PATHS, self.inputs)

    @unittest.skipIf(os.geteuid() == 0, "root may write everywhere")
    def test_folder_without_permission(self):
        os.mkdir("locked", 0o500)
        self.refuses([*self.inputs, "--out-dir", "locked"], "cannot be written")

    def test_arrays_of_optional_operands(self):
        for option, array, more, *words in ARRAYS:
            with self.subTest(f"{option} {more}", words=words):
                np.save("bad.npy", array)
                self.refuses([*self.call, option, "bad.npy", *more.split()], "bad.npy", *words)

    def test_arrays_of_operands(self):
        for name, array, *words in OPERANDS:
            with self.subTest(name, words=words):
                save_operands(Q, K, V)
                np.save(name + ".npy", array)
                self.refuses(self.call, name + ".npy", *words)
        save_operands(Q[:, :, :3], K, V)
        self.refuses(self.call, "k.npy", "2 heads", "divides")
        save_operands(*(x.astype("f2") for x in (Q, K, V)))
        np.save("sinks.npy", np.zeros(4))
        self.refuses([*self.call, "--sinks", "sinks.npy"], "holds f8, q.npy holds f2; accepted: f2 or f4, or --dtype")

    def test_damaged_files(self):
        whole = pathlib.Path("bias.npy").read_bytes()
        for content, words in [
                (b"", "empty"), (b"1 2 3\n", "NUMPY"), (whole[:4], "ends"), (whole[:40], "header"),
                (whole[:-1], "bytes of data"), (whole + b"\0", "bytes of data"),
                (whole.replace(b"(1, 4, 5, 7),", b"(01, 4, 5, 7)"), "leading zeros"),
                (whole.replace(b"(1, 4, 5, 7)", b"(1, 4, 5, 8)"), "bytes of data"),
                (whole.replace(b"(1, 4, 5, 7), }", b"(9999999999, 9999999999), }"), "too large"),
                (b"\x93NUMPY\x09\x00" + whole[8:], "version 9.0")]:
            with self.subTest(words, size=len(content)):
                with open("bad.npy", "wb") as file:
                    file.write(content)
                self.refuses([*self.call, "--bias", "bad.npy"], "bad.npy", words)

    def test_demo(self):
        open("plain", "w").close()
        self.refuses_all(DEMO, ["demo"])

    def test_gpus_that_are_missing(self):
        """In a build without CUDA there are none; in one with it they are hidden."""
        with_cuda = os.environ.get("ANNULUS_WITH_CUDA") == "1"
        words = "requires a GPU, and CUDA finds none" if with_cuda else "cmake -DANNULUS_WITH_CUDA=ON"
        with environment(CUDA_VISIBLE_DEVICES=""):
            for call in (self.call, ["demo"]):
                for comm in ([], ["--comm", "peer"], ["--comm", "nccl"], ["--ranks", "2"]):
                    self.refuses([*call, "--backend", "cuda", *comm], "--backend cuda requires", words,
                                 "another backend")

    def test_plan(self):
        self.refuses_all(PLAN, ["plan"])

    def test_several_processes_without_mpi(self):
        for variables in FIRST_OF_3:
            with environment(**variables):
                self.refuses(self.call, "3 processes were started", list(variables)[0], "--comm sim",
                             "accepted: --comm mpi, or one process")
                self.refuses_all(SEVERAL)
        with environment(PMI_SIZE="3", PMI_RANK="2"):
            silent = run(*self.call)
            self.assertEqual((silent.returncode, silent.stdout, silent.stderr), (2, "", ""))

    def test_a_batch_script_with_many_tasks_is_one_process(self):
        with environment(SLURM_NTASKS="3", SLURM_PROCID="0", SLURM_JOB_ID="1"):
            self.attend(*self.inputs[1:])


main()
