"""Exact ring attention on NumPy arrays, forward and backward, on the library annulus_c.

    output, lse = annulus.attention(q, k, v, causal=True)                       # one rank
    output, lse = annulus.ring(4, q, k, v, causal=True, sharding="zigzag")      # four simulated ranks
    attention = annulus.Attention(annulus.MpiRing(comm), causal=True)           # the ranks of an mpi4py communicator

Arrays, with any strides, in the axis order [batch, sequence, heads, dim]:
    q [batch, queries, query_heads, head_dim], k [batch, keys, kv_heads, head_dim],
    v [batch, keys, kv_heads, value_dim], output and dout [batch, queries, query_heads, value_dim],
    lse [batch, query_heads, queries], natural log
Elements are float64, float32, float16 or bfloat16 (of ml_dtypes, or arrays of uint16 with dtype="bfloat16"), the same
in q, k, v, dout, output, bias and joint keys; those of lse and sinks are float32, with float64 operands float64.

Operands, all optional and given by name:
    bias [batch|1, query_heads|1, queries, all keys], added to the logits
    mask, of the same shape, bool or integers: True, or not 0, may be seen
    query_documents [batch, queries] and key_documents [batch, keys]: document ids, integers; 0 and less is padding
    sinks [query_heads] or [query_heads, n]: sink logits
    joint_keys [batch, n, kv_heads, head_dim] and joint_values [batch, n, kv_heads, value_dim]: keys that all ranks hold
In attention, ring and ring_gradients they stand among the options. In Attention, each rank passes the rows of its
shard, whose positions are positions(sharding, rank, ranks, tokens).
"""

from .arrays import Forward, Gradients
from .attention import Attention, attention, ring, ring_gradients
from .autograd import torch_attention
from .errors import CommunicationError, Error, OutOfMemoryError, ShapeError, UnsupportedError
from .library import c as _c
from .options import BlockMask, ExplicitMap, Link, Options, Rates, Sharding, Striped, balanced_sharding, positions, shard_lengths
from .plan import Plan, RankPlan, StepPlan, plan
from .rings import MpiRing, Ring, run_ring

__version__: str = _c.annulus_version().decode()
__all__ = ["Attention", "BlockMask", "CommunicationError", "Error", "ExplicitMap", "Forward", "Gradients", "Link",
           "MpiRing", "Options", "OutOfMemoryError", "Plan", "RankPlan", "Rates", "Ring", "ShapeError", "Sharding", "StepPlan", "Striped",
           "UnsupportedError", "attention", "balanced_sharding", "plan", "positions", "ring", "ring_gradients", "run_ring", "shard_lengths",
           "torch_attention"]
