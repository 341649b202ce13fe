"""Checks of each compute instruction against a plain numpy formula."""
import numpy as np

import nki_model
import nki.isa as nisa
import nki.language as nl

from .checking import check, empty, expect, expect_close, expect_equal, numbers, on_core, psum, sbuf

RESET = nisa.reduce_cmd.reset_reduce
REDUCE = nisa.reduce_cmd.reduce
LOWEST = -3.4028235e38


def rounded(values):
    return nki_model.bfloat16(values).numpy()


@check("nc_matmul: product, overwrite, accumulate")
def matmul():
    a, b = numbers(96, 40), numbers(96, 200, seed=8)

    def body():
        left, right = sbuf(a, nl.bfloat16), sbuf(b, nl.bfloat16)
        dst = empty((40, 200), buffer=nl.psum)
        nisa.nc_matmul(dst=dst, stationary=left, moving=right, accumulate=False)
        once = empty((40, 200))
        nisa.tensor_copy(dst=once, src=dst)
        nisa.nc_matmul(dst=dst, stationary=left, moving=right, accumulate=True)
        twice = empty((40, 200))
        nisa.tensor_copy(dst=twice, src=dst)
        return once, twice

    once, twice = on_core(body)
    wanted = rounded(a).astype(np.float64).T @ rounded(b)
    bound = 97 * 2.0**-24 * (np.abs(rounded(a)).T.astype(np.float64) @ np.abs(rounded(b)))
    expect_close(once, wanted, bound, "product")
    expect_close(twice, 2 * wanted, 3 * bound, "accumulated product")


@check("nc_matmul: accumulate=None overwrites per location first, then adds")
def matmul_by_history():
    def body():
        one = sbuf(np.ones((32, 4)), nl.bfloat16)
        dst = empty((4, 4), buffer=nl.psum)
        nisa.nc_matmul(dst=dst[:, 0:2], stationary=one, moving=one[:, 0:2])
        nisa.nc_matmul(dst=dst, stationary=one, moving=one)
        return dst

    expect_equal(on_core(body), np.float32([[64, 64, 32, 32]] * 4), "history")


@check("nc_matmul: transpose through an identity, double_row, bfloat16 destination on trn3")
def matmul_forms():
    a = numbers(64, 32)

    def transpose():
        dst = empty((32, 64), nl.bfloat16, nl.psum)
        nisa.nc_matmul(dst=dst, stationary=sbuf(a, nl.bfloat16), moving=sbuf(np.eye(64), nl.bfloat16),
                       is_transpose=True,
                       accumulate=False)
        return dst

    expect_equal(on_core(transpose), rounded(a).T, "transpose")

    def pairs():
        dst = empty((4, 6), buffer=nl.psum)
        nisa.nc_matmul(dst=dst, stationary=sbuf(np.ones((32, 2, 4)), nl.float8_e4m3),
                       moving=sbuf(np.ones((32, 2, 6)), nl.float8_e4m3),
                       accumulate=False, perf_mode=nisa.matmul_perf_mode.double_row)
        return dst

    expect_equal(on_core(pairs), np.full((4, 6), 64, np.float32), "double_row")

    def narrow():
        dst = empty((1, 1024), nl.bfloat16, nl.psum)
        nisa.nc_matmul(dst=dst, stationary=sbuf(np.ones((128, 1)), nl.bfloat16),
                       moving=sbuf(np.full((128, 1024), 1 / 3), nl.bfloat16),
                       accumulate=False)
        return dst

    third = rounded(np.float32([1 / 3]))[0]
    expect_equal(on_core(narrow, "trn3"), np.full((1, 1024), rounded(np.float32([128 * third]))[0]), "bfloat16 PSUM")


@check("nc_transpose: TensorE 128 x 128 and VectorE 32 x 32")
def transposes():
    a = numbers(128, 96)

    def body():
        by_tensor = empty((96, 128), nl.bfloat16, nl.psum)
        nisa.nc_transpose(dst=by_tensor, data=sbuf(a, nl.bfloat16))
        by_vector = empty((24, 32))
        nisa.nc_transpose(dst=by_vector, data=sbuf(a[:32, :24]), engine=nisa.engine.vector)
        return by_tensor, by_vector

    by_tensor, by_vector = on_core(body)
    expect_equal(by_tensor, rounded(a).T, "TensorE")
    expect_equal(by_vector, a[:32, :24].T, "VectorE")


@check("activation: op(data * scale + bias) for every function")
def activations():
    x, bias = np.abs(numbers(16, 8)) + np.float32(0.5), np.abs(numbers(16, 1, seed=9))
    formulas = {"exp": np.exp, "log": np.log, "copy": lambda v: v, "tanh": np.tanh, "square": np.square, "abs": np.abs,
                "sqrt": np.sqrt, "rsqrt": lambda v: 1 / np.sqrt(v), "reciprocal": lambda v: 1 / v}
    for name, formula in formulas.items():
        def body():
            dst = empty((16, 8))
            nisa.activation(dst=dst, op=getattr(nl, name), data=psum(x), bias=sbuf(bias), scale=0.5)
            return dst

        wanted = formula((x * np.float32(0.5) + bias).astype(np.float64))
        expect_close(on_core(body), wanted, 2.0**-21 * np.abs(wanted) + 1e-30, name)


@check("activation: running sum before rounding, over two instructions; activation_reduce")
def activation_sums():
    x = numbers(32, 64)

    def body():
        narrow, total, single = empty((32, 64), nl.bfloat16), empty((32, 1)), empty((32, 1))
        nisa.activation(dst=narrow, op=nl.exp, data=sbuf(x), reduce_op=nl.add, reduce_cmd=RESET)
        nisa.activation(dst=narrow, op=nl.exp, data=sbuf(x), scale=-1.0, reduce_op=nl.add, reduce_res=total,
                        reduce_cmd=REDUCE)
        nisa.activation_reduce(dst=narrow, op=nl.exp, data=sbuf(x), reduce_op=nl.add, reduce_res=single)
        return total, single

    total, single = on_core(body)
    wide = x.astype(np.float64)
    wanted = np.exp(wide).sum(1, keepdims=True)
    both = wanted + np.exp(-wide).sum(1, keepdims=True)
    expect_close(total, both, 2.0**-18 * both, "two instructions")
    expect_close(single, wanted, 2.0**-18 * wanted, "activation_reduce")


@check("tensor_tensor: every binary operator, mixed memories, exact int32")
def tensor_tensors():
    a, b = numbers(16, 12), numbers(16, 12, seed=8)
    formulas = {"add": a + b, "subtract": a - b, "multiply": a * b, "maximum": np.maximum(a, b),
                "minimum": np.minimum(a, b),
                "less": a < b, "less_equal": a <= b, "greater": a > b, "greater_equal": a >= b, "equal": a == b,
                "not_equal": a != b, "abs_max": np.maximum(abs(a), abs(b)), "logical_and": (a != 0) & (b != 0)}
    for name, wanted in formulas.items():
        def body():
            dst = empty((16, 12))
            nisa.tensor_tensor(dst=dst, data1=psum(a), data2=sbuf(b), op=getattr(nl, name))
            return dst

        expect_equal(on_core(body), wanted.astype(np.float32), name)

    def words():
        dst = empty((1, 2), nl.int32)
        nisa.tensor_tensor(dst=dst, data1=sbuf([[2**30, 7]], nl.int32), data2=sbuf([[1, -9]], nl.int32), op=nl.add)
        return dst

    expect_equal(on_core(words), np.int32([[2**30 + 1, -2]]), "int32")


@check("tensor_tensor: stride-0 broadcast pattern; bitwise operators")
def broadcast_and_bits():
    a, column = numbers(32, 3 * 5), numbers(32, 3, seed=9)

    def body():
        factors = sbuf(column)
        dst = empty((32, 15))
        nisa.tensor_tensor(dst=dst, data1=sbuf(a), data2=factors.ap(pattern=[[3, 32], [1, 3], [0, 5]], offset=0),
                           op=nl.multiply)
        masked = empty((1, 2), nl.uint8)
        nisa.tensor_tensor(dst=masked, data1=sbuf([[12, 255]], nl.uint8), data2=sbuf([[10, 15]], nl.uint8),
                           op=nl.bitwise_and)
        shifted = empty((1, 2), nl.int32)
        nisa.tensor_scalar(dst=shifted, data=sbuf([[3, 5]], nl.int32), op0=nl.left_shift, operand0=2, op1=nl.bitwise_or,
                           operand1=1)
        return dst, masked, shifted

    product, masked, shifted = on_core(body)
    expect_equal(product, a * np.repeat(column, 5, axis=1), "broadcast")
    expect_equal(masked, np.uint8([[8, 15]]), "and")
    expect_equal(shifted, np.int32([[13, 21]]), "shift, or")


@check("tensor_scalar, scalar_tensor_tensor: order of operations and reverse")
def scalars():
    a, b, column = numbers(16, 12), numbers(16, 12, seed=8), numbers(16, 1, seed=9)

    def body():
        results = [empty((16, 12)) for _ in range(5)]
        nisa.tensor_scalar(dst=results[0], data=sbuf(a), op0=nl.multiply, operand0=sbuf(column), op1=nl.add,
                           operand1=2.0)
        nisa.tensor_scalar(dst=results[1], data=sbuf(a), op0=nl.subtract, operand0=1.0, reverse0=True)
        nisa.scalar_tensor_tensor(dst=results[2], data=psum(a), op0=nl.multiply, operand0=sbuf(column), op1=nl.subtract,
                                  operand1=sbuf(b))
        nisa.scalar_tensor_tensor(dst=results[3], data=sbuf(a), op0=nl.add, operand0=3.0, op1=nl.subtract,
                                  operand1=psum(b), reverse1=True)
        nisa.tensor_scalar(dst=results[4], data=sbuf(a), op0=nl.abs, operand0=None, engine=nisa.engine.vector)
        return tuple(results)

    one = np.float32(1)
    wanted = (a * column + np.float32(2), one - a, a * column - b, b - (a + np.float32(3)), np.abs(a))
    for got, want in zip(on_core(body), wanted):
        expect_equal(got, want, "scalar operands")


@check("tensor_scalar_reduce, tensor_reduce: reductions and negate")
def reductions():
    a = numbers(16, 4, 6)

    def body():
        copy, top, total, inner, low = empty((16, 24)), empty((16, 1)), empty((16, 1)), empty((16, 4)), empty((16, 1))
        nisa.tensor_scalar_reduce(dst=copy, data=sbuf(a), op0=nl.multiply, operand0=2.0, reduce_op=nl.maximum,
                                  reduce_cmd=RESET)
        nisa.tensor_scalar_reduce(dst=copy, data=sbuf(-a), op0=nl.multiply, operand0=2.0, reduce_op=nl.maximum,
                                  reduce_res=top,
                                  reduce_cmd=REDUCE)
        nisa.tensor_reduce(dst=total, op=nl.add, data=sbuf(a), axis=(1, 2), negate=True)
        nisa.tensor_reduce(dst=inner, op=nl.maximum, data=sbuf(a), axis=2)
        nisa.tensor_scalar_reduce(dst=copy, data=sbuf(a), op0=nl.add, operand0=0.0, reduce_op=nl.minimum,
                                  reduce_res=low,
                                  reduce_res_negate=True, reduce_cmd=nisa.reduce_cmd.load_reduce,
                                  reduce_init=sbuf(np.full((16, 1), -1.0)))
        return top, total, inner, low

    top, total, inner, low = on_core(body)
    flat = a.reshape(16, -1)
    expect_equal(top, 2 * np.abs(flat).max(1, keepdims=True), "maximum over two instructions")
    size = np.abs(flat).sum(1, keepdims=True)
    expect_close(total, -flat.astype(np.float64).sum(1, keepdims=True), 24 * 2.0**-24 * size, "negated sum")
    expect_equal(inner, a.max(2), "maximum of the last axis")
    expect_equal(low, -np.minimum(flat.min(1, keepdims=True), np.float32(-1)), "negated minimum from a loaded start")


@check("range_select: mask by bounds, running maximum, fill in 16 bits becomes -infinity")
def range_selects():
    a = numbers(32, 48)
    low, high = np.arange(32, dtype=np.float32).reshape(32, 1) - 4, np.arange(32, dtype=np.float32).reshape(32, 1) + 3
    index = np.arange(10, 58, dtype=np.float32)
    keep = (index >= low) & (index < high)

    def body():
        wide, narrow, top = empty((32, 48)), empty((32, 48), nl.bfloat16), empty((32, 1))
        for dst in (narrow, wide):
            nisa.range_select(dst=dst, on_true_tile=psum(a), comp_op0=nl.greater_equal, comp_op1=nl.less,
                              bound0=sbuf(low),
                              bound1=sbuf(high), reduce_cmd=RESET, reduce_res=top, reduce_op=nl.maximum, range_start=10,
                              on_false_value=LOWEST)
        return wide, narrow, top

    wide, narrow, top = on_core(body)
    wanted = np.where(keep, a, np.float32(LOWEST))
    expect(not keep[0].any() and keep.any(), "the case must hold a masked row")
    expect_equal(wide, wanted, "values")
    expect_equal(narrow, np.where(keep, rounded(a), np.float32(-np.inf)), "16-bit fill")
    expect_equal(top, wanted.max(1, keepdims=True), "maximum")


@check("select_reduce, tensor_copy_predicated: by predicate, reversed, per element")
def predicates():
    a, b = numbers(8, 6), numbers(8, 6, seed=8)
    mask = (b > 0).astype(np.uint8)

    def body():
        chosen, top, mixed = empty((8, 6)), empty((8, 1)), sbuf(b)
        nisa.select_reduce(dst=chosen, predicate=sbuf(mask, nl.uint8), on_true=sbuf(a), on_false=-9.0, reduce_res=top,
                           reduce_cmd=RESET)
        nisa.tensor_copy_predicated(dst=mixed, src=sbuf(a), predicate=sbuf(mask, nl.uint8), reverse_pred=True)
        nisa.tensor_copy_predicated(dst=mixed, src=5.0, predicate=sbuf(mask, nl.uint8))
        return chosen, top, mixed

    chosen, top, mixed = on_core(body)
    wanted = np.where(mask, a, np.float32(-9))
    expect_equal(chosen, wanted, "select_reduce")
    expect_equal(top, wanted.max(1, keepdims=True), "maximum")
    expect_equal(mixed, np.where(mask, np.float32(5), a), "tensor_copy_predicated")


@check("reciprocal, memset, exponential")
def small_ones():
    a = np.abs(numbers(8, 6)) + np.float32(0.1)

    def body():
        inverse, seven = empty((8, 6)), empty((8, 6), nl.int32)
        nisa.reciprocal(dst=inverse, data=sbuf(a))
        nisa.memset(dst=seven, value=7)
        return inverse, seven

    inverse, seven = on_core(body)
    expect_equal(inverse, np.float32(1) / a, "reciprocal")
    expect_equal(seven, np.full((8, 6), 7, np.int32), "memset")

    def gen4():
        dst, total = empty((8, 6)), empty((8, 1))
        nisa.exponential(dst=dst, src=sbuf(a), max_value=sbuf(a.max(1, keepdims=True)), reduce_res=total,
                         reduce_cmd=RESET)
        return dst, total

    wanted = np.exp(a.astype(np.float64) - a.max(1, keepdims=True))
    dst, total = on_core(gen4, "trn3")
    expect_close(dst, wanted, 2.0**-21, "exponential")
    expect_close(total, wanted.sum(1, keepdims=True), 2.0**-19, "sum")


@check("nc_stream_shuffle: mask inside quadrants, 255 leaves unchanged, across quadrants, in place")
def shuffles():
    a = numbers(64, 3)
    mask = [(5 * i + 1) % 32 for i in range(31)] + [255]

    def body():
        dst = sbuf(np.zeros((64, 3)))
        nisa.nc_stream_shuffle(dst=dst, src=sbuf(a), shuffle_mask=mask)
        column = sbuf(a)
        for quadrant in range(2):
            nisa.nc_stream_shuffle(dst=column[32 * quadrant:32 * quadrant + 32, :], src=column[0:1, :],
                                   shuffle_mask=[0] * 32)
        return dst, column

    dst, column = on_core(body)
    wanted = np.zeros((64, 3), np.float32)
    for i in range(64):
        if i % 32 != 31:
            wanted[i] = a[i // 32 * 32 + mask[i % 32]]
    expect_equal(dst, wanted, "mask")
    expect_equal(column, np.repeat(a[0:1], 64, axis=0), "broadcast from partition 0")


@check("iota, affine_select, tensor_partition_reduce")
def index_instructions():
    a = numbers(16, 12)

    def body():
        grid, causal, total, pinned = empty((16, 12)), empty((16, 12)), empty((1, 12)), empty((64, 1), nl.int32)
        nisa.iota(dst=grid, pattern=[[100, 3], [-1, 4]], offset=5, channel_multiplier=2)
        nisa.iota(dst=pinned[32:64, 0:1], pattern=[[0, 1]], channel_multiplier=1)
        nisa.affine_select(dst=causal, pattern=[[-1, 12]], channel_multiplier=1, on_true_tile=sbuf(a),
                           on_false_value=-1.0,
                           cmp_op=nl.greater_equal, offset=2)
        nisa.tensor_partition_reduce(dst=total, op=nl.add, data=sbuf(a))
        half = empty((32, 1), nl.int32)
        nisa.tensor_copy(dst=half, src=pinned[32:64, 0:1])
        return grid, causal, total, half

    grid, causal, total, half = on_core(body)
    p, i, j = np.meshgrid(np.arange(16), np.arange(3), np.arange(4), indexing="ij")
    expect_equal(grid, (5 + 2 * p + 100 * i - j).reshape(16, 12).astype(np.float32), "iota")
    rows, columns = np.meshgrid(np.arange(16), np.arange(12), indexing="ij")
    expect_equal(causal, np.where(2 + rows - columns >= 0, a, np.float32(-1)), "affine_select")
    expect_close(total, a.astype(np.float64).sum(0, keepdims=True), 16 * 2.0**-24 * np.abs(a).sum(0),
                 "tensor_partition_reduce")
    expect_equal(half, np.arange(32, dtype=np.int32).reshape(32, 1), "iota counts from the tile's first row")
