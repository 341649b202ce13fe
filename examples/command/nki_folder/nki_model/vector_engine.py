"""Model of VectorE arithmetic: element-wise instructions, reductions along the free axes, copies, fills."""
import numpy as np

from .core import instruction
from .accumulators import accumulate, require_reduction
from .dtypes import WORDS
from .enums import engine as engines
from .enums import reduce_cmd as commands
from .enums import require_engine
from .faults import refuse
from .operands import (SBUF_ONLY, per_partition_value, require_column, require_destination, require_not_both_psum,
                       require_operator, require_same_shape, require_tile, rows)
from .operators import ADD, MAXIMUM, MINIMUM, MULTIPLY, POWER, RSQRT, SUBTRACT
from .tensor import Tensor

REDUCTIONS = (ADD, MULTIPLY, MAXIMUM, MINIMUM)
QUIET = dict(over="ignore", under="ignore", divide="ignore", invalid="ignore")


def require_sbuf_on_gpsimd(engine, **tiles):
    if engine is engines.gpsimd:
        for operand, tile in tiles.items():
            require_tile(tile, operand, SBUF_ONLY)


def _integers(tile, operand):
    if not tile.dtype.is_integer:
        refuse(operand, f"dtype {tile.dtype.name}; a bitwise operator takes integers")
    return tile.read().reshape(tile.shape[0], -1).astype(np.int64)


def _write_bits(dst, values):
    """Keeps the low bits, like an integer register."""
    if not dst.dtype.is_integer:
        refuse("dst", f"dtype {dst.dtype.name}; a bitwise operator writes integers")
    dst.write(values.astype(dst.dtype.kept_as), exact=True)


@instruction
def tensor_tensor(dst, data1, data2, op, engine=engines.unknown, name=None):
    """dst = data1 op data2."""
    require_engine(engine, (engines.vector, engines.gpsimd))
    require_operator(op, "op", "binary")
    require_destination(dst)
    require_tile(data1, "data1")
    require_tile(data2, "data2")
    require_same_shape(dst=dst, data1=data1, data2=data2)
    require_not_both_psum(data1=data1, data2=data2)
    words = all(tile.dtype in WORDS for tile in (dst, data1, data2)) and op in (ADD, SUBTRACT, MULTIPLY)
    if op is POWER or words:
        engine = engines.gpsimd
    require_sbuf_on_gpsimd(engine, dst=dst, data1=data1, data2=data2)
    with np.errstate(**QUIET):
        if op.bitwise or words:
            _write_bits(dst, op.binary(_integers(data1, "data1"), _integers(data2, "data2")))
        else:
            dst.write(op.binary(rows(data1), rows(data2)))


def _apply(values, op, operand, reverse, position, partitions):
    """values op operand, or operand op values if reversed; a unary operator takes no operand."""
    if op.unary is not None:
        if operand not in (None, 0):
            refuse(f"operand{position}", f"{op!r} is unary: the operand must be None or 0")
        return op.unary(values)
    if op.bitwise:
        if isinstance(operand, bool) or not isinstance(operand, int):
            refuse(f"operand{position}", "a bitwise operator takes an integer known at build time")
        other = np.int64(operand)
    else:
        other = per_partition_value(operand, f"operand{position}", partitions)
    return op.binary(other, values) if reverse else op.binary(values, other)


@instruction
def tensor_scalar(dst, data, op0, operand0, reverse0=False, op1=None, operand1=None, reverse1=False,
                  engine=engines.unknown, name=None):
    """dst = (data op0 operand0) op1 operand1; operands are numbers or float32 [P,1]."""
    require_engine(engine, (engines.vector, engines.scalar, engines.gpsimd))
    require_destination(dst)
    require_tile(data, "data")
    require_same_shape(dst=dst, data=data)
    require_sbuf_on_gpsimd(engine, dst=dst, data=data)
    for position, op in ((0, op0), (1, op1)):
        if op is not None or position == 0:
            require_operator(op, f"op{position}", "unary" if getattr(op, "unary", None) else "binary")
    if op1 is not None and op0.bitwise != op1.bitwise:
        refuse("op0 and op1", "both arithmetic or both bitwise")
    if op1 is None and operand1 is not None:
        refuse("operand1", "is given without op1")
    if engine is engines.scalar and (op0, op1) not in ((MULTIPLY, ADD), (MULTIPLY, None), (ADD, None)):
        refuse("engine", "ScalarE does multiply, add, or multiply then add only")
    if engine is engines.gpsimd and (op0, op1) != (RSQRT, None):
        refuse("engine", "GpSimdE does rsqrt only")
    values = _integers(data, "data") if op0.bitwise else rows(data)
    with np.errstate(**QUIET):
        values = _apply(values, op0, operand0, reverse0, 0, data.shape[0])
        if op1 is not None:
            values = _apply(values, op1, operand1, reverse1, 1, data.shape[0])
    if op0.bitwise:
        _write_bits(dst, values)
    else:
        dst.write(values)


@instruction
def scalar_tensor_tensor(dst, data, op0, operand0, op1, operand1, reverse0=False, reverse1=False, name=None):
    """dst = (data op0 operand0) op1 operand1; operand0 a number or [P,1], operand1 a tile of data's shape."""
    for position, op in ((0, op0), (1, op1)):
        require_operator(op, f"op{position}", "binary")
        if op.bitwise:
            refuse(f"op{position}", "arithmetic operators only")
    require_destination(dst)
    require_tile(data, "data")
    require_tile(operand1, "operand1")
    require_same_shape(dst=dst, data=data, operand1=operand1)
    require_not_both_psum(data=data, operand1=operand1)
    if isinstance(operand0, Tensor):
        require_column(operand0, "operand0", data.shape[0])
    with np.errstate(**QUIET):
        first = per_partition_value(operand0, "operand0", data.shape[0], fp32=False)
        values = rows(data)
        values = op0.binary(first, values) if reverse0 else op0.binary(values, first)
        second = rows(operand1)
        dst.write(op1.binary(second, values) if reverse1 else op1.binary(values, second))


@instruction
def tensor_scalar_reduce(dst, data, op0, operand0, reduce_op, reduce_res=None, reverse0=False,
                         reduce_cmd=commands.reset_reduce, reduce_init=None, reduce_res_negate=False, name=None):
    """dst = data op0 operand0; reduce_res = reduction of that over the free axes."""
    require_operator(op0, "op0", "binary")
    if op0.bitwise:
        refuse("op0", "arithmetic operators only")
    require_reduction(reduce_op, REDUCTIONS)
    if reverse0:
        refuse("reverse0", "is not supported")
    require_destination(dst)
    require_tile(data, "data")
    require_same_shape(dst=dst, data=data)
    with np.errstate(**QUIET):
        values = op0.binary(rows(data), per_partition_value(operand0, "operand0", data.shape[0]))
    dst.write(values)
    accumulate("vector_accumulators", reduce_op, values, (dst.start_partition, dst.shape[0]), reduce_cmd, reduce_res,
               reduce_init, reduce_res_negate, idle_clobbers=True)


@instruction
def tensor_reduce(dst, op, data, axis, negate=False, keepdims=False, name=None):
    """dst = reduction of data over its last free axes."""
    require_operator(op, "op", "binary")
    require_destination(dst)
    require_tile(data, "data")
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    if axes != tuple(range(data.ndim - len(axes), data.ndim)) or 0 in axes or not axes:
        refuse("axis", f"{axis} of a {data.ndim}-D tensor: contiguous free axes that end with the last one")
    kept = data.shape[:data.ndim - len(axes)]
    size = 1
    for extent in data.shape[data.ndim - len(axes):]:
        size *= extent
    outputs = data.size // size // kept[0]
    if dst.shape[0] != data.shape[0] or dst.per_partition != outputs:
        refuse("dst", f"shape {dst.shape}; the reduction has {outputs} elements in each of {data.shape[0]} partitions")
    with np.errstate(**QUIET):
        if op.bitwise:
            if op.fold is None or negate:
                refuse("op", f"{op!r} does not reduce, or negate with a bitwise operator")
            _write_bits(dst, op.fold.reduce(_integers(data, "data").reshape(-1, size), axis=1))
            return
        values = rows(data).reshape(-1, size)
        if op.fold is not None:
            values = op.fold.reduce(values, axis=1)
        elif op is SUBTRACT or op.name.startswith("logical_"):
            folded = values[:, 0]
            for column in range(1, size):
                folded = op.binary(folded, values[:, column])
            values = folded
        else:
            refuse("op", f"{op!r} is not a reduction")
        dst.write(-values if negate else values)


@instruction
def tensor_copy(dst, src, engine=engines.unknown, name=None):
    """dst = src with a cast; bit-exact when the dtypes match."""
    require_engine(engine, (engines.vector, engines.scalar, engines.gpsimd))
    require_destination(dst)
    require_tile(src, "src")
    require_same_shape(dst=dst, src=src)
    require_sbuf_on_gpsimd(engine, dst=dst, src=src)
    if dst.dtype is src.dtype:
        dst.write(src.read(), exact=True)
    else:
        dst.write(rows(src))


@instruction
def reciprocal(dst, data, name=None):
    """dst = 1 / data."""
    require_destination(dst)
    require_tile(data, "data")
    require_same_shape(dst=dst, data=data)
    with np.errstate(**QUIET):
        dst.write(np.float32(1) / rows(data))


@instruction
def memset(dst, value, engine=engines.unknown, name=None):
    """dst = value; an int for integer tiles, a float for float tiles."""
    require_engine(engine, (engines.vector, engines.gpsimd))
    require_tile(dst, "dst")
    require_destination(dst)
    require_sbuf_on_gpsimd(engine, dst=dst)
    wanted = int if dst.dtype.is_integer else float
    if type(value) is not wanted:
        refuse("value", f"{value!r} is {type(value).__name__}; a {dst.dtype.name} tile takes {wanted.__name__}")
    if dst.dtype.is_integer:
        limits = np.iinfo(dst.dtype.kept_as)
        if not limits.min <= value <= limits.max:
            refuse("value", f"{value} does not fit {dst.dtype.name}")
    with np.errstate(**QUIET):
        dst.write(np.full(dst.shape, value, np.int64 if dst.dtype.is_integer else np.float32))
