"""Checks of tensors, views, definedness, tiles of fixed address, DMA and registers."""
import numpy as np

import nki_model
import nki.isa as nisa
import nki.language as nl

from .checking import check, empty, expect, expect_equal, expect_refused, numbers, on_core, sbuf


def on_hbm(values, body, target="trn2"):
    """Runs body(tensor of values in HBM) on one core and returns its tile as an array."""
    return nki_model.run_on_core(lambda tensor: body(tensor).to_numpy(), values, target=target)


@check("slices and indices keep or drop axes as documented")
def indexing():
    def body(hbm):
        tile = sbuf(numbers(8, 4, 6))
        shapes = (tile[2:4].shape, tile[1].shape, tile[:, 1].shape, tile[:, 1, 2].shape,
                  tile[0:2, nl.ds(1, 2), 0:6:2].shape,
                  hbm[1].shape, hbm[1, 2].shape, hbm[:, 1:3].shape)
        wanted = ((2, 4, 6), (1, 4, 6), (8, 6), (8, 1), (2, 2, 3), (4, 6), (6,), (8, 2, 6))
        expect(shapes == wanted, f"{shapes} wanted {wanted}")
        return tile

    on_hbm(numbers(8, 4, 6), body)


@check("slices, .ap and reshape address the same elements as numpy")
def addressing():
    a = numbers(8, 24)

    def body():
        tile = sbuf(a)
        outputs = (empty((8, 3)), empty((8, 2, 4)), empty((4, 24)), empty((8, 6)))
        nisa.tensor_copy(dst=outputs[0], src=tile[:, 3:24:8])
        nisa.tensor_copy(dst=outputs[1], src=tile.ap(pattern=[[24, 8], [1, 2], [6, 4]], offset=2))
        nisa.dma_copy(dst=outputs[2], src=tile.ap(pattern=[[24, 4], [1, 24]], offset=48))
        nisa.tensor_copy(dst=outputs[3], src=tile.reshape((8, 4, 6))[:, 2:3, :])
        return outputs

    got = on_core(body)
    expect_equal(got[0], a[:, 3:24:8], "strided slice")
    expect_equal(got[1], np.stack([a[:, 2:24:6], a[:, 3:24:6]], axis=1), ".ap")
    expect_equal(got[2], a[2:6], ".ap from partition 2")
    expect_equal(got[3], a[:, 12:18], "reshape")


@check("definedness is tracked per element, through slices, copies and fills")
def definedness():
    def partly():
        tile = empty((4, 4))
        nisa.memset(dst=tile[:, 0:3], value=1.0)
        nisa.tensor_copy(dst=empty((4, 3)), src=tile[:, 0:3])
        nisa.tensor_copy(dst=empty((4, 2)), src=tile[:, 2:4])

    expect_refused(partly, "tensor_copy", "4 elements", "never written", "[0, 1]")

    def by_predicate():
        tile = empty((1, 4))
        nisa.tensor_copy_predicated(dst=tile, src=1.0, predicate=sbuf([[1, 1, 0, 1]], nl.uint8))
        nisa.tensor_copy(dst=empty((1, 4)), src=tile)

    expect_refused(by_predicate, "1 elements", "never written", "[0, 2]")


@check("tiles of fixed address: writing one makes exactly the overlapped elements undefined")
def pinned():
    def body(read):
        first = nl.ndarray((64, 8), dtype=nl.float32, buffer=nl.sbuf, address=(0, 0))
        second = nl.ndarray((32, 8), dtype=nl.bfloat16, buffer=nl.sbuf, address=(32, 16))
        nisa.memset(dst=first, value=1.0)
        nisa.memset(dst=second[:, 0:2], value=2.0)
        nisa.tensor_copy(dst=empty((32, 1)), src=read(first))

    def of(partition, column):
        return lambda: body(lambda tile: tile[partition:partition + 32, column:column + 1])

    nki_model.run_on_core(of(0, 4))
    nki_model.run_on_core(of(32, 3))
    nki_model.run_on_core(of(32, 5))
    expect_refused(of(32, 4), "never written")


@check("nl.zeros is defined; nl.ndarray is not")
def allocation():
    expect_equal(on_core(lambda: nl.zeros((4, 3), nl.bfloat16, nl.sbuf)), np.zeros((4, 3), np.float32), "zeros")
    expect_refused(lambda: nisa.reciprocal(dst=empty((4, 3)), data=empty((4, 3))), "reciprocal", "never written")


@check("dma_copy: cast, shapes, HBM to HBM")
def dma():
    a = numbers(4, 32)

    def body(hbm):
        other = nl.ndarray((128,), dtype=nl.bfloat16, buffer=nl.private_hbm)
        nisa.dma_copy(dst=other, src=hbm)
        tile = empty((32, 4))
        nisa.dma_copy(dst=tile, src=other.ap(pattern=[[1, 32], [32, 4]], offset=0))
        return tile

    expect_equal(on_hbm(a, body), nki_model.bfloat16(a).numpy().T, "strided copy with a cast")


@check("dma_copy: run-time addresses by register, tensor and row indices; rows outside are skipped")
def run_time_addresses():
    table = np.arange(60, dtype=np.float32).reshape(10, 6)

    def by_register(hbm):
        register = nisa.register_alloc(4)
        tile = empty((2, 3))
        nisa.dma_copy(dst=tile, src=hbm.ap(pattern=[[6, 2], [1, 3]], offset=1, scalar_offset=register, indirect_dim=0))
        return tile

    expect_equal(on_hbm(table, by_register), table[4:6, 1:4], "register on axis 0")

    def by_tensor(hbm):
        tile = empty((2, 3))
        nisa.dma_copy(dst=tile, src=hbm.ap(pattern=[[6, 2], [1, 3]], offset=0, scalar_offset=sbuf([[2]], nl.int32),
                                           indirect_dim=1))
        return tile

    expect_equal(on_hbm(table, by_tensor), table[0:2, 2:5], "tensor on axis 1")

    def by_rows(hbm):
        tile = sbuf(np.zeros((3, 6)))
        rows = sbuf([[7], [99], [2]], nl.uint32)
        nisa.dma_copy(dst=tile, src=hbm.ap(pattern=[[6, 3], [1, 6]], offset=0, vector_offset=rows, indirect_dim=0),
                      oob_mode=nisa.oob_mode.skip)
        return tile

    expect_equal(on_hbm(table, by_rows), np.stack([table[7], 0 * table[0], table[2]]), "rows")

    def outside():
        tile = sbuf(table)
        nisa.dma_copy(dst=empty((1, 6)), src=tile.ap(pattern=[[6, 1], [1, 6]], scalar_offset=nisa.register_alloc(10)))

    expect_refused(outside, "dma_copy", "src", "out of range")


@check("dma_transpose: 2-D, 3-D, 4-D")
def dma_transposes():
    a = nki_model.bfloat16(numbers(32, 64))

    def flat(hbm):
        tile = empty((64, 32), nl.bfloat16)
        nisa.dma_transpose(dst=tile, src=hbm)
        return tile

    expect_equal(on_hbm(a, flat), a.numpy().T, "2-D")
    b = nki_model.bfloat16(numbers(16, 1, 3, 32))

    def four(hbm):
        tile = empty((32, 1, 3, 16), nl.bfloat16)
        nisa.dma_transpose(dst=tile, src=hbm)
        return tile

    expect_equal(on_hbm(b, four), b.numpy().transpose(3, 1, 2, 0), "4-D")
    c = nki_model.bfloat16(numbers(16, 2, 48))

    def three(hbm):
        tile = empty((48, 2, 16), nl.bfloat16)
        nisa.dma_transpose(dst=tile, src=hbm, axes=(2, 1, 0))
        return tile

    expect_equal(on_hbm(c, three), c.numpy().transpose(2, 1, 0), "3-D")


@check("registers: alloc, move, load, store; no Python value")
def registers():
    def body():
        first, second = nisa.register_alloc(5), nisa.register_alloc()
        nisa.register_move(dst=second, src=first)
        nisa.register_load(dst=first, src=sbuf([[77]], nl.int32))
        tile = empty((1, 2), nl.int32)
        nisa.register_store(tile[:, 0:1], first)
        nisa.register_store(tile[:, 1:2], second)
        return tile

    expect_equal(on_core(body), np.int32([[77, 5]]), "registers")

    for use in (bool, int, range, lambda r: r + 1, lambda r: r == 3):
        try:
            nki_model.run_on_core(lambda: use(nisa.register_alloc(1)))
        except TypeError:
            continue
        raise AssertionError("a register became a Python value")


@check("target and sizes can be queried")
def queries():
    def body(version, bytes_per_partition):
        expect(nisa.get_nc_version() == version, "version")
        expect(nl.tile_size.pmax == 128 and nl.tile_size.sbuf_fmax_bytes == bytes_per_partition, "sizes")
        expect((nl.program_id(0), nl.num_programs(0), nl.program_ndim()) == (0, 1, 0), "program ids")

    nki_model.run_on_core(lambda: body(nisa.nc_version.gen3, 212984), target="trn2")
    nki_model.run_on_core(lambda: body(nisa.nc_version.gen4, 245752), target="trn3")
    expect(nisa.nc_version.gen3 < nisa.nc_version.gen4, "order")
