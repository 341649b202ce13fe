"""Model of TensorE: matmul into PSUM and transposes (also the 32 x 32 transpose of VectorE)."""
import numpy as np

from .core import current, instruction
from .dtypes import FLOAT8, bfloat16, float8_e4m3, float8_e4m3fn, float16, float32, tfloat32
from .enums import engine as engines
from .enums import matmul_perf_mode, nc_version, require_engine, require_member
from .faults import refuse
from .operands import PSUM_ONLY, SBUF_ONLY, require_tile, rows
from .storage import BANK_BYTES, PARTITIONS

WIDE = (float32, tfloat32)
STATIONARY_COLUMNS = 128
MOVING_COLUMNS = 512


def _require_input_types(stationary, moving, target):
    accepted = (float8_e4m3,) + FLOAT8[2:] + (bfloat16, float16) + WIDE
    if target >= nc_version.gen4:
        accepted += (float8_e4m3fn,)
    for operand, tile in (("stationary", stationary), ("moving", moving)):
        if tile.dtype not in accepted:
            refuse(operand, f"dtype {tile.dtype.name} is not a matmul input of this generation")
    if (stationary.dtype in WIDE) != (moving.dtype in WIDE):
        refuse("stationary and moving", f"{stationary.dtype.name} with {moving.dtype.name}; "
                                        "4-byte types only with each other")
    if {stationary.dtype, moving.dtype} == {float8_e4m3, float8_e4m3fn}:
        refuse("stationary and moving", "float8_e4m3 and float8_e4m3fn are not mixed")


def require_one_bank(dst):
    item = dst.dtype.item_bytes
    first = dst.storage.byte_offset + dst.offset % dst.storage.free_size * item
    last = first + sum(s * (n - 1) for s, n in zip(dst.strides[1:], dst.shape[1:])) * item
    if first // BANK_BYTES != last // BANK_BYTES:
        refuse("dst", f"bytes {first}..{last + item} of a partition cross a PSUM bank of {BANK_BYTES}")


def _require_sub_array(tile_position, tile_size, k):
    if len(tile_position) != len(tile_size):
        refuse("tile_position and tile_size", "both or neither")
    if not tile_size:
        return
    row, column = tile_position
    height, width = tile_size
    if height not in (32, 64, 128) or row % height or row + height > PARTITIONS or k > height:
        refuse("tile_size", f"{height} rows from {row} for {k} contraction rows; "
                            "32, 64 or 128 aligned rows are accepted")
    if column != 0 or width != STATIONARY_COLUMNS:
        refuse("tile_position", "the column start must be 0 and the column size 128")


@instruction
def nc_matmul(dst, stationary, moving, is_stationary_onezero=False, is_moving_onezero=False, is_transpose=False,
              accumulate=None, tile_position=(), tile_size=(), perf_mode=matmul_perf_mode.none, name=None):
    """dst[M, N] (+)= sum over partitions k of stationary[k, M] * moving[k, N]."""
    target = current().target
    require_tile(dst, "dst", PSUM_ONLY)
    require_tile(stationary, "stationary", SBUF_ONLY)
    require_tile(moving, "moving", SBUF_ONLY)
    require_member(perf_mode, matmul_perf_mode, "perf_mode")
    if accumulate not in (None, True, False):
        refuse("accumulate", f"{accumulate!r}; True, False or None")
    _require_input_types(stationary, moving, target)
    k, m, n = stationary.shape[0], stationary.per_partition, moving.per_partition
    if moving.shape[0] != k:
        refuse("moving", f"{moving.shape[0]} contraction partitions against {k} of stationary")
    _require_sub_array(tile_position, tile_size, k)
    left, right = rows(stationary), rows(moving)
    if perf_mode is matmul_perf_mode.double_row:
        if stationary.dtype not in FLOAT8 or moving.dtype not in FLOAT8:
            refuse("perf_mode", "double_row takes float8 inputs")
        if stationary.ndim != 3 or moving.ndim != 3 or stationary.shape[1] != 2 or moving.shape[1] != 2 or tile_size:
            refuse("perf_mode", "double_row takes [K, 2, M] and [K, 2, N] and no tile_size")
        m, n = stationary.shape[2], moving.shape[2]
        left, right = left.reshape(2 * k, m), right.reshape(2 * k, n)
    if m > STATIONARY_COLUMNS:
        refuse("stationary", f"{m} columns; at most {STATIONARY_COLUMNS}")
    wide = target >= nc_version.gen4
    columns = (4096 if dst.dtype is float32 else 8192) if wide else MOVING_COLUMNS
    if n > columns:
        refuse("moving", f"{n} columns; at most {columns}")
    if (dst.shape[0], dst.per_partition) != (m, n):
        refuse("dst", f"shape {dst.shape}; the product is {(m, n)}")
    if not wide:
        require_one_bank(dst)
    if is_transpose:
        _pass_through(dst, stationary, right, accumulate)
        return
    if dst.dtype is not float32 and not (wide and dst.dtype is bfloat16):
        refuse("dst", f"dtype {dst.dtype.name}; the product is float32" + (" or bfloat16" if wide else ""))
    with np.errstate(over="ignore", invalid="ignore"):
        product = np.matmul(left.T, right).reshape(dst.shape)
        dst.write(_accumulated(dst, product, accumulate), by_matmul=True)


def _accumulated(dst, product, accumulate):
    if accumulate is False:
        return product
    begun = dst.window(dst.storage.from_matmul)
    if accumulate and not begun.all():
        refuse("dst", "accumulate=True on PSUM elements that no matmul initialised")
    if begun.all():
        return product + dst.read_float()
    return np.where(begun, product + dst.window(dst.storage.values), product)


def _pass_through(dst, stationary, moving, accumulate):
    if accumulate:
        refuse("accumulate", "a transpose does not accumulate")
    if dst.dtype is not stationary.dtype:
        refuse("dst", f"dtype {dst.dtype.name}; a transpose keeps {stationary.dtype.name}")
    if moving.shape[0] != moving.shape[1] or not np.array_equal(moving, np.eye(moving.shape[0], dtype=np.float32)):
        refuse("moving", "is_transpose=True needs an identity")
    dst.write(stationary.read().reshape(stationary.shape[0], -1).T, exact=True)


@instruction
def nc_transpose(dst, data, engine=engines.unknown, name=None):
    """dst[f, p] = data[p, f]; TensorE from SBUF to PSUM up to 128 x 128, else VectorE up to 32 x 32."""
    require_engine(engine, (engines.tensor, engines.vector))
    require_tile(dst, "dst")
    require_tile(data, "data")
    p, f = data.shape[0], data.per_partition
    if dst.dtype is not data.dtype:
        refuse("dst", f"dtype {dst.dtype.name} differs from {data.dtype.name} of data")
    if (dst.shape[0], dst.per_partition) != (f, p):
        refuse("dst", f"shape {dst.shape}; the transpose is {(f, p)}")
    if engine is engines.unknown:
        fits_tensor = data.buffer in SBUF_ONLY and dst.buffer in PSUM_ONLY
        engine = engines.tensor if fits_tensor else engines.vector
    if engine is engines.tensor:
        require_tile(data, "data", SBUF_ONLY)
        require_tile(dst, "dst", PSUM_ONLY)
        require_one_bank(dst)
    limit = 128 if engine is engines.tensor else 32
    if max(p, f) > limit:
        refuse("data", f"{p} x {f}; {engine} transposes at most {limit} x {limit}")
    dst.write(data.read().reshape(p, f).T, exact=True)
