"""attend and demo on the GPUs of this machine: the results agree with the definition, for any number of ranks."""

import os
import unittest

import numpy as np

from support.arrays import ArrayCase, same, save_all, save_operands
from support.command import main, run

random = np.random.default_rng(31)
normal = random.standard_normal

BATCH, TOKENS, HEADS, KV_HEADS, DIM, VALUE_DIM = 2, 70, 4, 2, 64, 48
Q, K = normal((BATCH, TOKENS, HEADS, DIM)), normal((BATCH, TOKENS, KV_HEADS, DIM))
V, DOUT = normal((BATCH, TOKENS, KV_HEADS, VALUE_DIM)), normal((BATCH, TOKENS, HEADS, VALUE_DIM))
ARRAYS = {
    "bias": normal((BATCH, HEADS, TOKENS, TOKENS)), "mask": random.random((1, HEADS, TOKENS, TOKENS)) < 0.6,
    "sinks": normal((HEADS, 2)), "ids": random.integers(0, 4, (BATCH, TOKENS)),
    "joint_k": normal((BATCH, 5, KV_HEADS, DIM)), "joint_v": normal((BATCH, 5, KV_HEADS, VALUE_DIM)),
}
# Each option that changes what is computed, and each type, on two ranks.
OPTIONS = [
    "", "--causal", "--causal --window 9,0 --sink-tokens 2", "--chunk 16", "--softcap 0.8 --scale 0.7",
    "--bias bias.npy --bias-gradient", "--mask mask.npy", "--q-segments ids.npy --kv-segments ids.npy",
    "--sinks sinks.npy", "--dropout 0.3 --seed 11", "--joint-k joint_k.npy --joint-v joint_v.npy", "--axes bhsd",
]
BOUNDS = {"f64": 1e-12, "f32": 1e-5, "f16": 1e-2, "bf16": 5e-2}  # relative, in the Frobenius norm
RINGS = ["--ranks 1", "--ranks 2 --sharding zigzag", "--ranks 3 --sharding striped", "--ranks 5",
         "--ranks 4 --schedule both-directions", "--ranks 2 --rotation queries"]
REPRODUCIBLE = "--causal --dtype f32 --reproducible --reproducible-leaf 7 --sharding block-striped --block 7"


def demo(options):
    return run(*f"demo --tokens 64 --backend cuda {options}".split())


def on_gpus():
    """True if the command is built for GPUs and finds one."""
    return os.environ.get("ANNULUS_WITH_CUDA") == "1" and demo("--ranks 1").returncode == 0


@unittest.skipUnless(on_gpus(), "the command is built without CUDA, or there is no GPU")
class OnGpus(ArrayCase):
    def operands(self, axes="bshd"):
        save_all(**ARRAYS)
        return save_operands(Q, K, V, DOUT, axes)

    def on_gpus(self, options, files=None):
        return self.attend(*(files or self.operands()), "--backend", "cuda", *options.split())

    def test_every_option_and_type(self):
        for options in OPTIONS:
            files = self.operands("bhsd" if "bhsd" in options else "bshd")
            options = options.replace("--axes bhsd", "")
            expected = self.attend(*files, "--backend", "reference", *options.split())
            for dtype, bound in BOUNDS.items():
                with self.subTest(options, dtype=dtype):
                    self.close(self.on_gpus(f"--ranks 2 --dtype {dtype} --verify {options}", files), expected, bound)

    def test_rings(self):
        for ring in RINGS:
            with self.subTest(ring):
                self.on_gpus(f"{ring} --dtype bf16 --causal --verify")

    def test_reproducible_bits_for_any_number_of_ranks(self):
        alone, two = (self.on_gpus(f"{REPRODUCIBLE} --ranks {ranks}") for ranks in (1, 2))
        self.assertTrue(same(two, alone))

    def test_demo(self):
        done = demo("--ranks 3")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.contains(done.stdout, "3 ranks on ", "GPU", "largest relative error")

    def test_nccl(self):
        if os.environ.get("ANNULUS_WITH_NCCL") != "1":
            self.refuses(["demo", "--backend", "cuda", "--comm", "nccl"], "--comm nccl requires", "NCCL 2.22",
                         "--comm peer")
            return
        self.on_gpus("--ranks 1 --comm nccl --causal --verify")
        self.refuses(["demo", "--backend", "cuda", "--comm", "nccl", "--ranks", "1024"], "--ranks 1024",
                     "one rank a GPU", "--comm peer")


main()
