"""NumPy arrays as tensors of the library."""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional

import numpy as np

from . import library
from .errors import ShapeError, UnsupportedError, by_new_names, refuse_name


#: Operands of a call in addition to q, k and v.
OPERANDS = ("bias", "mask", "query_documents", "key_documents", "sinks", "joint_keys", "joint_values")
#: Those of the element type of q.
LIKE_Q = ("bias", "joint_keys", "joint_values")


def tensor_of(array: Optional[np.ndarray], name: str, dtype: Optional[str] = None) -> Any:
    """The library's description of an array; of none without one. dtype "bfloat16": the array holds bfloat16 in uint16.

    Raises, on this rank alone, for an array that cannot be described.
    """
    tensor = library.Tensor()
    if array is None:
        return tensor
    if dtype is not None and (dtype != "bfloat16" or array.dtype != np.uint16):
        raise UnsupportedError(f"{name} has elements of {array.dtype} and dtype is {dtype!r}; accepted: dtype "
                               "'bfloat16' with arrays of uint16, and no dtype with others")
    element = dtype or array.dtype.name
    if element not in library.DTYPES or not array.dtype.isnative:
        raise UnsupportedError(f"{name} has elements of {array.dtype.str}; accepted: {', '.join(library.DTYPES)}, in "
                               "native byte order")
    if not 1 <= array.ndim <= 4:
        raise ShapeError(f"{name} has {array.ndim} axes; accepted: 1 to 4")
    if any(stride % array.itemsize for stride, extent in zip(array.strides, array.shape) if extent > 1):
        raise UnsupportedError(f"{name} has strides of {array.strides} bytes; accepted: multiples of the "
                               f"{array.itemsize} bytes of an element")
    tensor.data, tensor.dtype, tensor.num_axes = array.ctypes.data, library.DTYPES.index(element), array.ndim
    for axis, (extent, stride) in enumerate(zip(array.shape, array.strides)):
        tensor.extents[axis], tensor.strides[axis] = extent, stride // array.itemsize
    return tensor


def operands_of(arrays: Dict[str, Any], dtype: Optional[str], call: Optional[int]) -> Any:
    """The operands of OPERANDS by name, and the number of the call."""
    operands = library.Operands()
    operands.arrays = []  # must live as long as their description
    for name, array in by_new_names(arrays).items():
        if name not in OPERANDS:
            refuse_name("operand", name, OPERANDS)
        if array is not None:
            operands.arrays.append(np.asarray(array))
            setattr(operands, name, tensor_of(operands.arrays[-1], name, dtype if name in LIKE_Q else None))
    if call is not None:
        operands.has_call, operands.call = 1, call
    return operands


def sum_dtype(q: np.ndarray) -> Any:
    """Type of lse, sink logits and their gradients."""
    return np.float64 if q.dtype == np.float64 else np.float32


class Forward(NamedTuple):
    """Result of a forward pass, and argument of the backward pass."""

    output: np.ndarray  #: [batch, queries, query_heads, value_dim]; a query that sees no key: 0
    lse: np.ndarray  #: [batch, query_heads, queries], natural log; a query that sees no key: -inf
    lse_remainder: np.ndarray  #: the rounding error of lse
    given: int = 0  #: which operands the pass was given, which the backward pass must be given as well; 0: not compared


class Gradients(NamedTuple):
    dq: np.ndarray  #: shaped as q, and so on
    dk: np.ndarray
    dv: np.ndarray
    dbias: Optional[np.ndarray] = None  #: shaped as the bias, with bias_gradient
    dsinks: Optional[np.ndarray] = None  #: shaped as sinks, if given; the sum over all ranks
    d_joint_keys: Optional[np.ndarray] = None  #: shaped as joint_keys, if given; the sum over all ranks
    d_joint_values: Optional[np.ndarray] = None  #: shaped as joint_values, if given
