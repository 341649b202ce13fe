"""Operand rules shared by instructions: memories, partitions, patterns, shapes, per-partition scalars."""
import numpy as np

from .dtypes import float32
from .enums import nc_version
from .core import current
from .faults import refuse
from .operators import Operator
from .storage import ON_CHIP, PARTITIONS, Memory
from .tensor import Tensor

SBUF_ONLY = (Memory.sbuf,)
PSUM_ONLY = (Memory.psum,)
FREE_DIMENSIONS = 4
FREE_ELEMENTS = {Memory.sbuf: 64 * 1024, Memory.psum: 4 * 1024}


def require_tensor(value, operand):
    if not isinstance(value, Tensor):
        refuse(operand, f"must be a tensor, not {value!r}")


def require_start_partition(start, partitions, operand):
    """Requires a legal start: more than 64 partitions start at 0, 33..64 at 0 or 64, fewer at 0, 32, 64 or 96."""
    step = PARTITIONS if partitions > 64 else 64 if partitions > 32 else 32
    if start % step:
        refuse(operand, f"{partitions} partitions start at partition {start}; accepted: multiples of {step}")


def require_tile(value, operand, memories=ON_CHIP):
    """Rules of an operand of a compute engine."""
    require_tensor(value, operand)
    memory = value.buffer
    if memory not in memories:
        refuse(operand, f"{value.name} is in {memory.name}; accepted: {[m.name for m in memories]}")
    if value.run_time is not None:
        refuse(operand, "a run-time offset is accepted by dma_copy only")
    shape = value.shape
    require_start_partition(value.start_partition, shape[0], operand)
    if len(shape) - 1 > FREE_DIMENSIONS:
        refuse(operand, f"{len(shape) - 1} free dimensions; at most {FREE_DIMENSIONS}")
    if value.per_partition > FREE_ELEMENTS[memory]:
        refuse(operand, f"{value.per_partition} elements per partition; at most {FREE_ELEMENTS[memory]}")
    for stride in value.strides[1:]:
        if stride > 32767:
            refuse(operand, f"free stride {stride} does not fit 16 bits")


def require_destination(value, operand="dst", memories=ON_CHIP):
    """Rules of a destination; before gen4 only transposes may write a narrow PSUM tile."""
    require_tile(value, operand, memories)
    if value.buffer is Memory.psum and value.dtype.item_bytes < 4 and current().target < nc_version.gen4:
        refuse(operand, f"a {value.dtype.name} PSUM tile is legal as a transpose destination only")


def require_same_shape(**tiles):
    """Requires equal partitions and equal elements per partition; free axes may be factored differently."""
    first_name, first = next(iter(tiles.items()))
    for name, tile in tiles.items():
        if tile.shape[0] != first.shape[0] or tile.per_partition != first.per_partition:
            refuse(name, f"shape {tile.shape} differs from {first_name} {first.shape}")


def require_not_both_psum(**tiles):
    if all(tile.buffer is Memory.psum for tile in tiles.values()):
        refuse(" and ".join(tiles), "both in PSUM; at most one input may be")


def require_column(value, operand, partitions, fp32=False, memories=ON_CHIP):
    """Requires one element in each of `partitions` partitions."""
    require_tile(value, operand, memories)
    if value.shape[0] != partitions or value.per_partition != 1:
        refuse(operand, f"shape {value.shape}; it must hold one element in each of {partitions} partitions")
    if fp32 and value.dtype is not float32:
        refuse(operand, f"dtype {value.dtype.name}; it must be float32")


def require_operator(value, operand, role, accepted=None):
    """role: binary, unary, activation or fold."""
    if not isinstance(value, Operator):
        refuse(operand, f"must be an nl operator, not {value!r}")
    if getattr(value, role) is None or (accepted is not None and value not in accepted):
        names = "" if accepted is None else f"; accepted: {[a.name for a in accepted]}"
        refuse(operand, f"{value!r} cannot be used here as {role}{names}")


def require_number(value, operand):
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        refuse(operand, f"must be a number known at build time, not {value!r}")


def rows(tile):
    """Values as float32 [partitions, elements per partition]."""
    return tile.read_float().reshape(tile.shape[0], -1)


def per_partition_value(value, operand, partitions, fp32=True):
    """A float, or a [P,1] column, as a float32 value that broadcasts over [P, F]."""
    if isinstance(value, Tensor):
        require_column(value, operand, partitions, fp32)
        return rows(value)
    require_number(value, operand)
    with np.errstate(over="ignore"):
        return np.float32(value)
