"""Element types, and the device's rounding to them.

A bfloat16, tfloat32 or float8 value is stored as a numpy float32 of exactly that value.
"""
import numpy as np

from .faults import refuse


class Dtype:
    """Name, bytes on the device, numpy type that stores it here, and rounding from float32 or integers."""

    def __init__(self, name, item_bytes, kept_as, rounding=None):
        self.name = name
        self.item_bytes = item_bytes
        self.kept_as = np.dtype(kept_as)
        self.is_integer = self.kept_as.kind in "iu"
        self._rounding = rounding

    def __repr__(self):
        return f"nl.{self.name}"

    def __str__(self):
        return self.name

    def round(self, values):
        """values (any shape; float32 or integer) rounded to this type, stored as `kept_as`; nearest, ties to even."""
        values = np.asarray(values)
        if self.is_integer:
            return self._to_integer(values)
        if self._rounding is not None:
            return self._rounding(np.ascontiguousarray(values, dtype=np.float32))
        with np.errstate(over="ignore"):
            return values.astype(self.kept_as, copy=False)

    def _to_integer(self, values):
        limits = np.iinfo(self.kept_as)
        if values.dtype.kind == "f":
            if np.isnan(values).any():
                refuse("dst", f"NaN has no value of integer type {self.name}")
            values = np.rint(values.astype(np.float64))
        return np.clip(values, limits.min, limits.max).astype(self.kept_as)


def round_bfloat16(values):
    """float32 array -> float32 array of bfloat16 values, nearest even, overflow to infinity."""
    bits = values.view(np.uint32)
    rounded = bits >> 16
    rounded &= 1
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded &= np.uint32(0xFFFF0000)
    result = rounded.view(np.float32)
    nan = np.isnan(values)
    if nan.any():
        result[nan] = np.nan
    return result


def round_to_mantissa(fraction_bits, smallest_exponent, largest, beyond):
    """Rounding to a short binary float.

    smallest_exponent: exponent of the smallest normal; below it the spacing stays fixed (subnormals).
    largest: largest finite value; beyond: result for values that round above it.
    """

    def rounding(values):
        with np.errstate(over="ignore", invalid="ignore"):
            exponent = np.frexp(values)[1] - 1
            step = np.maximum(exponent, smallest_exponent) - fraction_bits
            wide = values.astype(np.float64)
            result = np.ldexp(np.rint(np.ldexp(wide, -step)), step)
            result = np.where(np.isfinite(wide), result, wide)
            result = np.where(np.abs(result) > largest, np.copysign(beyond, result), result)
            return result.astype(np.float32)

    return rounding


float32 = Dtype("float32", 4, np.float32)
float16 = Dtype("float16", 2, np.float16)
bfloat16 = Dtype("bfloat16", 2, np.float32, round_bfloat16)
tfloat32 = Dtype("tfloat32", 4, np.float32, round_to_mantissa(10, -126, float(np.finfo(np.float32).max), np.inf))
float8_e4m3 = Dtype("float8_e4m3", 1, np.float32, round_to_mantissa(3, -6, 240.0, np.inf))
float8_e4m3fn = Dtype("float8_e4m3fn", 1, np.float32, round_to_mantissa(3, -6, 448.0, np.nan))
float8_e5m2 = Dtype("float8_e5m2", 1, np.float32, round_to_mantissa(2, -14, 57344.0, np.inf))
int8 = Dtype("int8", 1, np.int8)
int16 = Dtype("int16", 2, np.int16)
int32 = Dtype("int32", 4, np.int32)
uint8 = Dtype("uint8", 1, np.uint8)
uint16 = Dtype("uint16", 2, np.uint16)
uint32 = Dtype("uint32", 4, np.uint32)

ALL = (float32, float16, bfloat16, tfloat32, float8_e4m3, float8_e4m3fn, float8_e5m2,
       int8, int16, int32, uint8, uint16, uint32)
FLOAT8 = (float8_e4m3, float8_e4m3fn, float8_e5m2)
WORDS = (int32, uint32)


def named(name):
    for dtype in ALL:
        if dtype.name == name:
            return dtype
    raise ValueError(f"no element type {name!r}; known: {[d.name for d in ALL]}")
