"""The physical core that a thread models: its rank, its generation, its engine state."""
import collections
import functools
import threading

from . import faults

_thread = threading.local()


class Core:
    """One physical NeuronCore. rank: logical core; index: 0 or 1 inside the pair; pair: state that both share."""

    def __init__(self, rank, index, lnc, target, world, pair, groups):
        self.rank = rank
        self.index = index
        self.lnc = lnc
        self.target = target
        self.world = world
        self.pair = pair
        self.groups = groups
        self.shared_allocations = 0
        self.names = set()
        self.pinned = []
        self.scalar_accumulators = None
        self.vector_accumulators = None
        self.counts = collections.Counter()


class Pair:
    """State shared by the cores of one logical core: shared HBM tensors in allocation order."""

    def __init__(self):
        self.lock = threading.Lock()
        self.shared = {}


def current():
    core = getattr(_thread, "core", None)
    if core is None:
        raise faults.Refused("NKI calls work only inside a kernel started by nki_model.launch")
    return core


def enter(core):
    _thread.core = core
    faults.set_current_instruction("kernel")


def leave():
    _thread.core = None


def inside_kernel():
    return getattr(_thread, "core", None) is not None


def instruction(function):
    """Marks a function as an instruction: refusals carry its name and the core counts it."""
    name = function.__name__

    @functools.wraps(function)
    def issue(*arguments, **keywords):
        counts = current().counts
        counts[name] += 1
        faults.set_current_instruction(name)
        try:
            return function(*arguments, **keywords)
        finally:
            faults.set_current_instruction("kernel")

    return issue
