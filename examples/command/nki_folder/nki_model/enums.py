"""Enumerations of nki.isa."""
import functools
from enum import Enum

from .faults import refuse


class engine(Enum):
    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class reduce_cmd(Enum):
    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(Enum):
    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(Enum):
    error = 0
    skip = 1


class matmul_perf_mode(Enum):
    none = "none"
    double_row = "double_row"


class dma_engine(Enum):
    dma = 1
    gpsimd_dma = 2


@functools.total_ordering
class nc_version(Enum):
    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __lt__(self, other):
        return self.value < other.value


TARGETS = {"trn1": nc_version.gen2, "trn2": nc_version.gen3, "trn3": nc_version.gen4}


def require_member(value, kind, operand):
    """Refuses raw integers and strings where an enumerator is required."""
    if not isinstance(value, kind):
        refuse(operand, f"must be a member of nisa.{kind.__name__}, not {value!r}")


def require_engine(value, allowed):
    require_member(value, engine, "engine")
    if value is not engine.unknown and value not in allowed:
        refuse("engine", f"{value} cannot run this; accepted: {sorted(e.name for e in allowed)}")
