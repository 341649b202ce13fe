"""Attention of PyTorch tensors in host memory, with gradients. Imports torch when it is called."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from .arrays import Forward
from .attention import Attention
from .errors import UnsupportedError
from .rings import Ring


def torch_attention(q: Any, k: Any, v: Any, ring: Optional[Ring] = None, **options: Any) -> Any:
    """The output, a tensor [batch, queries, query_heads, value_dim] that is differentiable by q, k and v.

    q [batch, queries, query_heads, head_dim], k [batch, keys, kv_heads, head_dim],
    v [batch, keys, kv_heads, value_dim]: tensors on the CPU, on a ring the rows of this rank. Options: see Options.
    """
    import torch

    narrow = q.dtype == torch.bfloat16
    dtype = "bfloat16" if narrow else None

    def array_of(tensor: Any) -> np.ndarray:
        if tensor.device.type != "cpu":
            raise UnsupportedError(f"a tensor is on device {tensor.device}; accepted: cpu")
        # NumPy has no bfloat16, and older versions of PyTorch no uint16.
        return tensor.detach().view(torch.int16).numpy().view(np.uint16) if narrow else tensor.detach().numpy()

    def tensor_of(array: np.ndarray) -> Any:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if narrow else torch.from_numpy(array)

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, q: Any, k: Any, v: Any) -> Any:
            context.attention = Attention(ring, **options)
            result = context.attention.forward(array_of(q), array_of(k), array_of(v), dtype=dtype)
            output = tensor_of(result.output)
            context.statistics = result[1:]
            context.save_for_backward(q, k, v, output)
            return output

        @staticmethod
        def backward(context: Any, dout: Any) -> Any:
            q, k, v, output = (array_of(tensor) for tensor in context.saved_tensors)
            forward = Forward(output, *context.statistics)
            gradients = context.attention.backward(array_of(dout), forward, q, k, v, dtype=dtype)
            return tuple(tensor_of(array) for array in gradients[:3])

    return Function.apply(q, k, v)
