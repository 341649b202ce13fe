"""Checks that every rule of the model is enforced, and that the message names instruction, operand and rule."""
import numpy as np

import nki_model
import nki.isa as nisa
import nki.language as nl

from .checking import CHECKS, check, empty, expect, expect_refused, psum, sbuf

BF = nl.bfloat16
RESET = nisa.reduce_cmd.reset_reduce
REDUCE = nisa.reduce_cmd.reduce
LOWEST = -3.4028235e38


def ones(*shape, dtype=nl.float32):
    return sbuf(np.ones(shape), dtype)


def bank(*shape, dtype=nl.float32):
    return empty(shape, dtype, nl.psum)


def matmul(m=4, n=4, k=32, left=BF, right=BF, dst=None, **options):
    options.setdefault("accumulate", False)
    nisa.nc_matmul(dst=bank(m, n) if dst is None else dst, stationary=ones(k, m, dtype=left),
                   moving=ones(k, n, dtype=right), **options)


def select(**changes):
    options = dict(dst=empty((4, 8)), on_true_tile=ones(4, 8), comp_op0=nl.greater_equal, comp_op1=nl.less,
                   bound0=ones(4, 1),
                   bound1=ones(4, 1), reduce_res=empty((4, 1)), range_start=0, on_false_value=LOWEST)
    options.update(changes)
    nisa.range_select(**options)


def activate(op, value, **options):
    nisa.activation(dst=empty((1, 1)), op=op, data=sbuf([[value]]), **options)


def summed(tile, command, result=None):
    nisa.activation(dst=empty(tile.shape), op=nl.exp, data=tile, reduce_op=nl.add, reduce_cmd=command,
                    reduce_res=result)


def topped(tile, command, result=None, op=nl.maximum):
    nisa.tensor_scalar_reduce(dst=empty(tile.shape), data=tile, op0=nl.add, operand0=0.0, reduce_op=op,
                              reduce_cmd=command,
                              reduce_res=result)


def in_order(*steps):
    for step in steps:
        step()


def accumulate_after(initialise):
    dst = bank(4, 4)
    initialise(dst)
    matmul(dst=dst, accumulate=True)


# name, fragments of the message, body[, target]
CASES = [
    ("partitions above 128", ("ndarray", "shape", "129"), lambda: empty((129, 4))),
    ("1-D tile", ("ndarray", "2-D"), lambda: empty((128,))),
    ("PSUM capacity", ("ndarray", "psum has 16384"), lambda: bank(4, 4097)),
    ("SBUF capacity", ("ndarray", "sbuf has 212984"), lambda: empty((1, 53247))),
    ("pinned tile beyond its partition", ("ndarray", "bytes per partition"),
     lambda: nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.psum, address=(0, 16380))),
    ("buffer as a string", ("ndarray", "buffer"), lambda: nl.ndarray((4, 4), dtype=nl.float32, buffer="sbuf")),
    ("dtype as a string", ("ndarray", "dtype"), lambda: nl.ndarray((4, 4), dtype="float32")),
    ("HBM name used twice", ("ndarray", "used twice"),
     lambda: [nl.ndarray((4,), dtype=BF, buffer=nl.shared_hbm, name="same") for _ in range(2)]),
    ("start partition of few rows", ("memset", "dst", "start at partition 16"),
     lambda: nisa.memset(dst=empty((128, 2))[16:32, :], value=0.0)),
    ("start partition of 64 rows", ("memset", "dst", "start at partition 32"),
     lambda: nisa.memset(dst=empty((128, 2))[32:96, :], value=0.0)),
    ("start partition of 65 rows", ("memset", "dst", "start at partition 32"),
     lambda: nisa.memset(dst=empty((128, 2))[32:97, :], value=0.0)),
    ("pinned start partition", ("memset", "dst", "start at partition 8"),
     lambda: nisa.memset(dst=nl.ndarray((4, 8), dtype=nl.float32, buffer=nl.sbuf, address=(8, 0)), value=0.0)),
    ("five free dimensions", ("memset", "5 free dimensions"),
     lambda: nisa.memset(dst=empty((4, 1, 1, 1, 1, 2)), value=0.0)),
    ("elements per partition", ("memset", "65537 elements"),
     lambda: nisa.memset(dst=empty((1, 65537), nl.uint8), value=0)),
    ("slice beyond the extent", ("slice 0:9",), lambda: empty((4, 8))[:, 0:9]),
    ("partition stride in a slice", ("no stride",), lambda: empty((4, 8))[0:4:2, :]),
    ("slice by a register", ("not a build-time integer",), lambda: empty((4, 8))[:, 0:nisa.register_alloc(2)]),
    (".ap on a view", (".ap", "whole tensors"), lambda: empty((4, 8))[:, 0:4].ap(pattern=[[8, 4], [1, 4]])),
    (".ap beyond the storage", (".ap", "ends at element"),
     lambda: empty((4, 8)).ap(pattern=[[8, 4], [1, 8]], offset=1)),
    (".ap partition stride", ("partition stride 4",), lambda: empty((4, 8)).ap(pattern=[[4, 4], [1, 4]])),
    (".ap across partitions", ("leaves its partition",), lambda: empty((4, 8)).ap(pattern=[[8, 2], [1, 8]], offset=4)),
    ("run-time offset outside DMA", ("tensor_copy", "dma_copy only"),
     lambda: nisa.tensor_copy(dst=empty((1, 8)), src=ones(4, 8).ap(pattern=[[8, 1], [1, 8]],
                                                                   scalar_offset=nisa.register_alloc(1)))),
    ("stride-0 destination", ("memset", "more than once"),
     lambda: nisa.memset(dst=empty((4, 8)).ap(pattern=[[8, 4], [0, 8]]), value=0.0)),
    ("matmul destination in SBUF", ("nc_matmul", "dst", "psum"), lambda: matmul(dst=empty((4, 4)))),
    ("matmul input in PSUM", ("nc_matmul", "moving", "sbuf"),
     lambda: nisa.nc_matmul(dst=bank(4, 4), stationary=ones(4, 4), moving=psum(np.ones((4, 4))), accumulate=False)),
    ("matmul M", ("nc_matmul", "stationary", "129"), lambda: matmul(m=129, dst=bank(128, 4))),
    ("matmul N", ("nc_matmul", "moving", "513"), lambda: matmul(n=513)),
    ("matmul K", ("nc_matmul", "moving", "contraction"),
     lambda: nisa.nc_matmul(dst=bank(4, 4), stationary=ones(32, 4, dtype=BF), moving=ones(16, 4, dtype=BF),
                            accumulate=False)),
    ("matmul destination shape", ("nc_matmul", "dst", "shape"), lambda: matmul(dst=bank(4, 5))),
    ("matmul across banks", ("nc_matmul", "dst", "bank"), lambda: matmul(dst=bank(4, 1024)[:, 510:514])),
    ("pinned matmul across banks", ("nc_matmul", "dst", "bank"),
     lambda: matmul(dst=nl.ndarray((4, 4), dtype=nl.float32, buffer=nl.psum, address=(0, 2040)))),
    ("matmul float32 with bfloat16", ("nc_matmul", "4-byte types"), lambda: matmul(left=nl.float32)),
    ("matmul of integers", ("nc_matmul", "stationary", "int8"), lambda: matmul(left=nl.int8)),
    ("float8_e4m3fn before trn3", ("nc_matmul", "stationary", "generation"), lambda: matmul(left=nl.float8_e4m3fn)),
    ("float8_e4m3fn with e4m3", ("nc_matmul", "not mixed"),
     lambda: matmul(left=nl.float8_e4m3fn, right=nl.float8_e4m3), "trn3"),
    ("bfloat16 PSUM product before trn3", ("nc_matmul", "dst", "bfloat16"), lambda: matmul(dst=bank(4, 4, dtype=BF))),
    ("accumulate on fresh PSUM", ("nc_matmul", "dst", "no matmul"), lambda: accumulate_after(lambda dst: None)),
    ("accumulate on a memset", ("nc_matmul", "dst", "no matmul"),
     lambda: accumulate_after(lambda dst: nisa.memset(dst=dst, value=0.0))),
    ("accumulate on a partly begun tile", ("nc_matmul", "dst", "no matmul"),
     lambda: accumulate_after(lambda dst: matmul(n=2, dst=dst[:, 0:2]))),
    ("accumulate after an overwrite", ("nc_matmul", "dst", "no matmul"),
     lambda: accumulate_after(lambda dst: in_order(lambda: matmul(dst=dst),
                                                   lambda: nisa.memset(dst=dst[:, 1:2], value=0.0)))),
    ("raw perf_mode", ("nc_matmul", "perf_mode"), lambda: matmul(perf_mode=1)),
    ("double_row of bfloat16", ("nc_matmul", "perf_mode", "float8"),
     lambda: matmul(perf_mode=nisa.matmul_perf_mode.double_row)),
    ("tile_position alone", ("nc_matmul", "both or neither"), lambda: matmul(tile_position=(0, 0))),
    ("column tiling", ("nc_matmul", "tile_position", "column"),
     lambda: matmul(tile_position=(0, 64), tile_size=(32, 64))),
    ("row tile size", ("nc_matmul", "tile_size", "16 rows"),
     lambda: matmul(k=16, tile_position=(0, 0), tile_size=(16, 128))),
    ("matmul transpose without identity", ("nc_matmul", "moving", "identity"),
     lambda: matmul(m=4, n=4, k=4, dst=bank(4, 4, dtype=BF), is_transpose=True)),
    ("transpose dtype", ("nc_transpose", "dst", "dtype"),
     lambda: nisa.nc_transpose(dst=bank(8, 8), data=ones(8, 8, dtype=BF))),
    ("transpose shape", ("nc_transpose", "dst", "shape"), lambda: nisa.nc_transpose(dst=bank(8, 4), data=ones(8, 8))),
    ("TensorE transpose of PSUM", ("nc_transpose", "data", "psum"),
     lambda: nisa.nc_transpose(dst=bank(8, 8), data=psum(np.ones((8, 8))), engine=nisa.engine.tensor)),
    ("transpose on GpSimdE", ("nc_transpose", "engine"),
     lambda: nisa.nc_transpose(dst=bank(8, 8), data=ones(8, 8), engine=nisa.engine.gpsimd)),
    ("VectorE transpose above 32", ("nc_transpose", "32 x 32"),
     lambda: nisa.nc_transpose(dst=empty((40, 32)), data=ones(32, 40))),
    ("DMA to PSUM", ("dma_copy", "dst", "psum"), lambda: nisa.dma_copy(dst=bank(4, 4), src=ones(4, 4))),
    ("DMA from PSUM", ("dma_copy", "src", "psum"), lambda: nisa.dma_copy(dst=empty((4, 4)), src=psum(np.ones((4, 4))))),
    ("DMA sizes", ("dma_copy", "dst", "16 elements"), lambda: nisa.dma_copy(dst=empty((4, 4)), src=ones(4, 5))),
    ("hwdge cast", ("dma_copy", "dge_mode", "cast"),
     lambda: nisa.dma_copy(dst=empty((4, 4), BF), src=ones(4, 4), dge_mode=nisa.dge_mode.hwdge)),
    ("DMA engine without hwdge", ("dma_copy", "engine", "hwdge only"),
     lambda: nisa.dma_copy(dst=empty((4, 4)), src=ones(4, 4), engine=nisa.engine.sync)),
    ("DMA on VectorE", ("dma_copy", "engine"),
     lambda: nisa.dma_copy(dst=empty((4, 4)), src=ones(4, 4), engine=nisa.engine.vector)),
    ("raw dge_mode", ("dma_copy", "dge_mode", "member"),
     lambda: nisa.dma_copy(dst=empty((4, 4)), src=ones(4, 4), dge_mode=2)),
    ("DMA priority before trn3", ("dma_copy", "priority", "gen4"),
     lambda: nisa.dma_copy(dst=empty((4, 4)), src=ones(4, 4), priority=1)),
    ("transposing DMA of 4 bytes", ("dma_transpose", "src", "2-byte"),
     lambda: nisa.dma_transpose(dst=empty((16, 16)), src=ones(16, 16))),
    ("transposing DMA dtype", ("dma_transpose", "dst", "dtype"),
     lambda: nisa.dma_transpose(dst=empty((16, 16), nl.float16), src=ones(16, 16, dtype=BF))),
    ("transposing DMA shape", ("dma_transpose", "dst", "shape"),
     lambda: nisa.dma_transpose(dst=empty((32, 16), BF), src=ones(32, 16, dtype=BF))),
    ("transposing DMA multiples", ("dma_transpose", "src", "multiple of 16"),
     lambda: nisa.dma_transpose(dst=empty((16, 24), BF), src=ones(24, 16, dtype=BF))),
    ("transposing DMA destination", ("dma_transpose", "dst", "psum"),
     lambda: nisa.dma_transpose(dst=bank(16, 16, dtype=BF), src=ones(16, 16, dtype=BF))),
    ("transposing DMA with hwdge", ("dma_transpose", "src", "hwdge"),
     lambda: nisa.dma_transpose(dst=empty((16, 32), BF), src=ones(32, 16, dtype=BF), dge_mode=nisa.dge_mode.hwdge)),
    ("both inputs in PSUM", ("tensor_tensor", "data1 and data2", "PSUM"),
     lambda: nisa.tensor_tensor(dst=empty((4, 4)), data1=psum(np.ones((4, 4))), data2=psum(np.ones((4, 4))),
                                op=nl.add)),
    ("both inputs in PSUM, fused", ("scalar_tensor_tensor", "PSUM"),
     lambda: nisa.scalar_tensor_tensor(dst=empty((4, 4)), data=psum(np.ones((4, 4))), op0=nl.add, operand0=1.0,
                                       op1=nl.add,
                                       operand1=psum(np.ones((4, 4))))),
    ("shape of tensor_tensor", ("tensor_tensor", "data2", "shape"),
     lambda: nisa.tensor_tensor(dst=empty((4, 4)), data1=ones(4, 4), data2=ones(4, 1), op=nl.add)),
    ("operator as a string", ("tensor_tensor", "op", "nl operator"),
     lambda: nisa.tensor_tensor(dst=empty((4, 4)), data1=ones(4, 4), data2=ones(4, 4), op="add")),
    ("operator of another engine", ("tensor_tensor", "op", "nl.exp"),
     lambda: nisa.tensor_tensor(dst=empty((4, 4)), data1=ones(4, 4), data2=ones(4, 4), op=nl.exp)),
    ("HBM operand of VectorE", ("tensor_copy", "src", "private_hbm"),
     lambda: nisa.tensor_copy(dst=empty((4, 4)), src=empty((4, 4), buffer=nl.private_hbm))),
    ("power reads PSUM", ("tensor_tensor", "data1", "psum"),
     lambda: nisa.tensor_tensor(dst=empty((4, 4)), data1=psum(np.ones((4, 4))), data2=ones(4, 4), op=nl.power)),
    ("GpSimd copy of PSUM", ("tensor_copy", "src", "psum"),
     lambda: nisa.tensor_copy(dst=empty((4, 4)), src=psum(np.ones((4, 4))), engine=nisa.engine.gpsimd)),
    ("GpSimd tensor_scalar of another operator than rsqrt", ("tensor_scalar", "engine", "rsqrt"),
     lambda: nisa.tensor_scalar(dst=empty((4, 4)), data=ones(4, 4), op0=nl.multiply, operand0=2.0,
                                engine=nisa.engine.gpsimd)),
    ("raw engine", ("tensor_copy", "engine", "member"),
     lambda: nisa.tensor_copy(dst=empty((4, 4)), src=ones(4, 4), engine=5)),
    ("narrow PSUM copy before trn3", ("tensor_copy", "dst", "bfloat16 PSUM"),
     lambda: nisa.tensor_copy(dst=bank(4, 4, dtype=BF), src=ones(4, 4))),
    ("column of two elements", ("tensor_scalar", "operand0", "one element"),
     lambda: nisa.tensor_scalar(dst=empty((4, 4)), data=ones(4, 4), op0=nl.add, operand0=ones(4, 2))),
    ("narrow column", ("tensor_scalar", "operand0", "float32"),
     lambda: nisa.tensor_scalar(dst=empty((4, 4)), data=ones(4, 4), op0=nl.add, operand0=ones(4, 1, dtype=BF))),
    ("arithmetic and bitwise mixed", ("tensor_scalar", "op0 and op1"),
     lambda: nisa.tensor_scalar(dst=empty((4, 4), nl.int32), data=ones(4, 4, dtype=nl.int32), op0=nl.add, operand0=1.0,
                                op1=nl.bitwise_and, operand1=1)),
    ("bitwise on floats", ("tensor_tensor", "data1", "integers"),
     lambda: nisa.tensor_tensor(dst=empty((4, 4)), data1=ones(4, 4), data2=ones(4, 4), op=nl.bitwise_or)),
    ("unary with an operand", ("tensor_scalar", "operand0", "unary"),
     lambda: nisa.tensor_scalar(dst=empty((4, 4)), data=ones(4, 4), op0=nl.square, operand0=2.0)),
    ("ScalarE tensor_scalar", ("tensor_scalar", "engine", "ScalarE"),
     lambda: nisa.tensor_scalar(dst=empty((4, 4)), data=ones(4, 4), op0=nl.maximum, operand0=1.0,
                                engine=nisa.engine.scalar)),
    ("reverse in a reduction", ("tensor_scalar_reduce", "reverse0"),
     lambda: nisa.tensor_scalar_reduce(dst=empty((4, 4)), data=ones(4, 4), op0=nl.add, operand0=1.0, reduce_op=nl.add,
                                       reverse0=True)),
    ("reduction over partitions", ("tensor_reduce", "axis"),
     lambda: nisa.tensor_reduce(dst=empty((4, 1)), op=nl.add, data=ones(4, 4), axis=(0, 1))),
    ("reduction of an inner axis", ("tensor_reduce", "axis"),
     lambda: nisa.tensor_reduce(dst=empty((4, 4)), op=nl.add, data=ones(4, 4, 4), axis=1)),
    ("memset of a float tile with an int", ("memset", "value", "takes float"),
     lambda: nisa.memset(dst=empty((4, 4)), value=0)),
    ("memset of an int tile with a float", ("memset", "value", "takes int"),
     lambda: nisa.memset(dst=empty((4, 4), nl.int32), value=0.0)),
    ("memset on ScalarE", ("memset", "engine"),
     lambda: nisa.memset(dst=empty((4, 4)), value=0.0, engine=nisa.engine.scalar)),
    ("range_select before trn2", ("range_select", "gen3"), select, "trn1"),
    ("range_select fill", ("range_select", "on_false_value"), lambda: select(on_false_value=-1e30)),
    ("range_select bound dtype", ("range_select", "bound1", "float32"), lambda: select(bound1=ones(4, 1, dtype=BF))),
    ("range_select bound shape", ("range_select", "bound0", "one element"), lambda: select(bound0=ones(4, 2))),
    ("range_select index", ("range_select", "range_start", "2^24"), lambda: select(range_start=2**24 - 4)),
    ("range_select run-time start", ("range_select", "range_start", "build time"),
     lambda: select(range_start=nisa.register_alloc(0))),
    ("range_select result dtype", ("range_select", "reduce_res", "float32"),
     lambda: select(reduce_res=empty((4, 1), BF))),
    ("range_select reduction", ("range_select", "reduce_op", "maximum"), lambda: select(reduce_op=nl.add)),
    ("range_select of integers", ("range_select", "on_true_tile", "floating"),
     lambda: select(on_true_tile=ones(4, 8, dtype=nl.int32))),
    ("range_select comparison", ("range_select", "comp_op0"), lambda: select(comp_op0=nl.not_equal)),
    ("predicate dtype", ("select_reduce", "predicate", "float32"),
     lambda: nisa.select_reduce(dst=empty((4, 4)), predicate=ones(4, 4), on_true=ones(4, 4), on_false=0.0)),
    ("select_reduce of int32", ("select_reduce", "on_true", "int32"),
     lambda: nisa.select_reduce(dst=empty((4, 4)), predicate=ones(4, 4, dtype=nl.uint8),
                                on_true=ones(4, 4, dtype=nl.int32), on_false=0.0)),
    ("predicated copy dtype", ("tensor_copy_predicated", "src", "dtype"),
     lambda: nisa.tensor_copy_predicated(dst=empty((4, 4)), src=ones(4, 4, dtype=BF),
                                         predicate=ones(4, 4, dtype=nl.uint8))),
    ("shuffle mask length", ("nc_stream_shuffle", "shuffle_mask", "32 entries"),
     lambda: nisa.nc_stream_shuffle(dst=empty((32, 1)), src=ones(32, 1), shuffle_mask=[0] * 31)),
    ("shuffle mask entry", ("nc_stream_shuffle", "shuffle_mask"),
     lambda: nisa.nc_stream_shuffle(dst=empty((32, 1)), src=ones(32, 1), shuffle_mask=[40] * 32)),
    ("shuffle from beyond src", ("nc_stream_shuffle", "partition 3"),
     lambda: nisa.nc_stream_shuffle(dst=empty((32, 1)), src=ones(2, 1), shuffle_mask=[3] * 32)),
    ("shuffle start partition", ("nc_stream_shuffle", "dst", "start at partition 32"),
     lambda: nisa.nc_stream_shuffle(dst=empty((128, 1))[32:96, :], src=ones(64, 1), shuffle_mask=[0] * 32)),
    ("shuffle dtype", ("nc_stream_shuffle", "src", "dtype"),
     lambda: nisa.nc_stream_shuffle(dst=empty((32, 1), BF), src=ones(32, 1), shuffle_mask=[0] * 32)),
    ("exponential before trn3", ("exponential", "gen4"), lambda: nisa.exponential(dst=empty((4, 4)), src=ones(4, 4))),
    ("exponential start value", ("exponential", "reduce_init", "load_reduce"),
     lambda: nisa.exponential(dst=empty((4, 4)), src=ones(4, 4), reduce_res=empty((4, 1)), reduce_cmd=RESET,
                              reduce_init=1.0), "trn3"),
    ("iota into PSUM", ("iota", "dst", "psum"), lambda: nisa.iota(dst=bank(4, 4), pattern=[[1, 4]])),
    ("iota count", ("iota", "pattern", "3 values"), lambda: nisa.iota(dst=empty((4, 4)), pattern=[[1, 3]])),
    ("iota beyond int32", ("iota", "pattern", "int32"),
     lambda: nisa.iota(dst=empty((4, 4)), pattern=[[1, 4]], offset=2**31 - 1)),
    ("affine_select of PSUM", ("affine_select", "on_true_tile", "psum"),
     lambda: nisa.affine_select(dst=empty((4, 4)), pattern=[[1, 4]], channel_multiplier=0,
                                on_true_tile=psum(np.ones((4, 4))), on_false_value=0.0)),
    ("partition reduction destination", ("tensor_partition_reduce", "dst"),
     lambda: nisa.tensor_partition_reduce(dst=empty((4, 4)), op=nl.add, data=ones(4, 4))),
    ("log of zero", ("activation", "data", "log"), lambda: activate(nl.log, 0.0)),
    ("sqrt of a negative", ("activation", "data", "sqrt"), lambda: activate(nl.sqrt, -1.0)),
    ("rsqrt of a tiny value", ("activation", "data", "rsqrt"), lambda: activate(nl.rsqrt, 2.0**-90)),
    ("ScalarE reciprocal of a huge value", ("activation", "data", "reciprocal"),
     lambda: activate(nl.reciprocal, -(2.0**43))),
    ("activation scale column", ("activation", "scale", "float32"),
     lambda: activate(nl.exp, 1.0, scale=ones(1, 1, dtype=BF))),
    ("activation bias number before trn2", ("activation", "bias", "gen3"),
     lambda: activate(nl.exp, 1.0, bias=0.5), "trn1"),
    ("activation reduction", ("activation", "reduce_op", "add"),
     lambda: activate(nl.exp, 1.0, reduce_op=nl.maximum, reduce_res=empty((1, 1)), reduce_cmd=RESET)),
    ("activation operator", ("activation", "op", "nl.add"), lambda: activate(nl.add, 1.0)),
    ("sum that never started", ("activation", "reduce_cmd", "starts with reset_reduce"),
     lambda: summed(ones(4, 4), REDUCE, empty((4, 1)))),
    ("interleaved sums", ("activation", "reduce_cmd", "interleaved"),
     lambda: in_order(lambda: summed(ones(4, 4), RESET), lambda: summed(ones(4, 4), RESET))),
    ("sum continues on other partitions", ("activation", "reduce_cmd", "interleaved"),
     lambda: in_order(lambda: summed(ones(4, 4), RESET), lambda: summed(ones(8, 4), REDUCE, empty((8, 1))))),
    ("maximum continues as a sum", ("tensor_scalar_reduce", "reduce_cmd", "interleaved"),
     lambda: in_order(lambda: topped(ones(4, 4), RESET), lambda: topped(ones(4, 4), REDUCE, empty((4, 1)), nl.add))),
    ("idle between two reduces", ("tensor_scalar_reduce", "reduce_cmd", "idle"),
     lambda: in_order(lambda: topped(ones(4, 4), RESET), lambda: topped(ones(4, 4), nisa.reduce_cmd.idle),
                      lambda: topped(ones(4, 4), REDUCE, empty((4, 1))))),
    ("barrier with one core", ("core_barrier", "LNC=2"),
     lambda: nisa.core_barrier(data=empty((4, 4), buffer=nl.shared_hbm), cores=(0, 1))),
    ("barrier on private memory", ("core_barrier", "data", "private_hbm"),
     lambda: nisa.core_barrier(data=empty((4, 4), buffer=nl.private_hbm), cores=(0, 1))),
    ("barrier cores", ("core_barrier", "cores"),
     lambda: nisa.core_barrier(data=empty((4, 4), buffer=nl.shared_hbm), cores=(0, 2))),
    ("register never loaded", ("register_store", "src", "register read"),
     lambda: nisa.register_store(empty((1, 1), nl.int32), nisa.register_alloc())),
    ("register from a float tile", ("register_load", "src", "32-bit integer"),
     lambda: nisa.register_load(dst=nisa.register_alloc(), src=ones(1, 1))),
]


def _add(case):
    name, fragments, body = case[:3]
    target = case[3] if len(case) > 3 else "trn2"
    CHECKS.append((f"refused: {name}", lambda: expect_refused(body, *fragments, target=target)))


for _case in CASES:
    _add(_case)


@check("refused: an unknown keyword, a missing dst, an operator called as a function")
def keywords():
    for body in (lambda: nisa.memset(dst=empty((4, 4)), value=0.0, speed=1), lambda: nisa.tensor_copy(src=ones(4, 4)),
                 lambda: nl.exp(ones(4, 4))):
        try:
            nki_model.run_on_core(body)
        except TypeError:
            continue
        raise AssertionError("nothing was refused")


@check("accepted: corrected forms of refused instructions")
def corrected():
    def body():
        nisa.memset(dst=empty((128, 2))[96:128, :], value=0.0)
        nisa.memset(dst=empty((128, 2))[64:128, :], value=0.0)
        matmul(dst=bank(4, 1024)[:, 512:516])
        matmul(m=128, n=512, k=128)
        matmul(left=nl.float8_e4m3)
        matmul(left=nl.float32, right=nl.tfloat32)
        matmul(tile_position=(32, 0), tile_size=(32, 128))
        accumulate_after(lambda dst: matmul(dst=dst))
        select(range_start=2**24 - 8)
        summed(ones(4, 4), RESET)
        summed(ones(4, 4), REDUCE, empty((4, 1)))
        topped(ones(4, 4), nisa.reduce_cmd.idle)
        topped(ones(4, 4), RESET, empty((4, 1)))
        activate(nl.log, 2.0**-64)
        activate(nl.reciprocal, -(2.0**42))
        nisa.dma_copy(dst=empty((4, 4)), src=ones(4, 4), dge_mode=nisa.dge_mode.hwdge, engine=nisa.engine.sync)
        nisa.tensor_scalar(dst=empty((4, 4)), data=ones(4, 4), op0=nl.multiply, operand0=2.0, op1=nl.add, operand1=1.0,
                           engine=nisa.engine.scalar)

    nki_model.run_on_core(body)
    expect(len(CASES) > 100, "the table of refusals shrank")
