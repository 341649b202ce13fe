"""Checks of element types: rounding, special values, casts."""
import numpy as np

import nki_model
import nki.isa as nisa
import nki.language as nl

from .checking import check, empty, expect, expect_equal, expect_refused, numbers, on_core, sbuf


def nearest_even(values, fraction_bits, smallest_exponent):
    """Plain formula in double: rounds to fraction_bits after the leading one, ties to even."""
    wide = values.astype(np.float64)
    exponent = np.floor(np.log2(np.maximum(np.abs(wide), 2.0**-1000)))
    step = 2.0 ** (np.maximum(exponent, smallest_exponent) - fraction_bits)
    return np.round(wide / step) * step


@check("rounding: bfloat16 is nearest even")
def bfloat16_values():
    values = np.concatenate([numbers(4000), np.float32([1.00390625, 1.01171875, 0.0, -0.0, 3.0e-39])])
    expect_equal(nki_model.bfloat16(values).numpy(), nearest_even(values, 7, -126).astype(np.float32), "bfloat16")


@check("rounding: bfloat16 overflows to infinity and keeps NaN and infinities")
def bfloat16_special():
    values = np.float32([-3.4028235e38, 3.4028235e38, np.inf, -np.inf, np.nan])
    expect_equal(nki_model.bfloat16(values).numpy(), np.float32([-np.inf, np.inf, np.inf, -np.inf, np.nan]), "special")


@check("rounding: float16, tfloat32 and float8 are nearest even")
def narrow_values():
    values = numbers(2000)
    for dtype, bits, exponent in ((nl.float16, 10, -14), (nl.tfloat32, 10, -126), (nl.float8_e4m3, 3, -6),
                                  (nl.float8_e5m2, 2, -14), (nl.float8_e4m3fn, 3, -6)):
        expect_equal(dtype.round(values).astype(np.float32), nearest_even(values, bits, exponent).astype(np.float32),
                     str(dtype))


@check("rounding: float8 limits")
def float8_limits():
    expect_equal(nl.float8_e4m3.round(np.float32([240, 300, -300])), np.float32([240, np.inf, -np.inf]), "e4m3")
    expect_equal(nl.float8_e5m2.round(np.float32([57344, 70000])), np.float32([57344, np.inf]), "e5m2")
    expect_equal(nl.float8_e4m3fn.round(np.float32([448, 500])), np.float32([448, np.nan]), "e4m3fn")


@check("rounding: integer casts round to even and saturate; NaN is refused")
def integer_casts():
    values = np.float32([[0.5, 1.5, 2.5, -0.5, 300.0, -300.0]])

    def body():
        result = empty((1, 6), nl.int8)
        nisa.tensor_copy(dst=result, src=sbuf(values))
        return result

    expect_equal(on_core(body), np.int8([[0, 2, 2, 0, 127, -128]]), "int8")

    def from_nan():
        nisa.tensor_copy(dst=empty((1, 1), nl.int32), src=sbuf([[np.nan]]))

    expect_refused(from_nan, "tensor_copy", "dst", "NaN")


@check("rounding: results are computed in float32 and rounded once")
def one_rounding():
    a, b = numbers(8, 16), numbers(8, 16, seed=8)

    def body():
        result = empty((8, 16), nl.bfloat16)
        nisa.tensor_tensor(dst=result, data1=sbuf(a, nl.bfloat16), data2=sbuf(b, nl.float16), op=nl.multiply)
        return result

    wanted = nki_model.bfloat16(nki_model.bfloat16(a).numpy() * nki_model.float16(b).numpy()).numpy()
    expect_equal(on_core(body), wanted, "product")


@check("rounding: a copy between equal types is bit-exact, int32 above 2^24 included")
def exact_copy():
    def body():
        copied, widened = empty((1, 2), nl.int32), empty((1, 2))
        source = sbuf([[2**24 + 1, -5]], nl.int32)
        nisa.tensor_copy(dst=copied, src=source)
        nisa.tensor_copy(dst=widened, src=source)
        return copied, widened

    copied, widened = on_core(body)
    expect_equal(copied, np.int32([[2**24 + 1, -5]]), "int32")
    expect_equal(widened, np.float32([[2**24, -5]]), "float32")


@check("rounding: the caller's argument array is not changed")
def argument_copy():
    values = numbers(4, 4)
    kept = values.copy()
    nki_model.bfloat16(values)
    expect(np.array_equal(values, kept), "the caller's array changed")
