"""Model of GpSimdE: index patterns, build-time masks, reduction over partitions. SBUF only."""
import numpy as np

from .core import instruction
from .dtypes import float32
from .faults import refuse
from .operands import SBUF_ONLY, require_number, require_operator, require_same_shape, require_tile, rows
from .operators import COMPARISONS, OPERATORS

PARTITION_REDUCTIONS = tuple(OPERATORS[n] for n in ("add", "maximum", "bitwise_and", "bitwise_or"))


def _indices(dst, pattern, offset, channel_multiplier):
    """int32 values offset + p * channel_multiplier + sum of step * i, as [P, F]."""
    pattern = [tuple(pair) for pair in pattern]
    for value in [v for pair in pattern for v in pair] + [offset, channel_multiplier]:
        if type(value) is not int:
            refuse("pattern", f"{value!r}; integers known at build time only")
    if not 1 <= len(pattern) <= 4:
        refuse("pattern", f"{len(pattern)} dimensions; 1 to 4")
    partitions = dst.shape[0]
    values = (offset + channel_multiplier * np.arange(partitions, dtype=np.int64)).reshape(partitions, 1)
    for step, count in pattern:
        values = (values[:, :, None] + step * np.arange(count, dtype=np.int64)).reshape(partitions, -1)
    if values.shape[1] != dst.per_partition:
        refuse("pattern", f"{values.shape[1]} values per partition for {dst.per_partition} elements of dst")
    if values.min() < -2**31 or values.max() >= 2**31:
        refuse("pattern", "values leave int32")
    return values.astype(np.int32)


@instruction
def iota(dst, pattern, offset=0, channel_multiplier=0, name=None):
    """dst[p, i..] = offset + p * channel_multiplier + sum of step * i, p counted from the tile's first row."""
    require_tile(dst, "dst", SBUF_ONLY)
    dst.write(_indices(dst, pattern, offset, channel_multiplier))


@instruction
def affine_select(dst, pattern, channel_multiplier, on_true_tile, on_false_value, cmp_op=OPERATORS["equal"], offset=0,
                  name=None):
    """Keeps on_true_tile where the comparison of iota's index value with 0 is true, else writes the fill."""
    require_tile(dst, "dst", SBUF_ONLY)
    require_tile(on_true_tile, "on_true_tile", SBUF_ONLY)
    require_same_shape(dst=dst, on_true_tile=on_true_tile)
    require_operator(cmp_op, "cmp_op", "binary", COMPARISONS)
    require_number(on_false_value, "on_false_value")
    keep = cmp_op.binary(_indices(dst, pattern, offset, channel_multiplier), 0) != 0
    dst.write(np.where(keep, rows(on_true_tile), np.float32(on_false_value)))


@instruction
def tensor_partition_reduce(dst, op, data, name=None):
    """dst[0, f] = reduction of data over its partitions."""
    require_tile(dst, "dst", SBUF_ONLY)
    require_tile(data, "data", SBUF_ONLY)
    require_operator(op, "op", "fold", PARTITION_REDUCTIONS)
    if dst.shape[0] != 1 or dst.per_partition != data.per_partition:
        refuse("dst", f"shape {dst.shape}; one partition with {data.per_partition} elements")
    if op.bitwise:
        if not (data.dtype.is_integer and dst.dtype is data.dtype):
            refuse("data", "a bitwise reduction takes integers of dst's dtype")
        dst.write(op.fold.reduce(data.read(), axis=0), exact=True)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        dst.write(op.fold.reduce(rows(data), axis=0, dtype=float32.kept_as))
