"""The plan of a pass: steps, bytes and memory of every rank, without data."""

from __future__ import annotations

import weakref
from ctypes import byref, c_int, c_void_p
from typing import Any, NamedTuple, Optional, Tuple

from . import library
from .errors import ShapeError, by_new_names, place
from .library import check, integer_of
from .options import options_by_name, options_of


class RankPlan(NamedTuple):
    queries: int
    keys: int
    multiply_adds: int
    bytes_sent: int
    peak_buffer_bytes: int


class StepPlan(NamedTuple):
    owner: int  #: rank whose rows are worked on
    visible_pairs: int
    multiply_adds: int
    prefetched_bytes: int  #: sent ahead of the compute of the step
    carried_bytes: int  #: sent after it


class Plan:
    """ranks, steps, rotation ("keys" or "queries"), bytes_sent by all ranks, imbalance: largest work of a rank over the
    mean."""

    def __init__(self, handle: c_void_p):
        self._handle = handle
        weakref.finalize(self, library.c.annulus_plan_free, handle)
        totals = library.PlanTotals()
        check(library.c.annulus_plan_get_totals(handle, byref(totals)))
        self.ranks: int = totals.ranks
        self.steps: int = totals.steps
        self.rotation: str = library.ROTATIONS[totals.rotation]
        self.bytes_sent: int = totals.bytes_sent
        self.imbalance: float = totals.imbalance

    def rank(self, rank: int) -> RankPlan:
        found = library.RankPlan()
        check(library.c.annulus_plan_get_rank(self._handle, integer_of(rank, c_int, "rank"), byref(found)))
        return RankPlan(*(getattr(found, name) for name in RankPlan._fields))

    def step(self, rank: int, step: int) -> StepPlan:
        found = library.StepPlan()
        check(library.c.annulus_plan_get_step(self._handle, integer_of(rank, c_int, "rank"), integer_of(step, c_int, "step"),
                                            byref(found)))
        return StepPlan(*(getattr(found, name) for name in StepPlan._fields))


def plan(ranks: int, tokens: Optional[int] = None, *, heads: int, head_dim: int, queries: Optional[int] = None,
         keys: Optional[int] = None, kv_heads: Optional[int] = None, value_dim: Optional[int] = None, batch: int = 1,
         dtype: str = "float32", pass_: str = "forward", bias: Tuple[int, int] = (0, 0), bias_gradient: bool = False,
         mask: bool = False, document_ids: bool = False, sinks: int = 0, joint_keys: int = 0, zero_copy: bool = False,
         **options: Any) -> Plan:
    """The plan of a call. tokens: queries and keys, where they are as many. Defaults: kv_heads as heads, value_dim as
    head_dim. bias: its extents (batch, heads). mask, document_ids: whether a boolean mask and document ids are given.
    sinks: sink logits per head. joint_keys: keys that all ranks hold. zero_copy: ranks read each other's memory, as
    simulated ranks do. Options: see Options."""
    options = by_new_names(options)
    document_ids = options.pop("document_ids", document_ids)
    queries, keys = (tokens if given is None else given for given in (queries, keys))
    if queries is None or keys is None:
        raise ShapeError("no sequence length is given; accepted: tokens, or queries and keys")
    request = library.PlanRequest(
        pass_=place(pass_, library.PASSES, "pass_"), dtype=place(dtype, library.DTYPES, "dtype"), ranks=ranks,
        batch=batch, query_heads=heads, kv_heads=heads if kv_heads is None else kv_heads, head_dim=head_dim,
        value_dim=head_dim if value_dim is None else value_dim, queries=queries, keys=keys, bias_batch=bias[0],
        bias_heads=bias[1], bias_gradient=bool(bias_gradient), mask=bool(mask), document_ids=bool(document_ids),
        zero_copy=bool(zero_copy), sinks=sinks, joint_keys=joint_keys)
    handle = c_void_p()
    check(library.c.annulus_plan_create(byref(request), byref(options_of(options_by_name(options))), byref(handle)))
    return Plan(handle)
