"""Model of ScalarE: activation functions with an optional running sum over the free axes."""
import numpy as np

from .accumulators import accumulate, require_reduction
from .core import current, instruction
from .dtypes import tfloat32
from .enums import nc_version
from .enums import reduce_cmd as commands
from .faults import refuse
from .operands import (per_partition_value, require_column, require_destination, require_operator, require_same_shape,
                       require_tile, rows)
from .operators import ADD
from .tensor import Tensor


def _require_domain(op, x):
    """Refuses values outside the documented interval, for which the device returns garbage without an error."""
    if op.interval is None:
        return
    low, high = op.interval
    size = np.abs(x) if op.signed else x
    outside = ~((size >= low) & (size <= high))
    if outside.any():
        p, f = np.argwhere(outside)[0]
        refuse("data", f"{op.name} of {x[p, f]!r} at [{p}, {f}] after scale and bias; specified for "
                       f"{'+-' if op.signed else ''}[{low!r}, {high!r}]")


def _bias(bias, partitions):
    if bias is None:
        return np.float32(0)
    if isinstance(bias, Tensor):
        require_column(bias, "bias", partitions)
        if bias.dtype is tfloat32:
            refuse("bias", "dtype tfloat32 is not accepted")
        return rows(bias)
    if current().target < nc_version.gen3:
        refuse("bias", "a number needs gen3; pass a [P,1] tile")
    return per_partition_value(bias, "bias", partitions)


def _activate(dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd):
    require_operator(op, "op", "activation")
    require_destination(dst)
    require_tile(data, "data")
    require_same_shape(dst=dst, data=data)
    partitions = data.shape[0]
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        x = rows(data) * per_partition_value(scale, "scale", partitions) + _bias(bias, partitions)
        _require_domain(op, x)
        values = op.activation(x)
    dst.write(values)
    if reduce_op is None:
        if reduce_res is not None or reduce_cmd is not commands.idle:
            refuse("reduce_op", "reduce_res and reduce_cmd need it")
        return
    require_reduction(reduce_op, (ADD,))
    if reduce_cmd is commands.load_reduce:
        refuse("reduce_cmd", "load_reduce is not for activations")
    accumulate("scalar_accumulators", ADD, values, (dst.start_partition, partitions), reduce_cmd, reduce_res)


@instruction
def activation(dst, op, data, bias=None, scale=1.0, reduce_op=None, reduce_res=None, reduce_cmd=commands.idle,
               name=None):
    """dst = op(data * scale + bias); reduce_res = running sum of the results before rounding to dst."""
    _activate(dst, op, data, bias, scale, reduce_op, reduce_res, reduce_cmd)


@instruction
def activation_reduce(dst, op, data, reduce_op, reduce_res, bias=None, scale=1.0, name=None):
    """activation with reduce_cmd.reset_reduce."""
    _activate(dst, op, data, bias, scale, reduce_op, reduce_res, commands.reset_reduce)
