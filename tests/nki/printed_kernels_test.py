"""Executes the kernels in print/golden/ on the numpy model of NKI, except those of ring attention.

    python3 printed_kernels_test.py [-k PART]    only cases whose name contains PART
"""
import pathlib
import sys
import unittest

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "examples" / "command" / "nki_folder")]
sys.dont_write_bytecode = True

import nki_model  # noqa: E402  (found through the line above)

nki_model.install()

GOLDEN = HERE / "print" / "golden"


RING_ORDERS = (None, (0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0))
IN_ORDER = "accepted: ids from 0 on in order"
# Groups that the kernel of 4 ranks does not have, words of the message.
BAD_GROUPS = [(((0, 1), (2, 3)), "number of replica_groups: 2; accepted: 1"),
              (((0, 1, 2, 3), (4, 5, 6, 7)), "number of replica_groups: 2; accepted: 1"),
              (((0, 1, 2),), "((0, 1, 2),)", "accepted: groups of 4 ranks"),
              (((1, 0, 2, 3),), "((1, 0, 2, 3),)", IN_ORDER),
              (((0, 2, 1, 3),), "((0, 2, 1, 3),)", IN_ORDER)]
SHAPES = {"q": (1, 1, 16, 256), "k": (1, 1, 16, 256), "v": (1, 1, 256, 16), "mask_offsets": (2, 2)}
BAD_SHAPES = [("q", (1, 2, 16, 256)), ("k", (1, 1, 256, 16)), ("v", (1, 1, 512, 16)), ("mask_offsets", (4, 2))]
MASK = ("a10aff037cd50b9d",)


def zeros(*shapes):
    return tuple(np.zeros(shape, np.float32) for shape in shapes)


def kernel(name):
    """The kernel of print/golden/<name>.py."""
    path = GOLDEN / f"{name}.py"
    module = {}
    exec(compile(path.read_text(), str(path), "exec"), module)
    return module[name]


class PrintedKernels(unittest.TestCase):
    def refuses(self, function, operands, groups, constants, *words):
        ranks = [(*operands, groups, *constants)] * sum(map(len, groups))
        with self.assertRaises(nki_model.KernelFailed) as raised:
            nki_model.launch(function, 2, ranks)
        for word in words:
            self.assertIn(word, str(raised.exception))

    def test_text(self):
        """Kernels of ring attention are executed by executed_kernels_test.py, which prints them anew."""
        for path in GOLDEN.glob("*.py"):
            with self.subTest(path.name):
                text = path.read_text()
                self.assertEqual(nki_model.subset.check(text), [])
                self.assertLessEqual(max(map(len, text.splitlines())), 120)
                kernel(path.stem)

    def test_every_other_kernel_is_executed(self):
        names = {path.stem for path in GOLDEN.glob("*.py") if not path.stem.startswith("ring_attention_")}
        self.assertEqual({name for name in names if not hasattr(self, f"test_{name}")}, set())

    def test_attention_tiles(self):
        """Softmax attention; the weights that multiply v are rounded to bfloat16, those in their sum are not."""
        random = np.random.default_rng(1)
        shapes = ((2, 64, 128), (2, 64, 256), (2, 256, 64))
        q, k, v = (nki_model.bfloat16(random.standard_normal(shape)) for shape in shapes)
        counts = {}
        (output,) = nki_model.launch(kernel("attention_tiles"), 1, [(q, k, v)], counts=counts)
        q, k, v = (operand.numpy().astype(np.float64) for operand in (q, k, v))
        weights = np.exp(0.125 * np.einsum("idr,idk->irk", q, k))
        sums = weights.sum(axis=2, keepdims=True)
        # One rounding to 8 significant bits for each weight, and float32 everywhere else.
        bound = (2.0**-8 + 1e-4) * (weights @ np.abs(v)) / sums
        self.assertLessEqual((np.abs(output - weights @ v / sums) / bound).max(), 1)
        self.assertEqual(counts[(0, 0)]["nc_matmul"], 2 * 2 * 2, "2 items x 2 key tiles x 2 products")

    def test_newest_tiles(self):
        x = np.arange(6 * 32 * 16, dtype=np.float32).reshape(6, 32, 16)
        (results,) = nki_model.launch(kernel("newest_tiles"), 1, [(x,)])
        self.assertEqual([int(result[0, 0]) // 512 for result in results], [5, 4, 3])
        for result, wanted in zip(results, (5, 4, 3)):
            self.assertTrue(np.array_equal(result, x[wanted]), wanted)

    def test_ring_weighted_sum(self):
        """Small integers, so that sums are exact in any order."""
        random = np.random.default_rng(2)
        parts = [random.integers(-50, 50, (2, 128, 64)).astype(np.float32) for _ in range(4)]
        wanted = sum(rank * part for rank, part in enumerate(parts))
        for order in RING_ORDERS:
            with self.subTest(order=order):
                totals = nki_model.launch(kernel("ring_weighted_sum"), 2, [(part, ((0, 1, 2, 3),)) for part in parts],
                                          ring_order=order and list(order))
                for total in totals:
                    self.assertTrue(np.array_equal(total, wanted))

    def test_other_shapes_and_groups_are_refused(self):
        """With what was given and what is accepted."""
        function = kernel("ring_weighted_sum")
        for shape in ((2, 64, 128), (2, 256, 64), (1, 2, 128, 64), (2, 128)):
            with self.subTest(shape=shape):
                self.refuses(function, zeros(shape), ((0, 1, 2, 3),), (),
                             f"shape of x: {shape}; accepted: (2, 128, 64)")
        for groups, *words in BAD_GROUPS:
            with self.subTest(groups=groups):
                self.refuses(function, zeros((2, 128, 64)), groups, (), *words)
        function = kernel("ring_attention_fwd")
        for name, given in BAD_SHAPES:
            with self.subTest(name):
                operands = zeros(*{**SHAPES, name: given}.values())
                self.refuses(function, operands, ((0, 1),), MASK, f"shape of {name}: {given}; accepted: {SHAPES[name]}")
        operands = zeros(*SHAPES.values())
        self.refuses(function, operands, ((1, 0),), MASK, f"replica_groups: ((1, 0),); {IN_ORDER}")
        self.refuses(function, operands, ((0, 1),), ("another",), "another mask")


if __name__ == "__main__":
    unittest.main(verbosity=2)
