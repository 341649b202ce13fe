"""Model of VectorE selections: masks by range or predicate, shuffles inside quadrants, and gen4's exponential."""
import numpy as np

from .accumulators import accumulate, require_reduction
from .core import current, instruction
from .dtypes import float32, named, tfloat32
from .enums import nc_version
from .enums import reduce_cmd as commands
from .faults import refuse
from .operands import (per_partition_value, require_column, require_destination, require_not_both_psum,
                       require_operator,
                       require_same_shape, require_start_partition, require_tile, rows)
from .operators import ADD, COMPARISONS, MAXIMUM
from .storage import PARTITIONS
from .tensor import Tensor

FP32_MIN = np.float32(-3.4028235e38)
LARGEST_INDEX = 2**24
QUADRANT = 32
UNTOUCHED = 255


@instruction
def range_select(dst, on_true_tile, comp_op0, comp_op1, bound0, bound1, reduce_cmd=commands.reset_reduce,
                 reduce_res=None,
                 reduce_op=MAXIMUM, range_start=0, on_false_value=float(FP32_MIN), name=None):
    """Keeps element i = range_start + free index where (i comp_op0 bound0) and (i comp_op1 bound1), else the fill."""
    if current().target < nc_version.gen3:
        refuse("", "needs gen3 or later")
    require_destination(dst)
    require_tile(on_true_tile, "on_true_tile")
    require_same_shape(dst=dst, on_true_tile=on_true_tile)
    if on_true_tile.dtype.is_integer:
        refuse("on_true_tile", f"dtype {on_true_tile.dtype.name}; floating types only")
    for position, operator in ((0, comp_op0), (1, comp_op1)):
        require_operator(operator, f"comp_op{position}", "binary", COMPARISONS[:5])
    partitions, length = dst.shape[0], dst.per_partition
    require_column(bound0, "bound0", partitions, fp32=True)
    require_column(bound1, "bound1", partitions, fp32=True)
    require_reduction(reduce_op, (MAXIMUM,))
    if type(range_start) is not int:
        refuse("range_start", f"{range_start!r}; an int known at build time")
    if range_start < -LARGEST_INDEX or range_start + length > LARGEST_INDEX:
        refuse("range_start", f"indices {range_start}..{range_start + length} are exact in float32 below 2^24 only")
    if not isinstance(on_false_value, float) or np.float32(on_false_value) != FP32_MIN:
        refuse("on_false_value", f"{on_false_value!r}; it must be -3.4028235e38")
    if reduce_res is not None and reduce_res.dtype is not float32:
        refuse("reduce_res", f"dtype {reduce_res.dtype.name}; it must be float32")
    index = (range_start + np.arange(length)).astype(np.float32)[None, :]
    keep = (comp_op0.binary(index, rows(bound0)) != 0) & (comp_op1.binary(index, rows(bound1)) != 0)
    values = np.where(keep, rows(on_true_tile), FP32_MIN)
    dst.write(values)
    accumulate("vector_accumulators", MAXIMUM, values, (dst.start_partition, partitions), reduce_cmd, reduce_res,
               idle_clobbers=True)


def _chosen(predicate, reverse):
    chosen = predicate.read().reshape(predicate.shape[0], -1) != 0
    return ~chosen if reverse else chosen


def _require_predicate(predicate, names):
    require_tile(predicate, "predicate")
    if predicate.dtype.name not in names:
        refuse("predicate", f"dtype {predicate.dtype.name}; accepted: {list(names)}")


@instruction
def select_reduce(dst, predicate, on_true, on_false, reduce_res=None, reduce_cmd=commands.idle, reduce_op=MAXIMUM,
                  reverse_pred=False, name=None):
    """dst = on_true where predicate else on_false (float32 number or [P,1]); reduce_res = running maximum."""
    require_destination(dst)
    require_tile(on_true, "on_true")
    _require_predicate(predicate, ("int8", "uint8", "int16", "uint16"))
    require_same_shape(dst=dst, predicate=predicate, on_true=on_true)
    require_not_both_psum(on_true=on_true, predicate=predicate)
    if on_true.dtype in (tfloat32, named("int32"), named("uint32")):
        refuse("on_true", f"dtype {on_true.dtype.name} is not accepted")
    require_reduction(reduce_op, (MAXIMUM,))
    other = per_partition_value(on_false, "on_false", dst.shape[0])
    values = np.where(_chosen(predicate, reverse_pred), rows(on_true), other)
    dst.write(values)
    accumulate("vector_accumulators", MAXIMUM, values, (dst.start_partition, dst.shape[0]), reduce_cmd, reduce_res,
               idle_clobbers=True)


@instruction
def tensor_copy_predicated(dst, src, predicate, reverse_pred=False, name=None):
    """dst = src where predicate; the other elements are unchanged."""
    require_destination(dst)
    _require_predicate(predicate, ("uint8", "uint16", "uint32"))
    require_same_shape(dst=dst, predicate=predicate)
    chosen = _chosen(predicate, reverse_pred)
    if isinstance(src, Tensor):
        require_tile(src, "src")
        require_same_shape(dst=dst, src=src)
        require_not_both_psum(src=src, predicate=predicate)
        if src.dtype is not dst.dtype:
            refuse("src", f"dtype {src.dtype.name} differs from {dst.dtype.name} of dst")
        dst.write(src.read().reshape(chosen.shape), where=chosen, exact=True)
    else:
        value = per_partition_value(src, "src", dst.shape[0])
        dst.write(np.full(chosen.shape, value, np.float32), where=chosen)


@instruction
def nc_stream_shuffle(dst, src, shuffle_mask, name=None):
    """Inside each quadrant of 32 partitions out[i] = in[mask[i]]; 255 leaves a partition unchanged."""
    for operand, tile in (("dst", dst), ("src", src)):
        require_tile(tile, operand)
    if dst.dtype is not src.dtype:
        refuse("src", f"dtype {src.dtype.name} differs from {dst.dtype.name} of dst")
    if dst.per_partition != src.per_partition:
        refuse("src", f"{src.per_partition} elements per partition against {dst.per_partition} of dst")
    mask = list(shuffle_mask)
    if len(mask) != QUADRANT or any(type(m) is not int or not (0 <= m < QUADRANT or m == UNTOUCHED) for m in mask):
        refuse("shuffle_mask", f"{mask}; 32 entries, each 0..31 or 255")
    spanned = -(-max(dst.shape[0], src.shape[0]) // QUADRANT) * QUADRANT
    for operand, tile in (("dst", dst), ("src", src)):
        require_start_partition(tile.start_partition, spanned, operand)
        if tile.start_partition + spanned > PARTITIONS:
            refuse(operand, f"{spanned} partitions from {tile.start_partition} end above {PARTITIONS}")
    flat_dst = dst.reshape((dst.shape[0], dst.per_partition)) if dst.ndim != 2 else dst
    flat_src = src.reshape((src.shape[0], src.per_partition)) if src.ndim != 2 else src
    moved = [i for i in range(dst.shape[0]) if mask[i % QUADRANT] != UNTOUCHED]
    wanted = [(i, i // QUADRANT * QUADRANT + mask[i % QUADRANT]) for i in moved]
    beyond = [source for _, source in wanted if source >= src.shape[0]]
    if beyond:
        refuse("shuffle_mask", f"takes partition {beyond[0]} of a src with {src.shape[0]}")
    taken = {}
    for _, source in wanted:
        if source not in taken:
            taken[source] = np.array(flat_src[source:source + 1, :].read())
    for target, source in wanted:
        flat_dst[target:target + 1, :].write(taken[source], exact=True)


@instruction
def exponential(dst, src, max_value=0.0, reduce_res=None, reduce_cmd=commands.idle, reduce_init=0.0, name=None):
    """dst = exp(src - max_value); reduce_res = running sum. gen4 only."""
    if current().target < nc_version.gen4:
        refuse("", "needs gen4; this target has no such instruction")
    require_destination(dst)
    require_tile(src, "src")
    require_same_shape(dst=dst, src=src)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        values = np.exp(rows(src) - per_partition_value(max_value, "max_value", src.shape[0]))
    dst.write(values)
    if reduce_cmd is not commands.load_reduce and isinstance(reduce_init, float) and reduce_init == 0.0:
        reduce_init = None
    accumulate("vector_accumulators", ADD, values, (dst.start_partition, dst.shape[0]), reduce_cmd, reduce_res,
               reduce_init,
               idle_clobbers=True)
