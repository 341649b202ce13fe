"""The structures and functions of annulus.h, by ctypes."""

from __future__ import annotations

import ctypes
import operator
import os
from ctypes import POINTER, c_char_p, c_double, c_int, c_int64, c_uint8, c_uint64, c_void_p
from typing import Any, List, Sequence, Tuple

from .errors import CommunicationError, Error as _Error, OutOfMemoryError, ShapeError, UnsupportedError

#: Least and largest value of the types of whole numbers.
_RANGES = {c_int: (-2**31, 2**31 - 1), c_int64: (-2**63, 2**63 - 1), c_uint64: (0, 2**64 - 1)}


def integer_of(value: Any, kind: Any, name: str) -> Any:
    """A whole number of a type of ctypes. Raises UnsupportedError for one that it cannot hold, of which ctypes would
    take the lower bits, and TypeError for what is no whole number."""
    number = operator.index(value)
    least, largest = _RANGES[kind]
    if not least <= number <= largest:
        raise UnsupportedError(f"{name} is {number}; accepted: {least} to {largest}")
    return kind(number)


class _Structure(ctypes.Structure):
    """A structure that refuses whole numbers out of range."""

    def __setattr__(self, name: str, value: Any) -> None:
        kind = dict(self._fields_).get(name)
        super().__setattr__(name, integer_of(value, kind, name.rstrip("_")) if kind in _RANGES else value)


def _structure(name: str, fields: Sequence[Tuple[str, Any]]) -> type:
    return type(name, (_Structure,), {"_fields_": list(fields)})


def _fields(kind: Any, names: str) -> List[Tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


Error = _structure("Error", _fields(c_int, "status rank step neighbour") + [("message", c_char_p)])
Tensor = _structure("Tensor", [("data", c_void_p), ("dtype", c_int), ("num_axes", c_int),
                               ("extents", c_int64 * 4), ("strides", c_int64 * 4)])
Sharding = _structure("Sharding", [("kind", c_int), ("block", c_int64), ("map_ranks", c_int)] + _fields(
    POINTER(c_int64), "map_query_lengths map_queries map_key_lengths map_keys"))
RingOptions = _structure("RingOptions", [("timeout_ms", c_int64), ("zero_copy", c_int)])
Link = _structure("Link", _fields(c_double, "latency bandwidth"))
Rates = _structure("Rates", _fields(c_double, "flops step_overhead") + _fields(Link, "near_link far_link") + [
    ("group", c_int), ("overlap", c_double)])
BlockMask = _structure("BlockMask", _fields(c_int64, "query_block key_block query_blocks key_blocks") + [
    ("visible", POINTER(c_uint8))])
Options = _structure("Options", [("causal", c_int)] + _fields(
    c_int64, "window_left window_right sink_tokens chunk") + [("has_softmax_scale", c_int)] + _fields(
    c_double, "softmax_scale logit_softcap dropout_probability") + [
        ("dropout_seed", c_uint64), ("sharding", Sharding), ("has_query_offset", c_int), ("query_offset", c_int64)
    ] + _fields(c_int, "rotation schedule ranks_per_group wire reproducible") + [("reproducible_leaf", c_int64)] + _fields(
        c_int, "checked require_finite threads has_rates") + [("rates", Rates), ("blocks", BlockMask)])
Operands = _structure("Operands", _fields(Tensor, "bias mask query_documents key_documents sinks joint_keys joint_values") + [
    ("has_call", c_int), ("call", c_int64), ("forward_given", c_int)])
Gradients = _structure("Gradients", _fields(Tensor, "dq dk dv dbias dsinks d_joint_keys d_joint_values"))
PlanRequest = _structure("PlanRequest", _fields(c_int, "pass_ dtype ranks") + _fields(
    c_int64, "batch query_heads kv_heads head_dim value_dim queries keys bias_batch bias_heads") + _fields(
    c_int, "bias_gradient mask document_ids zero_copy") + _fields(c_int64, "sinks joint_keys"))
PlanTotals = _structure("PlanTotals", _fields(c_int, "ranks steps rotation") + [
    ("bytes_sent", c_int64), ("imbalance", c_double)])
RankPlan = _structure("RankPlan", _fields(c_int64, "queries keys multiply_adds bytes_sent peak_buffer_bytes"))
StepPlan = _structure("StepPlan", [("owner", c_int)] + _fields(
    c_int64, "visible_pairs multiply_adds prefetched_bytes carried_bytes"))
RankFunction = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p)

DTYPES = ("float64", "float32", "float16", "bfloat16", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16",
          "uint32", "uint64")
SHARDINGS = ("contiguous", "striped", "zigzag", "explicit_map")
ROTATIONS = ("automatic", "keys", "queries")
SCHEDULES = ("ring", "both_directions", "two_levels", "tiles", "all_gather", "automatic", "double_ring")
WIRES = ("as_stored", "bfloat16", "half")
ZERO_COPY = ("automatic", "never", "always")
SIDES = ("query", "key")
PASSES = ("forward", "backward")


def load(name: str) -> ctypes.CDLL:
    """The library in the folder ANNULUS_LIBRARY_DIR, if that is set; else in the wheel, in the installation that this
    package is part of, or on the path of the dynamic linker."""
    file = "lib" + name + ".so"
    here = os.path.dirname(os.path.abspath(__file__))
    chosen = os.environ.get("ANNULUS_LIBRARY_DIR")
    folders = [chosen] if chosen else [here, os.path.dirname(os.path.dirname(os.path.dirname(here)))]
    paths = [os.path.join(folder, file) for folder in folders]
    try:
        return ctypes.CDLL(next(filter(os.path.exists, paths), paths[0] if chosen else file))
    except OSError as error:
        raise OSError(f"annulus cannot load {file}: {error}; accepted: the library in one of {folders}, or in the "
                      "folder that ANNULUS_LIBRARY_DIR names") from None


c = load("annulus_c")
c.annulus_version.restype = c_char_p
c.annulus_last_error.restype = Error
c.annulus_default_options.restype = Options
for _name in ("ring_rank", "ring_size", "ring_free", "attention_free", "plan_free"):
    getattr(c, "annulus_" + _name).argtypes = [c_void_p]
c.annulus_run_ring.argtypes = [c_int, RankFunction, c_void_p, POINTER(RingOptions)]


def check(status: int) -> None:
    """Raises the last error of this thread unless the status is that of success."""
    if status == 0:
        return
    error = c.annulus_last_error()
    kinds = {kind.status: kind for kind in (ShapeError, UnsupportedError, CommunicationError, OutOfMemoryError)}
    message = error.message.decode(errors="replace")
    raise kinds.get(status, _Error)(message, error.rank, error.step, error.neighbour)
