"""attend --verify: status 0 if rounding explains the errors, status 1 if it does not."""

import itertools
import os
import pathlib
import re
import shutil
import subprocess
import unittest

import numpy as np

from support.arrays import ArrayCase, aligned, save_all, save_operands
from support.command import environment, main, run

random = np.random.default_rng(22)
TYPES = ("f64", "f32", "f16", "bf16")
# Of all options together: rounding errors of the type, not 0.
ERRORS = {"f64": (0, 1e-12), "f32": (1e-9, 2e-6), "f16": (1e-5, 1e-2), "bf16": (1e-4, 1e-1)}
OPTIONAL = {"--bias-gradient": "dbias", "--sinks": "dsinks"}
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def operands(queries=33, keys=40, heads=4, kv_heads=2, dim=16, value_dim=12, make=random.standard_normal):
    shapes = ((queries, heads, dim), (keys, kv_heads, dim), (keys, kv_heads, value_dim), (queries, heads, value_dim))
    return [make((1, *shape)) for shape in shapes]


def alternating(shape):
    return np.where(np.arange(np.prod(shape)).reshape(shape) % 2 == 0, 1.0, -1.0)


Q, K, V, DOUT = operands()
MASKING = np.where(random.random((1, 1, 33, 40)) < 0.5, 0.0, -1e9)
MASKING[:, :, 5] = -1e9
ARRAYS = {
    "bias": random.standard_normal((1, 4, 33, 40)), "mask": random.random((1, 1, 33, 40)) < 0.7, "masking": MASKING,
    "infinite": np.where(MASKING == 0, 0, -np.inf),
    "sinks": random.standard_normal((4, 2)), "large_sinks": np.full(4, 30.0),
    "q_ids": random.integers(0, 4, (1, 33)), "kv_ids": random.integers(0, 4, (1, 40)),
}
DOCUMENTS = "--q-segments q_ids.npy --kv-segments kv_ids.npy"
OPTIONS = [
    "--causal --ranks 3 --sharding zigzag", "--window 3,0 --sharding striped", "--scale 0", "--scale -1", "--scale 30",
    "--scale 1e4", "--softcap 0.5", "--softcap 30 --scale 100", "--softcap 1e-3", "--dropout 0.9 --seed 3",
    "--mask mask.npy", "--bias bias.npy --bias-gradient", "--bias masking.npy --bias-gradient", "--bias infinite.npy",
    "--sinks sinks.npy", "--sinks large_sinks.npy", DOCUMENTS, "--causal --query-offset -20", "--chunk 7",
    "--rotation queries",
           "--causal --window 9,0 --scale 0.6 --softcap 2 --bias bias.npy --bias-gradient --mask mask.npy "
    f"--sinks sinks.npy --dropout 0.2 {DOCUMENTS}",
]
# Operands that cancel, repeat, are 0, tiny, huge or have a mean: gradients that are 0 up to rounding.
OPERANDS = {
    "one key": operands(queries=3, keys=1), "zeros": operands(make=np.zeros), "ones": operands(make=np.ones),
    "alternating": operands(make=alternating), "mean": [x + 5 for x in operands()],
    "equal keys": (Q, np.broadcast_to(K[:, :1], K.shape), V, DOUT),
    "equal values": (Q, K, np.broadcast_to(V[:, :1], V.shape), DOUT),
    "one of many": (Q, np.where(np.arange(40)[None, :, None, None] == 3, 20 * K, K), V, DOUT),
    "large logits": (30 * Q, 30 * K, V, DOUT), "tiny": [1e-4 * x for x in operands()],
            "large values": (Q, K, 100 * V, DOUT),
    "wide": operands(dim=128, value_dim=128), "integers": [np.rint(3 * x) for x in operands()],
    "long": operands(queries=300, keys=600, heads=2, kv_heads=1),
}


def errors_and_shares(text):
    """The largest relative error of each result, and the largest ratio of an error to its bound."""
    rows = re.findall(r"^  (\w+) +(\S+) +\S+ +(\S+)$", text, re.M)
    return {name: float(error) for name, error, _ in rows}, {name: float(share) for name, _, share in rows}


class Verification(ArrayCase):
    def setUp(self):
        super().setUp()
        self.files = save_operands(Q, K, V, DOUT)
        save_all(**ARRAYS)

    def verify(self, *arguments):
        return run("attend", *aligned(arguments), "--verify", "--out-dir", "out")

    def accepted(self, *arguments):
        """Returns the largest error of a result."""
        done = self.verify(*arguments)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        errors, shares = errors_and_shares(done.stdout)
        optional = {name for option, name in OPTIONAL.items() if option in arguments}
        self.assertEqual(set(errors), {"out", "lse", "dq", "dk", "dv"} | optional)
        self.assertTrue(all(0 <= share <= 1 for share in shares.values()), shares)
        return max(errors.values())

    def test_options(self):
        on_nki = itertools.product(OPTIONS[:3], TYPES[1:], ["nki"])
        for options, dtype, backend in [*itertools.product(OPTIONS, TYPES, ("reference", "cpu")), *on_nki]:
            with self.subTest(options, dtype=dtype, backend=backend):
                error = self.accepted(*self.files, *options.split(), "--backend", backend, "--dtype", dtype)
                if options == OPTIONS[-1]:
                    least, most = ERRORS[dtype]
                    self.assertTrue(least < error <= most, error)
        self.assertNotIn("largest relative error", run("attend", *self.files, "--out-dir", "out").stdout)

    def test_operands(self):
        for (label, arrays), dtype, backend in itertools.product(OPERANDS.items(), TYPES, ("reference", "cpu")):
            with self.subTest(label, dtype=dtype, backend=backend):
                self.accepted(*save_operands(*arrays), "--backend", backend, "--dtype", dtype)

    def test_axes(self):
        for dtype in TYPES:
            with self.subTest(dtype):
                self.accepted(*save_operands(Q, K, V, DOUT, axes="bhds"), "--dtype", dtype)

    def test_bounds_are_finite_where_lse_absorbs_the_difference_of_any_two_logits(self):
        for size in (1e18, 1e20, 1e25):
            with self.subTest(size=size):
                done = self.verify(*save_operands(size * Q, K, V, DOUT), "--dtype", "f32")
                self.assertEqual((done.returncode, len(errors_and_shares(done.stdout)[0])), (0, 5))
                self.assertNotIn("nan", done.stdout)

    def test_results_that_are_not_finite_fail(self):
        files = [*save_operands(1e30 * Q, 1e30 * K, V), "--dtype", "f32"]
        done = self.verify(*files)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.assertRegex(done.stderr, r"\Aannulus: --verify: out\[0, 0, 0, 0\] is ")
        shutil.rmtree("out")
        self.one_line(run("attend", *files, "--require-finite", "--out-dir", "out"), 1, "rank", "step")
        self.assertFalse(os.path.exists("out/out.npy"))

    @unittest.skipUnless(COMPILER, "needs a C compiler")
    def test_an_error_of_3_percent_in_tanhf_alone_is_found(self):
        pathlib.Path("wrong.c").write_text(
            "double tanh(double); float tanhf(float x) { return (float)(1.03 * tanh(x)); }\n")
        subprocess.run([COMPILER, *"-shared -fPIC -O1 -fno-builtin wrong.c -o wrong.so -lm".split()], check=True)
        call = [*self.files, "--dtype", "f32", "--backend", "reference", "--softcap"]
        with environment(LD_PRELOAD=os.path.abspath("wrong.so"), ASAN_OPTIONS="verify_asan_link_order=0"):
            self.assertEqual(self.verify(*call, "0").returncode, 0)
            done = self.verify(*call, "2")
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1))
        self.contains(done.stderr, "--verify: ", "accepted: up to")
        _, shares = errors_and_shares(done.stdout)
        self.assertTrue(shares and all(share > 1 for share in shares.values()), shares)


main()
