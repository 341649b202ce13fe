"""Model of DMA: copies and transposes between HBM and SBUF, with run-time addresses. DMA does not reach PSUM."""
import numpy as np

from .core import current, instruction
from .enums import dge_mode as descriptor_modes
from .enums import engine as engines
from .enums import nc_version
from .enums import oob_mode as bounds_modes
from .enums import require_engine, require_member
from .faults import refuse
from .operands import require_tensor
from .storage import HBM, PARTITIONS, Memory
from .tensor import Register, Tensor

REACHABLE = HBM + (Memory.sbuf,)


def _require_reachable(value, operand):
    require_tensor(value, operand)
    if value.buffer not in REACHABLE:
        refuse(operand, f"{value.name} is in psum; copy it to SBUF first")
    if value.on_chip and value.shape[0] > PARTITIONS:
        refuse(operand, f"{value.shape[0]} partitions; at most {PARTITIONS}")


def _require_plain_priority(priority):
    if priority is not None and current().target < nc_version.gen4:
        refuse("priority", "needs gen4")


def _resolved(tensor, operand, bounds):
    """The tensor at its run-time address: plain views, one per row of a vector offset, None if skipped."""
    run_time = tensor.run_time
    if run_time is None:
        return [tensor]
    if run_time.vector is None:
        scalar = run_time.scalar
        value = scalar.load(operand) if isinstance(scalar, Register) else int(scalar.read().reshape(-1)[0])
        return [_moved(tensor, tensor.shape, value * run_time.stride, operand, bounds)]
    indices = run_time.vector.read().reshape(-1)
    if len(indices) != tensor.shape[0]:
        refuse(operand, f"vector_offset holds {len(indices)} rows for a pattern of {tensor.shape[0]}")
    return [_moved(tensor, (1,) + tensor.shape[1:], int(index) * run_time.stride, operand, bounds) for index in indices]


def _moved(tensor, shape, distance, operand, bounds):
    start = tensor.offset + distance
    last = start + sum(s * (n - 1) for s, n in zip(tensor.strides, shape))
    inside = 0 <= start and last < tensor.storage.elements
    if inside and tensor.on_chip:
        free = tensor.storage.free_size
        inside = start % free + sum(s * (n - 1) for s, n in zip(tensor.strides[1:], shape[1:])) < free
    if not inside:
        if bounds is bounds_modes.skip:
            return None
        refuse(operand, f"run-time address {start}..{last} of {tensor.storage!r} is out of range")
    return Tensor(tensor.storage, shape, tensor.strides, start, tensor.base_shape)


@instruction
def dma_copy(dst, src, priority=None, oob_mode=bounds_modes.error, dge_mode=descriptor_modes.unknown,
             engine=engines.unknown, name=None):
    """dst = src between HBM and SBUF; element counts equal, cast through float32 when the dtypes differ."""
    require_member(oob_mode, bounds_modes, "oob_mode")
    require_member(dge_mode, descriptor_modes, "dge_mode")
    require_engine(engine, (engines.sync, engines.scalar))
    _require_plain_priority(priority)
    _require_reachable(dst, "dst")
    _require_reachable(src, "src")
    if dst.size != src.size:
        refuse("dst", f"{dst.size} elements {dst.shape} against {src.size} of src {src.shape}")
    hardware = dge_mode is descriptor_modes.hwdge
    if hardware and current().target < nc_version.gen3:
        refuse("dge_mode", "hwdge needs gen3")
    if hardware and dst.dtype is not src.dtype:
        refuse("dge_mode", f"hwdge does not cast {src.dtype.name} to {dst.dtype.name}")
    if engine is not engines.unknown and not hardware:
        refuse("engine", "is accepted with dge_mode.hwdge only")
    indirect = [t for t in (dst, src) if t.run_time is not None and t.run_time.vector is not None]
    if indirect and dge_mode not in (descriptor_modes.unknown, descriptor_modes.swdge):
        refuse("dge_mode", "vector_offset needs software descriptors")
    if dst.run_time is None and src.run_time is None:
        _copy(dst, src)
        return
    targets, sources = _resolved(dst, "dst", oob_mode), _resolved(src, "src", oob_mode)
    if len(targets) != len(sources):
        targets = targets if len(targets) > 1 else _rows_of(targets[0], len(sources))
        sources = sources if len(sources) > 1 else _rows_of(sources[0], len(targets))
    for target, source in zip(targets, sources):
        if target is not None and source is not None:
            _copy(target, source)


def _rows_of(tensor, rows):
    if tensor is None:
        return [None] * rows
    if tensor.shape[0] != rows:
        refuse("dst and src", f"a vector_offset of {rows} rows against a first axis of {tensor.shape[0]}")
    return [Tensor(tensor.storage, (1,) + tensor.shape[1:], tensor.strides, tensor.offset + row * tensor.strides[0],
                   tensor.base_shape) for row in range(rows)]


def _copy(dst, src):
    if dst.dtype is src.dtype:
        dst.write(src.read(), exact=True)
    else:
        dst.write(src.read_float())


TRANSPOSES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}


@instruction
def dma_transpose(dst, src, axes=None, priority=None, dge_mode=descriptor_modes.unknown, oob_mode=bounds_modes.error,
                  name=None):
    """dst = src with axes (1,0), (2,1,0) or (3,1,2,0); 2-byte types in multiples of 16."""
    require_member(oob_mode, bounds_modes, "oob_mode")
    require_member(dge_mode, descriptor_modes, "dge_mode")
    _require_plain_priority(priority)
    _require_reachable(dst, "dst")
    _require_reachable(src, "src")
    if dst.buffer is not Memory.sbuf:
        refuse("dst", f"{dst.name} is in {dst.buffer.name}; it must be in sbuf")
    if dst.dtype is not src.dtype:
        refuse("dst", f"dtype {dst.dtype.name} differs from {src.dtype.name} of src")
    if src.dtype.item_bytes != 2:
        refuse("src", f"dtype {src.dtype.name}; 2-byte types only")
    if src.ndim not in TRANSPOSES:
        refuse("src", f"{src.ndim}-D; 2-D, 3-D or 4-D")
    order = TRANSPOSES[src.ndim] if axes is None else tuple(axes)
    if order != TRANSPOSES[src.ndim]:
        refuse("axes", f"{order}; a {src.ndim}-D transpose is {TRANSPOSES[src.ndim]}")
    if dst.shape != tuple(src.shape[axis] for axis in order):
        refuse("dst", f"shape {dst.shape}; it must be {tuple(src.shape[axis] for axis in order)}")
    if src.shape[-1] > 128 or src.shape[-1] % 16 or src.shape[0] % 16:
        if dge_mode is not descriptor_modes.hwdge:
            refuse("src", f"shape {src.shape}; the first axis a multiple of 16, the last one too and at most 128")
    if dge_mode is descriptor_modes.hwdge:
        first = src.shape[0]
        legal = first == 16 if src.ndim == 2 else first in (1, 2, 4, 8, 16) and first * src.shape[-2] % 16 == 0
        if not legal or src.shape[-1] > 128 or src.shape[-1] % 16:
            refuse("src", f"shape {src.shape} is not one that hwdge transposes")
    source = _resolved(src, "src", oob_mode)
    target = _resolved(dst, "dst", oob_mode)
    if len(source) != 1 or len(target) != 1:
        refuse("src", "vector_offset is for dma_copy only")
    if source[0] is not None and target[0] is not None:
        target[0].write(np.transpose(source[0].read(), order), exact=True)
