"""Model of core_barrier and sendrecv between the two cores of a pair."""
from .core import current, instruction
from .enums import dma_engine as dma_engines
from .enums import engine as engines
from .enums import nc_version, require_engine, require_member
from .faults import refuse
from .operands import SBUF_ONLY, require_tensor
from .storage import Memory

GPSIMD_DMA_BYTES = {4: 1024, 2: 512, 1: 256}


def _require_pair(core):
    if core.lnc != 2 or core.target < nc_version.gen3:
        refuse("", f"needs LNC=2 on gen3 or later; this launch has LNC={core.lnc}")


@instruction
def core_barrier(data, cores, engine=engines.gpsimd, name=None):
    """Both cores of the pair wait for each other; orders their accesses to the shared HBM tensor `data`."""
    core = current()
    require_engine(engine, tuple(engines))
    require_tensor(data, "data")
    if data.buffer is not Memory.shared_hbm:
        refuse("data", f"{data.name} is in {data.buffer.name}; it must be in shared_hbm")
    if tuple(cores) != (0, 1):
        refuse("cores", f"{cores!r}; (0, 1) only")
    _require_pair(core)

    def order(unused):
        if data.storage.guard is not None:
            data.storage.guard.barrier()

    members = [(core.rank, 0), (core.rank, 1)]
    core.world.meet((core.rank, core.index), members, ("pair", core.rank), f"core_barrier({data.name})", data, order)


@instruction
def sendrecv(src, dst, send_to_rank, recv_from_rank, pipe_id, dma_engine=dma_engines.dma, name=None):
    """Swaps SBUF tiles inside the pair: src goes to the other core, dst receives the other core's src."""
    core = current()
    require_member(dma_engine, dma_engines, "dma_engine")
    for operand, tile in (("src", src), ("dst", dst)):
        require_tensor(tile, operand)
        if tile.buffer not in SBUF_ONLY:
            refuse(operand, f"{tile.name} is in {tile.buffer.name}; it must be in sbuf")
    if src.shape != dst.shape or src.dtype is not dst.dtype:
        refuse("dst", f"{dst.shape} {dst.dtype.name} differs from src {src.shape} {src.dtype.name}")
    _require_pair(core)
    other = 1 - core.index
    if send_to_rank != other or recv_from_rank != other:
        refuse("send_to_rank and recv_from_rank",
               f"{send_to_rank}, {recv_from_rank}; core {core.index} swaps with {other}")
    limit = GPSIMD_DMA_BYTES[src.dtype.item_bytes]
    if dma_engine is dma_engines.gpsimd_dma and src.per_partition * src.dtype.item_bytes > limit:
        refuse("dma_engine", f"gpsimd_dma moves at most {limit} bytes per partition of this type")

    def swap(deposits):
        (first_src, first_dst), (second_src, second_dst) = deposits[(core.rank, 0)], deposits[(core.rank, 1)]
        if first_src.shape != second_src.shape or first_src.dtype is not second_src.dtype:
            refuse("src", f"{first_src.shape} on core 0 and {second_src.shape} on core 1")
        to_second, to_first = first_src.to_numpy(), second_src.to_numpy()
        first_dst.write(to_first, exact=True)
        second_dst.write(to_second, exact=True)

    members = [(core.rank, 0), (core.rank, 1)]
    core.world.meet((core.rank, core.index), members, ("pair", core.rank), f"sendrecv(pipe {pipe_id})", (src, dst),
                    swap)
