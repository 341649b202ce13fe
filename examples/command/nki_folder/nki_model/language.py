"""Model of nki.language: allocation, program ids, sizes, loops."""
import contextlib

from . import dtypes
from .core import current, instruction
from .dtypes import Dtype
from .faults import refuse
from .races import RaceGuard
from .storage import ON_CHIP, SBUF_BYTES, Memory, Storage, check_on_chip, register_pinned
from .tensor import Tensor, whole


def _require_shape(shape):
    if not isinstance(shape, (tuple, list)) or not shape:
        refuse("shape", f"{shape!r} must be a tuple")
    for extent in shape:
        if type(extent) is not int or extent < 1:
            refuse("shape", f"{tuple(shape)}: extents are ints from 1")
    return tuple(shape)


@instruction
def ndarray(shape, dtype, buffer=Memory.sbuf, name="", address=None):
    """A new, undefined tensor. address: fixed place of a tile, (start partition, byte offset in the free axis)."""
    core = current()
    shape = _require_shape(shape)
    if not isinstance(dtype, Dtype):
        refuse("dtype", f"{dtype!r} must be an nl dtype")
    if not isinstance(buffer, Memory):
        refuse("buffer", f"{buffer!r} must be nl.sbuf, nl.psum, nl.private_hbm or nl.shared_hbm")
    if name:
        if name in core.names and buffer not in ON_CHIP:
            refuse("name", f"{name!r} is used twice in HBM")
        core.names.add(name)
    if buffer in ON_CHIP:
        check_on_chip(shape, dtype, buffer, address, core.target)
        storage = Storage(shape, dtype, buffer, name, address)
        if address is not None:
            register_pinned(core.pinned, storage)
    elif address is not None:
        refuse("address", "pins tiles on chip only")
    elif buffer is Memory.shared_hbm and core.lnc > 1:
        storage = _shared(core, shape, dtype, name)
    else:
        storage = Storage(shape, dtype, buffer, name)
    return whole(storage)


def _shared(core, shape, dtype, name):
    """The k-th shared allocation of one core is the same memory as that of the other core."""
    index = core.shared_allocations
    core.shared_allocations += 1
    pair = core.pair
    with pair.lock:
        if index not in pair.shared:
            storage = Storage(shape, dtype, Memory.shared_hbm, name)
            storage.guard = RaceGuard(storage.elements, core.world.trust_partner)
            pair.shared[index] = storage
        storage = pair.shared[index]
    if storage.shape != shape or storage.dtype is not dtype or (name and storage.name != name):
        refuse("shape", f"shared_hbm allocation {index} is {storage!r} on one core, "
                        f"{name}{list(shape)} {dtype.name} on the other")
    return storage


def zeros(shape, dtype, buffer=Memory.sbuf, name=""):
    """An ndarray filled with zeros."""
    tensor = ndarray(shape, dtype, buffer, name)
    tensor.write(dtype.round([0]).repeat(tensor.size), exact=True)
    return tensor


def program_id(axis=0):
    if axis != 0:
        refuse("program_id", f"axis {axis}; a launch has axis 0 only")
    return current().index


def num_programs(axes=0):
    if axes != 0:
        refuse("num_programs", f"axes {axes}; a launch has axis 0 only")
    return current().lnc


def program_ndim():
    return 1 if current().lnc > 1 else 0


def ds(start, size):
    return slice(start, start + size)


@contextlib.contextmanager
def no_reorder():
    yield


class TileSize:
    pmax = 128
    gemm_stationary_fmax = 128
    gemm_moving_fmax = 512
    psum_fmax = 512
    psum_bank_fmax = 512
    psum_bank_fmax_bytes = 2048
    psum_num_banks = 8
    bn_stats_fmax = 512

    @property
    def sbuf_fmax_bytes(self):
        return SBUF_BYTES[current().target]

    @property
    def sbuf_size_bytes(self):
        return 128 * SBUF_BYTES[current().target]


tile_size = TileSize()
EXPORTED = {"ndarray": ndarray, "zeros": zeros, "program_id": program_id, "num_programs": num_programs,
            "program_ndim": program_ndim, "ds": ds, "no_reorder": no_reorder, "tile_size": tile_size,
            "sbuf": Memory.sbuf, "psum": Memory.psum, "hbm": Memory.private_hbm, "private_hbm": Memory.private_hbm,
            "shared_hbm": Memory.shared_hbm, "affine_range": range, "sequential_range": range, "static_range": range,
            "bool_": dtypes.uint8, "NkiTensor": Tensor}
EXPORTED.update((dtype.name, dtype) for dtype in dtypes.ALL)
