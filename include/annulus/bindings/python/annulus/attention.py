"""Attention of the ranks of a ring, and of global arrays on one rank or on simulated ranks."""

from __future__ import annotations

import weakref
from ctypes import byref, c_void_p
from typing import Any, Dict, List, Optional, Tuple

import numpy as np

from . import library
from .arrays import OPERANDS, Forward, Gradients, operands_of, sum_dtype, tensor_of
from .errors import ShapeError, UnsupportedError, by_new_names, place
from .library import check
from .options import Options, options_by_name, options_of, positions
from .plan import Plan
from .rings import Ring, run_ring


class Attention:
    """Attention on one rank of a ring (default: a ring of one rank) with the options of `Options`, given by name.

    Every rank makes one, and calls the same passes in the same order. The first call fixes the shapes.
    """

    def __init__(self, ring: Optional[Ring] = None, **options: Any):
        self.options = options_by_name(options)
        self.ring = Ring() if ring is None else ring
        self.ring.attention_handles.ring_used_here()
        handle = c_void_p()
        check(library.c.annulus_attention_create(self.ring.handle, byref(options_of(self.options)), byref(handle)))
        self._handle = handle
        weakref.finalize(self, self.ring.attention_handles.free_later, handle)

    def forward(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, *, dtype: Optional[str] = None,
                call: Optional[int] = None, **operands: Optional[np.ndarray]) -> Forward:
        """Attention of this rank's queries over the keys of all ranks. Collective. Shapes, operands: see the package.

        call: number of the call, compared across ranks.
        """
        q, k, v = np.asarray(q), np.asarray(k), np.asarray(v)
        given = operands_of(operands, dtype, call)
        batch, queries, heads = (q.shape + (0, 0, 0))[:3]
        output = np.empty((batch, queries, heads) + v.shape[3:4], q.dtype)
        lse = np.empty((batch, heads, queries), sum_dtype(q))
        remainder = np.empty_like(lse)
        tensors = [tensor_of(array, name, dtype) for name, array in (("q", q), ("k", k), ("v", v))]
        results = [tensor_of(output, "output", dtype), tensor_of(lse, "lse"), tensor_of(remainder, "lse_remainder")]
        self.ring.attention_handles.ring_used_here()
        check(library.c.annulus_forward(self._handle, *map(byref, tensors), byref(given), *map(byref, results)))
        return Forward(output, lse, remainder, library.c.annulus_given_operands(byref(given)))

    def backward(self, dout: np.ndarray, forward: Forward, q: np.ndarray, k: np.ndarray, v: np.ndarray, *,
                 bias_gradient: bool = False, wide: bool = False, dtype: Optional[str] = None,
                 call: Optional[int] = None, **operands: Optional[np.ndarray]) -> Gradients:
        """Gradients of a scalar whose gradient by the output is dout. Collective; operands as in the forward pass.

        bias_gradient: also dbias, the share of this rank's queries. wide: gradients of 16-bit operands in float32.
        """
        dout, q, k, v = np.asarray(dout), np.asarray(q), np.asarray(k), np.asarray(v)
        given = operands_of(operands, dtype, call)
        given.forward_given = forward.given
        bias, sinks = operands.get("bias"), operands.get("sinks")
        if bias_gradient and bias is None:
            raise UnsupportedError("bias_gradient is set but no bias is given")
        element = sum_dtype(q) if wide else q.dtype
        dq, dk, dv = (np.empty(x.shape, element) for x in (q, k, v))
        dbias = np.empty(np.shape(bias), element) if bias_gradient else None
        dsinks = np.empty(np.shape(sinks), sum_dtype(q)) if sinks is not None else None
        d_joint_keys, d_joint_values = (np.empty(np.shape(operands[name]), element) if operands.get(name) is not None
                                        else None for name in ("joint_keys", "joint_values"))
        results = library.Gradients()
        for name, array in (("dq", dq), ("dk", dk), ("dv", dv), ("dbias", dbias), ("dsinks", dsinks),
                            ("d_joint_keys", d_joint_keys), ("d_joint_values", d_joint_values)):
            setattr(results, name, tensor_of(array, name, None if wide or name == "dsinks" else dtype))
        tensors = [tensor_of(dout, "dout", dtype), tensor_of(forward.output, "output", dtype),
                   tensor_of(forward.lse, "lse"), tensor_of(forward.lse_remainder, "lse_remainder")]
        tensors += [tensor_of(array, name, dtype) for name, array in (("q", q), ("k", k), ("v", v))]
        self.ring.attention_handles.ring_used_here()
        check(library.c.annulus_backward(self._handle, *map(byref, tensors), byref(given), byref(results)))
        return Gradients(dq, dk, dv, dbias, dsinks, d_joint_keys, d_joint_values)

    def plan(self, pass_: str = "forward") -> Plan:
        """The plan of the last call of a pass, "forward" or "backward"."""
        handle = c_void_p()
        check(library.c.annulus_attention_plan(self._handle, place(pass_, library.PASSES, "pass"), byref(handle)))
        return Plan(handle)


def _split(given: Dict[str, Any]) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """Operands, and options. Raises TypeError for other names."""
    given = by_new_names(given)
    operands = {name: given.pop(name) for name in OPERANDS if name in given}
    options_by_name(given, OPERANDS)
    return operands, given


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, *, dtype: Optional[str] = None,
              **operands_and_options: Any) -> Tuple[np.ndarray, np.ndarray]:
    """Attention on one rank: output, lse. Shapes and operands: see the package; options: see Options."""
    operands, options = _split(operands_and_options)
    return Attention(**options).forward(q, k, v, dtype=dtype, **operands)[:2]


#: The axis of an operand along which its rows are sharded, and the side.
_SHARDED = {"bias": (2, "query"), "mask": (2, "query"), "query_documents": (1, "query"), "key_documents": (1, "key")}


class _Shards:
    """Global arrays, and the rows of each simulated rank in them."""

    def __init__(self, ranks: int, q: np.ndarray, k: np.ndarray, v: np.ndarray, operands: Dict[str, Any],
                 options: Options, dtype: Optional[str]):
        self.q, self.k, self.v = np.asarray(q), np.asarray(k), np.asarray(v)
        for name, array in (("q", self.q), ("k", self.k), ("v", self.v)):
            if array.ndim != 4:
                raise ShapeError(f"{name} has {array.ndim} axes; expected 4")
        self.operands = {name: np.asarray(array) for name, array in operands.items() if array is not None}
        self.dtype = dtype
        tokens = {"query": self.q.shape[1], "key": self.k.shape[1]}
        self.expect_rows("v", self.v, 1, "key", tokens)
        for name, (axis, side) in _SHARDED.items():
            if name in self.operands:
                self.expect_rows(name, self.operands[name], axis, side, tokens)
        self.rows = [{side: positions(options.sharding, rank, ranks, tokens[side], side) for side in tokens}
                     for rank in range(max(ranks, 1))]

    @staticmethod
    def expect_rows(name: str, array: np.ndarray, axis: int, side: str, tokens: Dict[str, int]) -> None:
        """Refuses an array that does not have a row for each position of a side: rows beyond would never be read."""
        if array.ndim <= axis or array.shape[axis] != tokens[side]:
            raise ShapeError(f"{name} has shape {array.shape}; expected {tokens[side]} rows along axis {axis}, "
                             f"one for each {side}")

    def own(self, ring: Ring) -> Tuple[List[np.ndarray], Dict[str, np.ndarray]]:
        """q, k, v and operands of a rank."""
        rows = self.rows[ring.rank]
        own = [self.q[:, rows["query"]], self.k[:, rows["key"]], self.v[:, rows["key"]]]
        return own, {name: array.take(rows[_SHARDED[name][1]], _SHARDED[name][0]) if name in _SHARDED else array
                     for name, array in self.operands.items()}

    def whole(self, shards: List[np.ndarray], axis: int, side: str) -> np.ndarray:
        """The global array of the shards of all ranks."""
        joined = np.concatenate(shards, axis)
        return joined.take(np.argsort(np.concatenate([rows[side] for rows in self.rows])), axis)


def ring(ranks: int, q: np.ndarray, k: np.ndarray, v: np.ndarray, *, dtype: Optional[str] = None,
         timeout: float = 600.0, **operands_and_options: Any) -> Tuple[np.ndarray, np.ndarray]:
    """Attention over `ranks` simulated ranks, which hold the shards of global arrays: global output, lse."""
    operands, options = _split(operands_and_options)
    shards = _Shards(ranks, q, k, v, operands, Options(**options), dtype)

    def on_rank(one: Ring) -> Forward:
        (q, k, v), own = shards.own(one)
        return Attention(one, **options).forward(q, k, v, dtype=dtype, **own)

    results = run_ring(ranks, on_rank, timeout)
    return (shards.whole([one.output for one in results], 1, "query"),
            shards.whole([one.lse for one in results], 2, "query"))


def ring_gradients(ranks: int, dout: np.ndarray, q: np.ndarray, k: np.ndarray, v: np.ndarray, *,
                   bias_gradient: bool = False, dtype: Optional[str] = None, timeout: float = 600.0,
                   **operands_and_options: Any) -> Gradients:
    """Forward and backward pass over simulated ranks: the global gradients of a scalar whose gradient by the output is
    dout [batch, queries, query_heads, value_dim]."""
    operands, options = _split(operands_and_options)
    shards = _Shards(ranks, q, k, v, operands, Options(**options), dtype)
    dout = np.asarray(dout)
    shards.expect_rows("dout", dout, 1, "query", {"query": shards.q.shape[1]})

    def on_rank(one: Ring) -> Gradients:
        (q, k, v), own = shards.own(one)
        attention = Attention(one, **options)
        forward = attention.forward(q, k, v, dtype=dtype, **own)
        own_dout = dout.take(shards.rows[one.rank]["query"], 1)
        return attention.backward(own_dout, forward, q, k, v, bias_gradient=bias_gradient, dtype=dtype, **own)

    results = run_ring(ranks, on_rank, timeout)
    dbias = shards.whole([one.dbias for one in results], 2, "query") if bias_gradient else None
    return Gradients(shards.whole([one.dq for one in results], 1, "query"),
                     shards.whole([one.dk for one in results], 1, "key"),
                     shards.whole([one.dv for one in results], 1, "key"), dbias, *results[0][4:])
