"""Launch of kernels: one thread per rank and core, with numpy arguments and results."""
import collections
import inspect
import os
import threading
import traceback

import numpy as np

from . import core as cores
from . import dtypes, faults
from .collectives import GroupSettings
from .enums import TARGETS
from .faults import KernelFailed, refuse
from .meeting import Aborted, World
from .operators import Operator
from .storage import Memory, Storage
from .tensor import Tensor, whole


def configured_cores():
    """Cores of a kernel whose call has no launch grid."""
    return int(os.environ.get("NEURON_LOGICAL_NC_CONFIG", 1))


class Kernel:
    """A function decorated by nki.jit: inlined when called by another kernel, else started by launch.

    start: called as start(kernel, lnc, arguments), by name, for a call outside kernels, kernel(...) or kernel[lnc](...).
    """

    start = None

    def __init__(self, function):
        self.function = function
        self.__name__ = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *arguments, **keywords):
        if not cores.inside_kernel():
            return self[configured_cores()](*arguments, **keywords)
        return self.function(*arguments, **keywords)

    def __getitem__(self, lnc):
        return Grid(self, lnc)


class Grid:
    """A kernel with the number of its cores."""

    def __init__(self, kernel, lnc):
        self.kernel = kernel
        self.lnc = lnc

    def __call__(self, *arguments, **keywords):
        if Kernel.start is None:
            raise TypeError(f"{self.kernel.__name__} is started by nki_model.launch, as in simulate.py")
        named = inspect.signature(self.kernel.function).bind(*arguments, **keywords).arguments
        return Kernel.start(self.kernel, self.lnc, named)


def jit(function=None):
    return Kernel(function) if function is not None else Kernel


class HbmArray:
    """An argument: values (any shape) rounded to a dtype, which numpy need not have."""

    def __init__(self, values, dtype):
        self.dtype = dtypes.named(dtype) if isinstance(dtype, str) else dtype
        values = np.asarray(values)
        if values.dtype.kind == "f":
            values = values.astype(np.float32)
        self.values = np.array(self.dtype.round(values))

    def numpy(self):
        """The values as stored on the device, as float32 (integers unchanged)."""
        return self.values if self.dtype.is_integer else self.values.astype(np.float32)


def bfloat16(values):
    """values rounded to bfloat16, as an HBM tensor argument."""
    return HbmArray(values, dtypes.bfloat16)


def float16(values):
    """values rounded to float16, as an HBM tensor argument."""
    return HbmArray(values, dtypes.float16)


def _argument(value, name):
    if isinstance(value, np.ndarray):
        try:
            value = HbmArray(value, dtypes.named(value.dtype.name))
        except ValueError:
            raise TypeError(f"argument {name}: numpy type {value.dtype} has no device type; convert it first") from None
    if isinstance(value, HbmArray):
        storage = Storage(value.values.shape, value.dtype, Memory.shared_hbm, str(name))
        storage.values[...] = value.values.reshape(-1)
        storage.defined[...] = True
        storage.read_only = True
        return whole(storage)
    if isinstance(value, tuple):
        return tuple(_argument(inner, name) for inner in value)
    if value is None or isinstance(value, (bool, int, float, str, dtypes.Dtype, Operator)):
        return value
    raise TypeError(f"argument {name}: {type(value).__name__} is no kernel argument "
                    "(tensors, numbers, strings, dtypes and tuples are; lists are not)")


def _arguments(given):
    """One rank's arguments: a tuple (positional) or a dict (by keyword)."""
    if isinstance(given, dict):
        return (), {name: _argument(value, name) for name, value in given.items()}
    if not isinstance(given, tuple):
        raise TypeError(f"the arguments of a rank are a tuple or a dict, not {type(given).__name__}")
    return tuple(_argument(value, f"argument{i}") for i, value in enumerate(given)), {}


def _returned(result):
    tensors = result if isinstance(result, tuple) else (result,)
    for position, tensor in enumerate(tensors):
        if not isinstance(tensor, Tensor):
            refuse(f"return value {position}", f"must be a tensor, not {tensor!r}")
        if tensor.buffer is not Memory.shared_hbm:
            refuse(f"return value {position}", f"{tensor.name} is in {tensor.buffer.name}; it must be in shared_hbm")
    return tensors


def _fetch(tensors, is_tuple):
    for position, tensor in enumerate(tensors):
        missing = tensor.size - int(np.count_nonzero(tensor.window(tensor.storage.defined)))
        if missing:
            refuse(f"return value {position}",
                   f"{missing} of {tensor.size} elements of {tensor.name} were never written")
    arrays = tuple(np.array(tensor.window(tensor.storage.values)) for tensor in tensors)
    return arrays if is_tuple else arrays[0]


def launch(kernel, lnc, args_per_rank, ring_order=None, target="trn2", group_ids="position", *, trust_partner=False,
           counts=None):
    """Runs `kernel` on len(args_per_rank) ranks of lnc cores each; returns per rank an array or a tuple of arrays.

    kernel: a nki.jit kernel or a plain function. lnc: 1 or 2. args_per_rank: per rank a tuple or a dict of arguments.
    ring_order: None (as the group lists its ranks), positions inside the group, or callable(group, channel) -> ring.
    target: trn1, trn2 or trn3. group_ids: meaning of the processing-rank id, position in the group or global rank.
    trust_partner: collectives also wait for earlier accesses of the partner core to their tensors (undocumented).
    counts: a dict that receives {(rank, core): Counter of instructions}.
    Raises KernelFailed with the traceback of the first thread that failed.
    """
    if lnc not in (1, 2):
        raise ValueError(f"lnc {lnc}: 1 or 2")
    if target not in TARGETS:
        raise ValueError(f"target {target!r}: one of {sorted(TARGETS)}")
    function = kernel.function if isinstance(kernel, Kernel) else kernel
    ranks = len(args_per_rank)
    world = World(ranks * lnc, trust_partner)
    groups = GroupSettings(ring_order, group_ids)
    results, failures, threads = {}, [], []

    def run(core, positional, keywords):
        cores.enter(core)
        try:
            result = function(*positional, **keywords)
            results[(core.rank, core.index)] = (_returned(result), isinstance(result, tuple))
        except Aborted:
            pass
        except BaseException as error:  # noqa: every failure must wake the other threads
            failures.append((core, error, traceback.format_exc()))
            world.fail()
        finally:
            cores.leave()
            stuck = world.leave()
            if stuck:
                text = f"rank {core.rank} core {core.index} ended while others wait for it: {stuck}"
                failures.append((core, faults.Refused(text), text))

    for rank, given in enumerate(args_per_rank):
        positional, keywords = _arguments(given)
        pair = cores.Pair()
        for index in range(lnc):
            core = cores.Core(rank, index, lnc, TARGETS[target], world, pair, groups)
            if counts is not None:
                counts[(rank, index)] = core.counts
            threads.append(threading.Thread(target=run, args=(core, positional, keywords), daemon=True))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        core, error, text = failures[0]
        raise KernelFailed(f"rank {core.rank} core {core.index}: {error}\n{text}", error)
    return _gather(results, ranks, lnc)


def _gather(results, ranks, lnc):
    outputs = []
    for rank in range(ranks):
        tensors, is_tuple = results[(rank, 0)]
        for index in range(1, lnc):
            others, _ = results[(rank, index)]
            if [t.storage for t in tensors] != [t.storage for t in others]:
                raise KernelFailed(f"rank {rank}: its cores return different tensors", None)
        try:
            outputs.append(_fetch(tensors, is_tuple))
        except faults.Refused as error:
            raise KernelFailed(f"rank {rank}: {error}", error) from error
    return outputs


def run_on_core(function, *arguments, target="trn2", lnc=1):
    """Runs function(*arguments) as a kernel body of one LNC=1 core in this thread; returns what it returns.

    Tensor arguments as for launch; on-chip results are read with Tensor.to_numpy().
    """
    core = cores.Core(0, 0, lnc, TARGETS[target], World(1, False), cores.Pair(), GroupSettings(None, "position"))
    cores.enter(core)
    try:
        return function(*(_argument(value, f"argument{i}") for i, value in enumerate(arguments)))
    finally:
        cores.leave()
