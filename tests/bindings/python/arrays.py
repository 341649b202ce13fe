"""Element types and strides of the arrays that the Python module takes."""

import unittest

import annulus
import numpy as np
from oracle import error_of, expected, named, random_arrays

#: Rounding of an element, times a factor for the sums over about 23 products of rounded elements.
BOUNDS = {np.float64: 1e-12, np.float32: 1e-5, np.float16: 1e-2, "bfloat16": 8e-2}


def to_bfloat16(x):
    """The upper half of float32, rounded to nearest even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bfloat16(x):
    return (x.astype(np.uint32) << 16).view(np.float32)


class ElementTypes(unittest.TestCase):
    def check(self, element, convert, restore, dtype=None):
        arrays = [convert(x) for x in random_arrays()]
        wanted = expected(*(restore(x) for x in arrays), {}, {"causal": True})
        q, k, v, dout = arrays
        attention = annulus.Attention(causal=True)
        forward = attention.forward(q, k, v, dtype=dtype)
        gradients = attention.backward(dout, forward, q, k, v, dtype=dtype)
        wide = attention.backward(dout, forward, q, k, v, dtype=dtype, wide=True)
        sums = np.float64 if element is np.float64 else np.float32
        self.assertEqual({x.dtype for x in (forward.output,) + gradients[:3]}, {q.dtype})
        self.assertEqual({x.dtype for x in (forward.lse, forward.lse_remainder) + wide[:3]}, {np.dtype(sums)})
        found = named(restore(forward.output), forward.lse, gradients._replace(
            dq=restore(gradients.dq), dk=restore(gradients.dk), dv=restore(gradients.dv)))
        self.assertLess(error_of(found, wanted), BOUNDS[element])
        self.assertLess(error_of(named(restore(forward.output), forward.lse, wide), wanted), BOUNDS[element])
        output, lse = annulus.ring(3, q, k, v, dtype=dtype, causal=True)
        self.assertLess(error_of({"out": restore(output), "lse": lse}, wanted), BOUNDS[element])
        return found, wanted

    def test_numpy_types(self):
        for element in (np.float64, np.float32, np.float16):
            with self.subTest(element=element):
                self.check(element, lambda x: x.astype(element), lambda x: x)

    def test_bfloat16_in_uint16(self):
        found, wanted = self.check("bfloat16", to_bfloat16, from_bfloat16, "bfloat16")
        self.assertGreater(error_of(found, wanted), 1e-4, "not rounded to bfloat16")

    def test_bfloat16_of_ml_dtypes(self):
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("ml_dtypes is not installed")
        self.check("bfloat16", lambda x: x.astype(ml_dtypes.bfloat16), lambda x: x.astype(np.float32))

    def test_refused_types(self):
        q, k, v, _ = random_arrays()
        for bad in (q.astype(np.complex64), q.astype(">f8"), q.astype(object)):
            with self.assertRaisesRegex(annulus.UnsupportedError, "q has elements of .*; accepted: float64"):
                annulus.attention(bad, k, v)
        with self.assertRaisesRegex(annulus.UnsupportedError, "q has elements of int64; accepted: float64"):
            annulus.attention(q.astype(np.int64), k, v)
        with self.assertRaisesRegex(annulus.UnsupportedError, "k has elements of float32; accepted: float64"):
            annulus.attention(q, k.astype(np.float32), v)
        for dtype in ("bfloat16", "float32"):
            with self.assertRaisesRegex(annulus.UnsupportedError, "accepted: dtype 'bfloat16' with arrays of uint16"):
                annulus.attention(q, k, v, dtype=dtype)


class Strides(unittest.TestCase):
    def test_views(self):
        q, k, v, dout = random_arrays()
        wanted = expected(q, k, v, dout, {}, {"causal": True})
        padded = np.zeros((2, 23, 4, 13))
        padded[..., 1::2] = q
        heads_first = k.transpose(0, 2, 1, 3).copy().transpose(0, 2, 1, 3)
        backwards = v[:, ::-1].copy()[:, ::-1]
        views = padded[..., 1::2], heads_first, backwards
        attention = annulus.Attention(causal=True)
        forward = attention.forward(*views)
        gradients = attention.backward(dout.transpose(3, 1, 2, 0).copy().transpose(3, 1, 2, 0), forward, *views)
        self.assertLess(error_of(named(forward.output, forward.lse, gradients), wanted), 1e-12)

    def test_broadcast_bias(self):
        q, k, v, dout = random_arrays()
        row = np.linspace(-1, 1, 23)
        bias = np.broadcast_to(row, (1, 1, 23, 23))
        output, lse = annulus.ring(2, q, k, v, bias=bias)
        self.assertLess(error_of({"out": output, "lse": lse}, expected(q, k, v, dout, {"bias": bias}, {})), 1e-12)

    def test_unaligned_strides_are_refused(self):
        q, k, v, _ = random_arrays()
        record = np.zeros(q.shape, [("x", np.float64), ("y", np.int8)])
        with self.assertRaisesRegex(annulus.UnsupportedError, "multiples of the 8 bytes"):
            annulus.attention(record["x"], k, v)

    def test_empty_sequence(self):
        q, k, v, _ = random_arrays(queries=0)
        output, lse = annulus.attention(q, k, v)
        self.assertEqual((output.shape, lse.shape), ((2, 0, 4, 5), (2, 4, 0)))


if __name__ == "__main__":
    unittest.main()
