"""Tensors: views of a storage, by slices or by an access pattern (`.ap`), in elements."""
import numpy as np

from . import core as cores
from .faults import refuse
from .storage import ON_CHIP, Memory


class Register:
    """A 32-bit scalar register of an engine sequencer; it has no Python value while a kernel is built."""

    def __init__(self, value=None):
        self.value = value

    def _no_python_value(self, *unused):
        raise TypeError("a register has no value at build time: it cannot steer Python control flow or become a number")

    __bool__ = __int__ = __index__ = __float__ = _no_python_value
    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __sub__ = __mul__ = __hash__ = _no_python_value

    def load(self, operand):
        if self.value is None:
            refuse(operand, "register read before anything was moved or loaded into it")
        return self.value


class RunTimeOffset:
    """The part of an address known only at run time: a register, a (1,1) tensor, or (P,1) row indices."""

    def __init__(self, scalar, vector, stride):
        self.scalar = scalar
        self.vector = vector
        self.stride = stride


class Tensor:
    """shape and strides (elements) on `storage` from `offset`; `base_shape` is the whole tensor it was cut from."""

    __slots__ = ("storage", "shape", "strides", "offset", "base_shape", "run_time", "__weakref__")

    def __init__(self, storage, shape, strides, offset, base_shape, run_time=None):
        self.storage = storage
        self.shape = shape
        self.strides = strides
        self.offset = offset
        self.base_shape = base_shape
        self.run_time = run_time

    def __repr__(self):
        return f"tensor {list(self.shape)} of {self.storage!r}"

    @property
    def dtype(self):
        return self.storage.dtype

    @property
    def buffer(self):
        return self.storage.memory

    @property
    def name(self):
        return self.storage.name

    @property
    def ndim(self):
        return len(self.shape)

    @property
    def size(self):
        return count(self.shape)

    @property
    def partitions(self):
        return self.shape[0]

    @property
    def per_partition(self):
        return count(self.shape[1:])

    @property
    def on_chip(self):
        return self.storage.memory in ON_CHIP

    @property
    def start_partition(self):
        return self.storage.start_partition + self.offset // self.storage.free_size

    @property
    def is_whole(self):
        return (self.offset == 0 and self.run_time is None and self.shape == self.base_shape
                and self.strides == row_major(self.shape))

    # ---- views ----------------------------------------------------------------------------------------------------

    def __getitem__(self, key):
        key = key if isinstance(key, tuple) else (key,)
        if self.run_time is not None:
            refuse(self.name, "a view with a run-time offset cannot be sliced")
        if len(key) > len(self.shape):
            refuse(self.name, f"{len(key)} indices for shape {self.shape}")
        key = key + (slice(None),) * (len(self.shape) - len(key))
        shape, strides, dropped, offset = [], [], [], self.offset
        for axis, index in enumerate(key):
            start, length, step = self._cut(axis, index)
            offset += start * self.strides[axis]
            shape.append(length)
            strides.append(self.strides[axis] * step)
            if not isinstance(index, slice):
                dropped.append(axis)
        if self.on_chip:
            dropped = [axis for axis in dropped if axis != 0]
            dropped = dropped[:max(len(shape) - 2, 0)]
        elif len(dropped) == len(shape):
            dropped = dropped[:-1]
        kept = [axis for axis in range(len(shape)) if axis not in dropped]
        return Tensor(self.storage, tuple(shape[a] for a in kept), tuple(strides[a] for a in kept), offset,
                      self.base_shape)

    def _cut(self, axis, index):
        extent = self.shape[axis]
        if not isinstance(index, slice):
            if not isinstance(index, int) or isinstance(index, bool):
                refuse(self.name, f"index {index!r} on axis {axis}: slices and build-time integers only")
            if not 0 <= index < extent:
                refuse(self.name, f"index {index} on axis {axis} of extent {extent}")
            return index, 1, 1
        start = 0 if index.start is None else index.start
        stop = extent if index.stop is None else index.stop
        step = 1 if index.step is None else index.step
        for bound in (start, stop, step):
            if not isinstance(bound, int) or isinstance(bound, bool):
                refuse(self.name, f"slice bound {bound!r} on axis {axis} is not a build-time integer")
        if not (0 <= start < stop <= extent and step >= 1):
            refuse(self.name, f"slice {start}:{stop}:{step} on axis {axis} of extent {extent}")
        if step != 1 and axis == 0 and self.on_chip:
            refuse(self.name, "partitions have no stride")
        return start, -(-(stop - start) // step), step

    def ap(self, pattern, offset=None, scalar_offset=None, vector_offset=None, indirect_dim=0, dtype=None):
        """View [[stride, count], ...] in elements from the start of the whole tensor."""
        name = self.name
        if not self.is_whole:
            refuse(name, ".ap is called on whole tensors only: its offset on a view is contradictory")
        if dtype is not None and dtype is not self.dtype:
            refuse(name, ".ap with another dtype is not modelled")
        offset = 0 if offset is None else offset
        strides = tuple(pair[0] for pair in pattern)
        shape = tuple(pair[1] for pair in pattern)
        for value in strides + shape + (offset,):
            if not isinstance(value, int) or isinstance(value, bool):
                refuse(name, f".ap value {value!r} is not a build-time integer")
        if not shape or min(shape) < 1 or min(strides) < 0 or offset < 0:
            refuse(name, f".ap pattern {pattern} offset {offset}: counts from 1, strides and offset from 0")
        last = offset + sum(stride * (n - 1) for stride, n in zip(strides, shape))
        if last >= self.storage.elements:
            refuse(name, f".ap pattern {pattern} offset {offset} ends at element {last} of {self.storage.elements}")
        if self.on_chip:
            self._check_partition_pattern(pattern, offset)
        return Tensor(self.storage, shape, strides, offset, self.base_shape,
                      self._run_time(scalar_offset, vector_offset, indirect_dim))

    def _check_partition_pattern(self, pattern, offset):
        free = self.storage.free_size
        if len(pattern) < 2:
            refuse(self.name, f".ap pattern {pattern}: on chip the first pair is the partition, then the free axes")
        if pattern[0][0] != free:
            refuse(self.name, f".ap partition stride {pattern[0][0]}; it must be the tile's free size {free}")
        if offset % free + sum(stride * (n - 1) for stride, n in pattern[1:]) >= free:
            refuse(self.name, f".ap pattern {pattern} offset {offset} leaves its partition of {free} elements")

    def _run_time(self, scalar, vector, indirect_dim):
        if scalar is None and vector is None:
            return None
        name = self.name
        if scalar is not None and vector is not None:
            refuse(name, "scalar_offset and vector_offset exclude each other")
        if scalar is not None and not isinstance(scalar, Register):
            if not (isinstance(scalar, Tensor) and scalar.buffer is Memory.sbuf and scalar.size == 1
                    and scalar.dtype.is_integer):
                refuse(name, "scalar_offset must be a register or a (1,1) integer SBUF tensor")
        if vector is not None:
            if self.on_chip or indirect_dim != 0:
                refuse(name, "vector_offset needs an HBM tensor and indirect_dim=0")
            if not (vector.buffer is Memory.sbuf and vector.per_partition == 1 and vector.dtype.name == "uint32"):
                refuse(name, "vector_offset must be a (P,1) uint32 SBUF tensor")
        if not 0 <= indirect_dim < len(self.base_shape):
            refuse(name, f"indirect_dim {indirect_dim} of shape {self.base_shape}")
        return RunTimeOffset(scalar, vector, count(self.base_shape[indirect_dim + 1:]))

    def reshape(self, shape):
        """The same elements in another shape; contiguous tensors only, and the partition axis must not change."""
        shape = tuple(shape)
        if self.run_time is not None or count(shape) != self.size:
            refuse(self.name, f"reshape of {self.shape} to {shape}")
        expected = row_major(self.shape)
        first = 1 if self.on_chip else 0
        for axis in range(first, len(self.shape)):
            if self.shape[axis] != 1 and self.strides[axis] != expected[axis]:
                refuse(self.name, f"reshape of a view that is not contiguous: {self.shape} strides {self.strides}")
        strides = row_major(shape)
        if self.on_chip:
            if len(shape) < 2 or shape[0] != self.shape[0]:
                refuse(self.name, f"reshape of {self.shape} to {shape}: the partition axis must stay")
            strides = (self.strides[0],) + strides[1:]
        return Tensor(self.storage, shape, strides, self.offset, shape if self.is_whole else self.base_shape)

    # ---- elements ---------------------------------------------------------------------------------------------------

    def window(self, flat):
        """View of this tensor's elements in a flat array of the storage's size."""
        item = flat.itemsize
        return np.ndarray(self.shape, flat.dtype, flat, self.offset * item, tuple(s * item for s in self.strides))

    def read(self):
        """Values in the stored type; refuses elements never written."""
        storage = self.storage
        if not self.window(storage.defined).all():
            missing = np.argwhere(~self.window(storage.defined))
            since = " (or since overwritten through a tile pinned there)" if storage.overlapping else ""
            refuse(self.name, f"reads {len(missing)} elements of {storage!r} never written{since}, "
                              f"first {missing[0].tolist()}")
        if storage.guard is not None:
            storage.guard.read(self.window, self.name, cores.current().index)
        return self.window(storage.values)

    def read_float(self):
        """Values widened to float32."""
        return self.read().astype(np.float32, copy=False)

    def write(self, values, where=None, exact=False, by_matmul=False):
        """Rounds values to the dtype and stores them (at `where` only); exact: no rounding is needed."""
        storage = self.storage
        if storage.read_only:
            refuse(self.name, "a kernel argument is read-only")
        if 0 in self.strides and any(s == 0 and n > 1 for s, n in zip(self.strides, self.shape)):
            refuse(self.name, "a stride-0 pattern writes elements more than once")
        rounded = (values if exact else storage.dtype.round(values)).reshape(self.shape)
        if storage.guard is not None:
            storage.guard.write(self.window, self.name, cores.current().index)
        if where is None:
            self.window(storage.values)[...] = rounded
            self.window(storage.defined)[...] = True
        else:
            where = where.reshape(self.shape)
            np.copyto(self.window(storage.values), rounded, where=where)
            self.window(storage.defined)[where] = True
        if storage.from_matmul is not None:
            self.window(storage.from_matmul)[...] = by_matmul
        if storage.overlapping:
            self._forget_overlapping()

    def _forget_overlapping(self):
        storage = self.storage
        first = self.offset % storage.free_size
        last = first + sum(s * (n - 1) for s, n in zip(self.strides[1:], self.shape[1:]))
        item = storage.dtype.item_bytes
        start = self.start_partition
        for reference in storage.overlapping:
            other = reference()
            if other is not None:
                other.forget((start, start + self.shape[0]),
                             (storage.byte_offset + first * item, storage.byte_offset + (last + 1) * item))

    def to_numpy(self):
        """A copy of the values for tests, in the stored type: bfloat16 becomes float32."""
        return np.array(self.read())


def count(shape):
    product = 1
    for extent in shape:
        product *= extent
    return product


def row_major(shape):
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def whole(storage):
    return Tensor(storage, storage.shape, row_major(storage.shape), 0, storage.shape)
