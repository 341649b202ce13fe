"""Installation of the model as nki, nki.isa, nki.language and nki.collectives in sys.modules."""
import sys
import types

from . import (collectives, core, dma, enums, gpsimd_engine, language, registers, scalar_engine, synchronisation,
               tensor_engine, vector_engine, vector_select)
from .launch import jit
from .operators import OPERATORS

INSTRUCTIONS = {
    tensor_engine: ("nc_matmul", "nc_transpose"),
    dma: ("dma_copy", "dma_transpose"),
    scalar_engine: ("activation", "activation_reduce"),
    vector_engine: ("tensor_tensor", "tensor_scalar", "scalar_tensor_tensor", "tensor_scalar_reduce", "tensor_reduce",
                    "tensor_copy", "reciprocal", "memset"),
    vector_select: ("range_select", "select_reduce", "tensor_copy_predicated", "nc_stream_shuffle", "exponential"),
    gpsimd_engine: ("iota", "affine_select", "tensor_partition_reduce"),
    synchronisation: ("core_barrier", "sendrecv"),
    registers: ("register_alloc", "register_move", "register_load", "register_store"),
    enums: ("engine", "reduce_cmd", "dge_mode", "oob_mode", "matmul_perf_mode", "dma_engine", "nc_version"),
}
COLLECTIVES = ("ReplicaGroup", "collective_permute_implicit", "collective_permute_implicit_reduce",
               "collective_permute_implicit_current_processing_rank_id", "rank_id")


def install():
    """Makes nki, nki.isa, nki.language and nki.collectives importable as the model; returns the module nki."""
    nki, isa, nl, ncc = (types.ModuleType(name) for name in ("nki", "nki.isa", "nki.language", "nki.collectives"))
    for module, names in INSTRUCTIONS.items():
        for name in names:
            setattr(isa, name, getattr(module, name))
    isa.get_nc_version = lambda: core.current().target
    for name in COLLECTIVES:
        setattr(ncc, name, getattr(collectives, name))
    for name, value in {**OPERATORS, **language.EXPORTED}.items():
        setattr(nl, name, value)
    nki.__path__ = []
    nki.jit = jit
    nki.isa, nki.language, nki.collectives = isa, nl, ncc
    for module in (nki, isa, nl, ncc):
        sys.modules[module.__name__] = module
    return nki
