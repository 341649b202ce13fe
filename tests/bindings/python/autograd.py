"""torch_attention on a stand-in for the few functions of PyTorch that it calls, since PyTorch is not a dependency."""

import sys
import types
import unittest

import annulus
import numpy as np
from arrays import from_bfloat16, to_bfloat16
from oracle import error_of, expected, random_arrays


class Tensor:
    """NumPy array with the dtype "bfloat16" where it holds bfloat16 in uint16."""

    def __init__(self, array, dtype=None, device="cpu"):
        self.array, self.dtype = array, dtype or array.dtype
        self.device = types.SimpleNamespace(type=device)

    def detach(self):
        return self

    def numpy(self):
        assert self.dtype != "bfloat16", "NumPy has no bfloat16"
        return self.array

    def view(self, dtype):
        return Tensor(self.array, "bfloat16") if dtype == "bfloat16" else Tensor(self.array.view(dtype))


class Function:
    @classmethod
    def apply(cls, *tensors):
        context = types.SimpleNamespace()
        context.save_for_backward = lambda *saved: setattr(context, "saved_tensors", saved)
        output = cls.forward(context, *tensors)
        output.backward = lambda dout: cls.backward(context, dout)
        return output


sys.modules["torch"] = types.SimpleNamespace(
    bfloat16="bfloat16", int16=np.int16, from_numpy=Tensor, autograd=types.SimpleNamespace(Function=Function))


class TorchAttention(unittest.TestCase):
    def check(self, tensor_of, array_of, bound, rounded=lambda x: x):
        arrays = [rounded(x) for x in random_arrays()]
        wanted = expected(*arrays, {}, {"causal": True})
        q, k, v, dout = (tensor_of(x) for x in arrays)
        output = annulus.torch_attention(q, k, v, causal=True)
        found = dict(zip(("dq", "dk", "dv"), map(array_of, output.backward(dout))), out=array_of(output))
        self.assertLess(error_of(found, wanted), bound)

    def test_float64(self):
        self.check(Tensor, lambda tensor: tensor.numpy(), 1e-12)

    def test_bfloat16(self):
        self.check(lambda x: Tensor(to_bfloat16(x), "bfloat16"),
                   lambda tensor: from_bfloat16(tensor.array.view(np.uint16)), 8e-2, lambda x: from_bfloat16(to_bfloat16(x)))

    def test_other_devices_are_refused(self):
        q, k, v, _ = (Tensor(x, device="cuda") for x in random_arrays())
        with self.assertRaisesRegex(annulus.UnsupportedError, "accepted: cpu"):
            annulus.torch_attention(q, k, v)


if __name__ == "__main__":
    unittest.main()
