"""Checks with two cores and several ranks: barriers, races, collectives, failures without hang, returned tensors."""
import numpy as np

import nki_model
import nki.collectives as ncc
import nki.isa as nisa
import nki.language as nl

from .checking import check, empty, expect, expect_equal, expect_launch_refused, numbers, sbuf

GROUP = ((0, 1, 2, 3),)


def shared(name, shape=(4, 8), dtype=nl.float32):
    return nl.ndarray(shape, dtype=dtype, buffer=nl.shared_hbm, name=name)


def put(dst, value):
    nisa.dma_copy(dst=dst, src=sbuf(np.full((1, dst.size), value, np.float32)))


def processing(step, group):
    return ncc.collective_permute_implicit_current_processing_rank_id(iteration_id=step, replica_group=group)


def permute(src, dst, group=GROUP, **options):
    ncc.collective_permute_implicit(srcs_by_channel=[[src]], dsts_by_channel=[[dst]],
                                    replica_group=ncc.ReplicaGroup(group), **options)


@check("pair: halves of one shared tensor, program ids, barrier, exchange through it")
def halves():
    def kernel(x):
        core = nl.program_id(0)
        expect((nl.num_programs(0), nl.program_ndim()) == (2, 1), "program shape")
        middle, out = shared("middle"), shared("out")
        nisa.dma_copy(dst=middle[2 * core:2 * core + 2, :], src=x[2 * core:2 * core + 2, :])
        nisa.core_barrier(data=middle, cores=(0, 1))
        nisa.dma_copy(dst=out[2 * core:2 * core + 2, :], src=middle[2 - 2 * core:4 - 2 * core, :])
        return out

    x = numbers(4, 8)
    expect_equal(nki_model.launch(kernel, 2, [(x,)])[0], np.roll(x, 2, axis=0), "swapped halves")


@check("pair: sendrecv swaps tiles")
def swaps():
    def kernel():
        core = nl.program_id(0)
        mine, theirs, out = sbuf(np.full((2, 4), 1.0 + core)), empty((2, 4)), shared("out", (2, 2, 4))
        nisa.sendrecv(src=mine, dst=theirs, send_to_rank=1 - core, recv_from_rank=1 - core, pipe_id=0)
        nisa.dma_copy(dst=out[core], src=theirs)
        return out

    expect_equal(nki_model.launch(kernel, 2, [()])[0], np.repeat([2.0, 1.0], 8).reshape(2, 2, 4).astype(np.float32),
                 "swap")


@check("race: read of the other core's write without a barrier, in either order")
def race_read():
    def kernel(late_writer):
        core = nl.program_id(0)
        middle, other = shared("middle"), shared("other")
        if core == 0:
            put(middle, 1.0)
        nisa.core_barrier(data=other if late_writer == 2 else middle, cores=(0, 1))
        if late_writer == 0 and core == 0:
            put(middle, 2.0)
        nisa.dma_copy(dst=empty((4, 8)), src=middle)
        nisa.core_barrier(data=other, cores=(0, 1))
        put(other[2 * core:2 * core + 2, :], 0.0)
        return other

    nki_model.launch(kernel, 2, [(1,)])
    expect_launch_refused(kernel, 2, [(0,)], "race", "middle")
    expect_launch_refused(kernel, 2, [(2,)], "race", "middle")


@check("race: both cores write one element; one core writes what the other read")
def race_write():
    def both():
        out = shared("out")
        put(out, 1.0)
        return out

    expect_launch_refused(both, 2, [()], "race", "both cores")

    def after_read():
        core = nl.program_id(0)
        out = shared("out")
        if core == 0:
            put(out, 1.0)
        nisa.core_barrier(data=out, cores=(0, 1))
        if core == 1:
            nisa.dma_copy(dst=empty((4, 8)), src=out)
        other = shared("other")
        nisa.core_barrier(data=other, cores=(0, 1))
        if core == 0:
            put(out, 2.0)
        return out

    expect_launch_refused(after_read, 2, [()], "race", "the other core read it")


@check("collective race: sources require a barrier, overwritten tensors a barrier or trust_partner")
def race_collective():
    def kernel(source_barrier, target_barrier):
        core = nl.program_id(0)
        a, b = shared("a"), shared("b")
        put(a[2 * core:2 * core + 2, :], 1.0)
        put(b[2 * core:2 * core + 2, :], 2.0)
        if source_barrier:
            nisa.core_barrier(data=a, cores=(0, 1))
        if target_barrier:
            nisa.core_barrier(data=b, cores=(0, 1))
        permute(a, b, ((0, 1),))
        return b

    nki_model.launch(kernel, 2, [(True, True)] * 2)
    expect_launch_refused(kernel, 2, [(False, True)] * 2, "race", "a: ")
    expect_launch_refused(kernel, 2, [(True, False)] * 2, "race", "b: ")
    nki_model.launch(kernel, 2, [(True, False)] * 2, trust_partner=True)


@check("permute: every ring order, several groups, both meanings of the id, several channels")
def permutes():
    def kernel(x, groups):
        group = ncc.ReplicaGroup(groups)
        here, there, owner = shared("here"), shared("there"), shared("owner", (3, 1), nl.int32)
        second = shared("second")
        nisa.dma_copy(dst=here, src=x)
        word = empty((1, 1), nl.int32)
        for step in range(2):
            nisa.register_store(word, processing(step, group))
            nisa.dma_copy(dst=owner[step:step + 1, :], src=word)
        nisa.register_store(word, ncc.rank_id())
        nisa.dma_copy(dst=owner[2:3, :], src=word)
        ncc.collective_permute_implicit(srcs_by_channel=[[here], [here]], dsts_by_channel=[[there], [second]],
                                        replica_group=group,
                                        channel_ids=[0, 1])
        return there, second, owner

    groups = ((0, 2), (1, 5), (3, 4))
    arguments = [(np.full((4, 8), float(r), np.float32), groups) for r in range(6)]
    for meaning in ("position", "global"):
        outputs = nki_model.launch(kernel, 1, arguments, group_ids=meaning)
        for group in groups:
            for position, rank in enumerate(group):
                before = group[position - 1]
                expect((outputs[rank][0] == before).all() and (outputs[rank][1] == before).all(),
                       "data of the predecessor")
                ids = (rank, before) if meaning == "global" else (position, (position - 1) % 2)
                expect_equal(outputs[rank][2][:, 0], np.int32([*ids, rank]), f"ids, {meaning}")
    arguments = [(np.full((4, 8), float(r), np.float32), GROUP) for r in range(4)]
    ring = (2, 0, 3, 1)

    def per_channel(group, channel):
        return ring if channel == 0 else group

    by_channel = nki_model.launch(kernel, 1, arguments, ring_order=per_channel)
    for order in (ring, [2, 0, 3, 1], lambda group, channel: ring):
        outputs = nki_model.launch(kernel, 1, arguments, ring_order=order)
        for position, rank in enumerate(ring):
            expect((outputs[rank][0] == ring[position - 1]).all(), "ring order")
            expect(outputs[rank][2][1, 0] == ring[position - 1], "owner after one hop")
    for rank in range(4):
        expect((by_channel[rank][0] == ring[ring.index(rank) - 1]).all(), "ring of channel 0")
        expect((by_channel[rank][1] == (rank - 1) % 4).all(), "ring of channel 1")


@check("permute-reduce: the predecessor's sum, rounded to the dtype")
def reduces():
    def kernel(x, y):
        a, b, c = shared("a", dtype=nl.bfloat16), shared("b", dtype=nl.bfloat16), shared("c", dtype=nl.bfloat16)
        nisa.dma_copy(dst=a, src=x)
        nisa.dma_copy(dst=b, src=y)
        ncc.collective_permute_implicit_reduce(srcs0_by_channel=[[a]], srcs1_by_channel=[[b]], dsts_by_channel=[[c]],
                                               replica_group=ncc.ReplicaGroup(((0, 1),)), op=nl.add)
        return c

    x, y = [[nki_model.bfloat16(numbers(4, 8, seed=s)) for s in seeds] for seeds in ((1, 2), (3, 4))]
    outputs = nki_model.launch(kernel, 1, list(zip(x, y)))
    for rank in range(2):
        expect_equal(outputs[rank], nki_model.bfloat16(x[1 - rank].numpy() + y[1 - rank].numpy()).numpy(), "sum")


@check("collective rules: lists, channels, shapes, memory, distinct tensors, group")
def collective_rules():
    def kernel(change):
        a, b, c = shared("a"), shared("b"), shared("c", (8, 4))
        put(a, 1.0)
        group = ncc.ReplicaGroup(((0, 1),))
        call = dict(srcs_by_channel=[[a]], dsts_by_channel=[[b]], replica_group=group)
        call.update({"inner": dict(srcs_by_channel=[[a, a]]), "channel": dict(channel_ids=[1]),
                     "shape": dict(dsts_by_channel=[[c]]),
                     "same": dict(dsts_by_channel=[[a]]), "memory": dict(srcs_by_channel=[[sbuf(np.ones((4, 8)))]]),
                     "group": dict(replica_group=((0, 1),)), "none": {}}[change])
        ncc.collective_permute_implicit(**call)
        return b

    nki_model.launch(kernel, 1, [("none",)] * 2)
    for change, words in (("inner", "exactly one"), ("channel", "consecutive"), ("shape", "must be equal"),
                          ("same", "is a source"),
                          ("memory", "sbuf"), ("group", "ReplicaGroup")):
        expect_launch_refused(kernel, 1, [(change,)] * 2, "collective_permute_implicit", words)

    def overlapping():
        return ncc.ReplicaGroup(((0, 1), (1, 2)))

    expect_launch_refused(overlapping, 1, [()], "no two groups")


@check("undefined elements stay undefined across a permute")
def undefined_travel():
    def kernel():
        a, b = shared("a"), shared("b")
        put(a[0:3, :], 1.0)
        permute(a, b, ((0, 1),))
        return b

    expect_launch_refused(kernel, 1, [()] * 2, "return value 0", "8 of 32 elements", "never written")


@check("no hang: a failing thread, unequal sequences, a missing partner, a missing rank")
def no_hang():
    def fails(rank):
        a, b = shared("a"), shared("b")
        put(a, 1.0)
        if rank == 1:
            raise ValueError("the words of the failing kernel")
        permute(a, b, ((0, 1),))
        return b

    expect_launch_refused(fails, 1, [(0,), (1,)], "rank 1 core 0", "the words of the failing kernel", "Traceback")

    def unequal(rank):
        a, b, c = shared("a"), shared("b"), shared("c")
        put(a, 1.0)
        permute(a, b if rank == 0 else c, ((0, 1),))
        return b

    expect_launch_refused(unequal, 1, [(0,), (1,)], "sequences must be equal")

    def alone():
        a = shared("a")
        if nl.program_id(0) == 0:
            nisa.core_barrier(data=a, cores=(0, 1))
        return a

    expect_launch_refused(alone, 2, [()], "wait")

    def crossed():
        a, b = shared("a"), shared("b")
        if nl.program_id(0) == 0:
            nisa.core_barrier(data=a, cores=(0, 1))
        else:
            permute(a, b, ((0,),))
        return b

    expect_launch_refused(crossed, 2, [()], "deadlock")

    def absent():
        a, b = shared("a"), shared("b")
        put(a, 1.0)
        permute(a, b, ((0, 1, 2),))
        return b

    expect_launch_refused(absent, 1, [()] * 2, "deadlock")


@check("launch: returned tensors, arguments, allocation order of the pair")
def launches():
    x = numbers(4, 8)
    expect_launch_refused(lambda t: empty((4, 8)), 1, [(x,)], "return value 0", "shared_hbm")
    expect_launch_refused(lambda t: shared("o"), 1, [(x,)], "return value 0", "32 of 32")
    expect_launch_refused(lambda t: 3, 1, [(x,)], "must be a tensor")
    expect_launch_refused(lambda t: put(t, 1.0), 1, [(x,)], "read-only")
    expect_launch_refused(lambda t: shared("o", (4, 8 + nl.program_id(0))), 2, [(x,)], "shared_hbm allocation 0")
    for bad in ([1, 2], x.astype(np.float64), object()):
        try:
            nki_model.launch(lambda t: t, 1, [(bad,)])
        except TypeError:
            continue
        raise AssertionError(f"{type(bad)} was accepted")

    def copied(t, scale):
        out = shared("o", dtype=nl.bfloat16)
        tile = empty((4, 8))
        nisa.dma_copy(dst=tile, src=t)
        nisa.tensor_scalar(dst=tile, data=tile, op0=nl.multiply, operand0=scale)
        nisa.dma_copy(dst=out, src=tile)
        return (out,)

    counts = {}
    outputs = nki_model.launch(copied, 1, [dict(scale=2.0, t=nki_model.float16(x))], counts=counts)
    expect_equal(outputs[0][0], nki_model.bfloat16(2 * nki_model.float16(x).numpy()).numpy(),
                 "bfloat16 arrives as float32")
    expect(counts[(0, 0)]["dma_copy"] == 2 and counts[(0, 0)]["tensor_scalar"] == 1, f"{counts}")
