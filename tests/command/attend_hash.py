"""attend --hash: FNV-1a of each result, equal wherever the bits are equal."""

import os
import re
from unittest import mock

import numpy as np

from support.arrays import ArrayCase, load, save_all, save_operands
from support.command import main, run
from support.mpi import launcher, needs_mpi

random = np.random.default_rng(22)
TOKENS, LEAF = 96, 4  # pieces of every sharding below are whole leaves
OPERANDS = [random.standard_normal((1, TOKENS, heads, 8)).astype("f4") for heads in (4, 2, 2, 4)]
OPTIONAL = {"bias": random.standard_normal((1, 4, TOKENS, TOKENS)).astype("f4"),
            "sinks": random.standard_normal(4).astype("f4")}
OPTIONS = "--causal --bias bias.npy --bias-gradient --sinks sinks.npy --dropout 0.2 --seed 3"
REPRODUCIBLE = f"{OPTIONS} --reproducible --reproducible-leaf {LEAF}"
SHARDINGS = ("contiguous", "zigzag", f"block-striped --block {LEAF}")


def fnv1a(data):
    state = 0xCBF29CE484222325
    for byte in data:
        state = (state ^ byte) * 0x100000001B3 % 2**64
    return state


class HashCase(ArrayCase):
    def setUp(self):
        super().setUp()
        self.files = save_operands(*OPERANDS)
        save_all(**OPTIONAL)

    def hashes(self, options, launcher=()):
        """The printed hashes by the name of the result, each of which is printed once."""
        done = run("attend", *self.files, *options.split(), "--hash", "--out-dir", "out", launcher=launcher)
        self.assertEqual(done.returncode, 0)
        found = re.findall(r"^fnv1a64 (\w+) ([0-9a-f]{16})$", done.stdout, re.M)
        self.assertEqual(len(found), len(dict(found)))
        self.assertEqual(len(found), done.stdout.count("fnv1a64"))
        return dict(found)


class Hashes(HashCase):
    def test_of_the_elements_of_each_file_and_of_the_remainders_of_lse(self):
        self.assertEqual([fnv1a(text) for text in (b"", b"a", b"foobar")],  # as published
                         [0xCBF29CE484222325, 0xAF63DC4C8601EC8C, 0x85944171F73967E8])
        for dtype in ("f64", "f32", "bf16"):
            with self.subTest(dtype):
                found = self.hashes(f"{OPTIONS} --dtype {dtype}")
                self.assertEqual(len(set(found.values())), len(found))
                zeros = bytes(4 * TOKENS * (8 if dtype == "f64" else 4))
                self.assertNotEqual(found.pop("lse_remainder"), f"{fnv1a(zeros):016x}")
                self.assertEqual(found, {name: f"{fnv1a(array.tobytes()):016x}" for name, array in load("out").items()})

    def test_printed_only_if_asked_for(self):
        self.assertNotIn("fnv1a64", run("attend", *self.files, "--out-dir", "out").stdout)

    def test_equal_for_any_number_of_ranks_and_sharding_if_reproducible(self):
        alone = self.hashes(f"{REPRODUCIBLE} --ranks 1")
        self.assertEqual(set(alone), {"out", "lse", "lse_remainder", "dq", "dk", "dv", "dbias", "dsinks"})
        for ranks in (1, 2, 3, 4):
            for sharding in SHARDINGS:
                with self.subTest(ranks=ranks, sharding=sharding):
                    self.assertEqual(self.hashes(f"{REPRODUCIBLE} --ranks {ranks} --sharding {sharding}"), alone)

    def test_other_bits_have_other_hashes(self):
        first = self.hashes(REPRODUCIBLE)
        for other in (REPRODUCIBLE.replace("--seed 3", "--seed 4"), REPRODUCIBLE.replace(f"-leaf {LEAF}", "-leaf 8"),
                      OPTIONS):
            with self.subTest(other):
                found = self.hashes(other)
                self.assertEqual(set(found), set(first))
                self.assertNotEqual(found["out"], first["out"])
                self.assertNotEqual(found["dk"], first["dk"])
        self.assertNotEqual(self.hashes(f"{OPTIONS} --ranks 1")["dk"], self.hashes(f"{OPTIONS} --ranks 3")["dk"])

    def test_avx2_and_avx512_have_the_same_output_in_double(self):
        found = {}
        for target in ("avx2", "avx512"):
            with mock.patch.dict(os.environ, ANNULUS_CPU_TARGET=target):
                if run("attend", *self.files, "--out-dir", "out", "--ranks", "1").returncode != 0:
                    self.skipTest(f"{target} is not supported here")
                found[target] = self.hashes(f"{REPRODUCIBLE} --ranks 2 --dtype f64")
        for name in ("out", "lse", "lse_remainder"):
            self.assertEqual(found["avx2"][name], found["avx512"][name])

    def test_the_same_call_has_the_same_hashes(self):
        self.assertEqual(self.hashes(f"{OPTIONS} --ranks 3"), self.hashes(f"{OPTIONS} --ranks 3 --threads 2"))


@needs_mpi
class OverMpi(HashCase):
    def test_printed_once_and_equal_to_those_of_one_rank(self):
        alone = self.hashes(f"{REPRODUCIBLE} --ranks 1")
        for ranks in (1, 3, 4):
            with self.subTest(ranks=ranks):
                self.assertEqual(self.hashes(f"{REPRODUCIBLE} --comm mpi --sharding zigzag", launcher(ranks)), alone)


main()
