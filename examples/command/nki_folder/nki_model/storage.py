"""Memory kinds and the storage of a tensor: values, elements ever written, elements written by a matmul."""
import weakref
from enum import Enum

import numpy as np

from .enums import nc_version
from .faults import refuse

PARTITIONS = 128
PSUM_BYTES = 16 * 1024
BANK_BYTES = 2 * 1024
# Physical size less 16 KiB and 8 bytes; the documentation gives no usable size.
SBUF_BYTES = {nc_version.gen2: 196608 - 16392, nc_version.gen3: 229376 - 16392, nc_version.gen4: 262144 - 16392}


class Memory(Enum):
    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"

    def __repr__(self):
        return f"nl.{self.name}"


ON_CHIP = (Memory.sbuf, Memory.psum)
HBM = (Memory.private_hbm, Memory.shared_hbm)


class Storage:
    """One allocation, flat. On chip, element (partition p, free index f) is at p * free_size + f."""

    def __init__(self, shape, dtype, memory, name, address=None):
        elements = 1
        for count in shape:
            elements *= count
        self.shape = shape
        self.dtype = dtype
        self.memory = memory
        self.name = name or memory.name
        self.elements = elements
        self.free_size = elements // shape[0]
        self.values = np.full(elements, 4 if dtype.is_integer else np.nan, dtype.kept_as)
        self.defined = np.zeros(elements, bool)
        self.from_matmul = np.zeros(elements, bool) if memory is Memory.psum else None
        self.start_partition, self.byte_offset = address if address is not None else (0, 0)
        self.read_only = False
        self.guard = None
        self.overlapping = ()

    def __repr__(self):
        return f"{self.name}{list(self.shape)} {self.dtype.name} in {self.memory.name}"

    def forget(self, partitions, free_bytes):
        """Makes partitions [a, b), free bytes [c, d) undefined, because another tile was written there."""
        item = self.dtype.item_bytes
        low_p = max(partitions[0] - self.start_partition, 0)
        high_p = min(partitions[1] - self.start_partition, self.shape[0])
        low_f = max((free_bytes[0] - self.byte_offset) // item, 0)
        high_f = min(-(-(free_bytes[1] - self.byte_offset) // item), self.free_size)
        if low_p < high_p and low_f < high_f:
            self.defined.reshape(self.shape[0], self.free_size)[low_p:high_p, low_f:high_f] = False
            if self.from_matmul is not None:
                self.from_matmul.reshape(self.shape[0], self.free_size)[low_p:high_p, low_f:high_f] = False


def check_on_chip(shape, dtype, memory, address, target):
    """Checks shape, capacity and fixed address of one tile."""
    if len(shape) < 2:
        refuse("shape", f"a tile on chip is at least 2-D, not {shape}")
    if shape[0] > PARTITIONS:
        refuse("shape", f"{shape[0]} partitions; at most {PARTITIONS}")
    free_bytes = dtype.item_bytes
    for count in shape[1:]:
        free_bytes *= count
    limit = PSUM_BYTES if memory is Memory.psum else SBUF_BYTES[target]
    start, offset = (0, 0) if address is None else address
    if offset + free_bytes > limit:
        refuse("shape", f"{offset + free_bytes} bytes per partition; {memory.name} has {limit}")
    if start + shape[0] > PARTITIONS:
        refuse("address", f"partitions {start}..{start + shape[0]} end above {PARTITIONS}")
    if offset % dtype.item_bytes:
        refuse("address", f"byte offset {offset} is not a multiple of {dtype.item_bytes}")


def _crosses(a, b):
    a_bytes = a.free_size * a.dtype.item_bytes
    b_bytes = b.free_size * b.dtype.item_bytes
    return (a.memory is b.memory
            and a.start_partition < b.start_partition + b.shape[0]
            and b.start_partition < a.start_partition + a.shape[0]
            and a.byte_offset < b.byte_offset + b_bytes and b.byte_offset < a.byte_offset + a_bytes)


def register_pinned(pinned, storage):
    """Links a tile of fixed address with the live ones it overlaps: writing one makes the others undefined there."""
    pinned[:] = [reference for reference in pinned if reference() is not None]
    for reference in pinned:
        other = reference()
        if other is not None and _crosses(storage, other):
            other.overlapping = tuple(r for r in other.overlapping if r() is not None) + (weakref.ref(storage),)
            storage.overlapping += (reference,)
    pinned.append(weakref.ref(storage))
