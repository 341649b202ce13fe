"""Options of attention, and which rank owns which positions."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_int, c_int64, c_uint8
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

import numpy as np

from . import library
from .errors import ShapeError, UnsupportedError, by_new_names, place, refuse_name
from .library import check, integer_of


@dataclass(frozen=True)
class Striped:
    """Blocks of `block` positions, assigned round-robin."""

    block: int = 1


@dataclass(frozen=True)
class ExplicitMap:
    """queries[rank] and keys[rank] (default: as queries): the positions that a rank owns, in the order of its rows."""

    queries: Sequence[Sequence[int]]
    keys: Optional[Sequence[Sequence[int]]] = None


@dataclass(frozen=True)
class Link:
    """A link from one rank to another: seconds until the first byte arrives, bytes per second (0: unlimited)."""

    latency: float = 0.0
    bandwidth: float = 0.0


@dataclass(frozen=True)
class Rates:
    """Rates of ranks and links, with the meaning of annulus::Rates in C++; 0 flops: unlimited."""

    flops: float = 0.0
    step_overhead: float = 0.0
    near: Link = Link()
    far: Link = Link()
    group: int = 0
    overlap: float = 1.0


@dataclass(frozen=True)
class BlockMask:
    """Query q may see key k if visible[q // query_block][k // key_block]; visible: [query blocks, key blocks]."""

    query_block: int
    key_block: int
    visible: Any


#: "contiguous", "striped", "zigzag", Striped(block) or ExplicitMap(queries, keys)
Sharding = Union[str, Striped, ExplicitMap]


@dataclass(frozen=True)
class Options:
    """Options of attention, with the meaning of annulus::Options in C++. Equal on all ranks, but for threads."""

    causal: bool = False
    window: Tuple[Optional[int], Optional[int]] = (None, None)  # (left, right); None: unbounded
    sink_tokens: int = 0
    chunk: int = 0
    block_mask: Optional[BlockMask] = None  # hides blocks of queries x keys
    softmax_scale: Optional[float] = None  # None: 1 / sqrt(head_dim)
    logit_softcap: float = 0.0
    dropout: float = 0.0
    seed: int = 0
    sharding: Sharding = "contiguous"
    query_offset: Optional[int] = None
    rotation: str = "automatic"  # or "keys", "queries"
    schedule: str = "ring"  # or "both_directions", "two_levels", "tiles", "all_gather", "automatic", "double_ring"
    ranks_per_group: int = 0  # in schedules that have groups; 0: near ranks (double_ring), or the fewest bytes
    rates: Optional[Rates] = None  # by which "automatic" takes the least estimated time; None: the fewest bytes
    wire: str = "as_stored"  # or "bfloat16", "half": type in which float32 and float64 operands travel
    reproducible: bool = False  # the same bits for any number of ranks
    reproducible_leaf: int = 1024  # positions of a leaf of a reproducible call
    checked: Optional[bool] = None
    require_finite: bool = False
    threads: int = 0  # of this rank; 0: its share of the cores


def options_by_name(given: Dict[str, Any], others: Sequence[str] = ()) -> Options:
    """Options of these names. Raises TypeError for another name. others: names that the caller accepts as well."""
    given, names = by_new_names(given), [field.name for field in fields(Options)]
    for name in given:
        if name not in names:
            refuse_name("option or operand" if others else "option", name, [*names, *others])
    return Options(**given)


def _require_numbers(given: Options) -> None:
    """Raises UnsupportedError for an option whose value is no number where one is needed."""
    whole = ("sink_tokens", "chunk", "seed", "query_offset", "ranks_per_group", "reproducible_leaf", "threads")
    real = ("softmax_scale", "logit_softcap", "dropout")
    for names, kind, accepted in ((whole, Integral, "a whole number"), (real, Real, "a number")):
        for name in names:
            value = getattr(given, name)
            unset = value is None and getattr(Options, name) is None
            if not unset and not isinstance(value, kind):
                raise UnsupportedError(f"{name} is {value!r}; accepted: {accepted}")


def options_of(given: Options) -> Any:
    """annulus_options."""
    _require_numbers(given)
    options = library.c.annulus_default_options()
    options.causal, options.reproducible = bool(given.causal), bool(given.reproducible)
    if (not isinstance(given.window, (tuple, list)) or len(given.window) != 2
            or any(side is not None and not isinstance(side, Integral) for side in given.window)):
        raise UnsupportedError(f"window is {given.window!r}; accepted: a pair (left, right) of whole numbers, None for an "
                               "unbounded side")
    options.window_left, options.window_right = (-1 if side is None else side for side in given.window)
    options.sink_tokens, options.chunk, options.threads = given.sink_tokens, given.chunk, given.threads
    if given.softmax_scale is not None:
        options.has_softmax_scale, options.softmax_scale = 1, given.softmax_scale
    options.logit_softcap, options.dropout_probability = given.logit_softcap, given.dropout
    if not 0 <= given.seed < 2**64:
        raise UnsupportedError(f"seed is {given.seed}; accepted: 0 to 2**64 - 1")
    options.dropout_seed = given.seed
    options.sharding = sharding_of(given.sharding)
    if given.query_offset is not None:
        options.has_query_offset, options.query_offset = 1, given.query_offset
    options.rotation = place(given.rotation, library.ROTATIONS, "rotation")
    options.schedule = place(given.schedule, library.SCHEDULES, "schedule")
    options.ranks_per_group = given.ranks_per_group
    options.wire = place(given.wire, library.WIRES, "wire")
    for name, kind in (("rates", Rates), ("block_mask", BlockMask)):
        value = getattr(given, name)
        if value is not None and not isinstance(value, kind):
            raise UnsupportedError(f"{name} is of type {type(value).__name__}; accepted: annulus.{kind.__name__}")
    if given.rates is not None:
        options.has_rates, options.rates = 1, rates_of(given.rates)
    if given.block_mask is not None:
        options.blocks = blocks_of(given.block_mask)
    options.reproducible_leaf = given.reproducible_leaf
    options.checked = -1 if given.checked is None else bool(given.checked)
    options.require_finite = bool(given.require_finite)
    return options


def rates_of(given: Rates) -> Any:
    """annulus_rates."""
    links = [library.Link(link.latency, link.bandwidth) for link in (given.near, given.far)]
    return library.Rates(given.flops, given.step_overhead, *links, given.group, given.overlap)


def blocks_of(given: BlockMask) -> Any:
    """annulus_block_mask."""
    visible = np.asarray(given.visible)
    if visible.ndim != 2:
        raise ShapeError(f"visible of the block mask has {visible.ndim} axes; expected 2: blocks of queries and of keys")
    flat = [int(bool(block)) for block in visible.flat]
    # A pointer to an array keeps it alive, and a structure keeps the pointers that are assigned to it.
    return library.BlockMask(given.query_block, given.key_block, *visible.shape,
                             ctypes.cast((c_uint8 * max(len(flat), 1))(*flat), POINTER(c_uint8)))


def sharding_of(given: Sharding) -> Any:
    """annulus_sharding."""
    sharding = library.Sharding(block=1)
    if isinstance(given, Striped):
        sharding.kind, sharding.block = library.SHARDINGS.index("striped"), given.block
    elif isinstance(given, ExplicitMap):
        sharding.kind, sharding.map_ranks = library.SHARDINGS.index("explicit_map"), len(given.queries)
        sharding.map_query_lengths, sharding.map_queries = _lists(given.queries)
        if given.keys is not None:
            if len(given.keys) != len(given.queries):
                raise ShapeError(f"ExplicitMap has {len(given.queries)} ranks of queries and {len(given.keys)} of "
                                 "keys; they must be equal")
            sharding.map_key_lengths, sharding.map_keys = _lists(given.keys)
    else:
        sharding.kind = place(given, library.SHARDINGS[:-1], "sharding")
    return sharding


def _lists(rows: Sequence[Sequence[int]]) -> Tuple[Any, Any]:
    flat = [position for row in rows for position in row]
    # A pointer to an array keeps it alive, and a structure keeps the pointers that are assigned to it.
    return (ctypes.cast(_int64s(values, "a position of the map"), POINTER(c_int64))
            for values in ([len(row) for row in rows], flat))


def _int64s(values: Sequence[int], name: str) -> Any:
    """An array of at least one element. Raises for a value that is no whole number of 64 bits."""
    return (c_int64 * max(len(values), 1))(*(integer_of(value, c_int64, name) for value in values))


def balanced_sharding(documents: Sequence[int], ranks: int, block: int = 0, **options: Any) -> ExplicitMap:
    """Positions of each rank that balance the work where documents of these lengths are packed one after another.

    block: positions that stay together; 0: about 32 blocks for each rank. options: those of Options; the mask decides,
    and a block mask is refused.
    """
    given, count = _int64s(documents, "the length of a document"), integer_of(ranks, c_int, "ranks")
    tokens = sum(max(int(length), 0) for length in documents)
    lengths, found = (c_int64 * max(ranks, 1))(), np.empty(tokens, np.int64)
    check(library.c.annulus_balanced_map(given, len(documents), byref(options_of(options_by_name(options))), count,
                                         integer_of(block, c_int64, "block"), lengths,
                                         found.ctypes.data_as(POINTER(c_int64))))
    return ExplicitMap([part.tolist() for part in np.split(found, np.cumsum(lengths)[:-1])])


def shard_lengths(sharding: Sharding, ranks: int, tokens: int, side: str = "query") -> List[int]:
    """Number of the `tokens` positions that each rank owns. side: "query" or "key"."""
    count = integer_of(ranks, c_int, "ranks")
    lengths = (c_int64 * max(ranks, 1))()
    check(library.c.annulus_shard_lengths(byref(sharding_of(sharding)), place(side, library.SIDES, "side"), count,
                                          integer_of(tokens, c_int64, "tokens"), lengths))
    return list(lengths)


def positions(sharding: Sharding, rank: int, ranks: int, tokens: int, side: str = "query") -> np.ndarray:
    """Global positions of the rows of a rank among `tokens`, int64 [rows], in the order of its rows."""
    lengths = (c_int64 * max(ranks, 1))(*shard_lengths(sharding, ranks, tokens, side))
    found = np.empty(lengths[rank] if 0 <= rank < ranks else 0, np.int64)
    check(library.c.annulus_shard_positions(byref(sharding_of(sharding)), place(side, library.SIDES, "side"),
                                            integer_of(rank, c_int, "rank"), ranks, lengths,
                                            found.ctypes.data_as(POINTER(c_int64))))
    return found
