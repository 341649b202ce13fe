"""Problems for the Python module, with the results of dense attention in float64."""

import os
import sys

import numpy as np

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "command", "support"))
import dense_attention


def expected(q, k, v, dout, operands, options):
    """Results of dense attention for arguments of the module; operands and options are dictionaries."""
    operands, options = dict(operands), dict(options)
    window = options.pop("window", None)
    dropout = options.pop("dropout", 0)
    seed = options.pop("seed", 0)
    segments = [operands.pop(name, None) for name in ("query_documents", "key_documents")]
    for name in ("sharding", "rotation", "checked", "require_finite", "threads"):
        options.pop(name, None)
    for name, other in (("softmax_scale", "scale"), ("logit_softcap", "softcap")):
        if name in options:
            options[other] = options.pop(name)
    return dense_attention.attend(
        q, k, v, dout, segments=None if segments[0] is None else segments,
        window=None if window is None else tuple(-1 if side is None else side for side in window),
        dropout=(dropout, seed) if dropout else None, **operands, **options)


def error_of(found, wanted):
    """Largest relative error of any result. `found`: dictionary by the names of dense attention."""
    return max(dense_attention.relative_error(np.asarray(found[name], np.float64), wanted[name]) for name in found)


def random_arrays(seed=0, batch=2, queries=23, keys=23, heads=4, kv_heads=2, head_dim=6, value_dim=5):
    """q, k, v and dout in float64."""
    rng = np.random.default_rng(seed)
    shapes = ((queries, heads, head_dim), (keys, kv_heads, head_dim), (keys, kv_heads, value_dim),
              (queries, heads, value_dim))
    return [rng.standard_normal((batch,) + shape) for shape in shapes]


def named(output, lse, gradients):
    """Results by the names of dense attention, without those that are None."""
    results = {"out": output, "lse": lse, **gradients._asdict()}
    return {name: array for name, array in results.items() if array is not None}
