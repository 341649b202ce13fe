"""Stand-ins for torch, torch_xla, torch_neuronx, jax, ml_dtypes and nki.simulate, as far as emitted launchers use them.

Ranks are threads of one process: a kernel call waits for the calls of all ranks and then runs on the numpy model.
"""
import inspect
import sys
import threading
import types

import numpy as np

import nki_model
from nki_model.launch import Kernel, configured_cores

_thread = threading.local()


class World:
    """The ranks of a run and what they wait at. collect(rank, item) returns what compute made of all ranks' items.

    ring_order, group_ids: as for nki_model.launch.
    """

    def __init__(self, ranks, ring_order=None, group_ids="position"):
        self.ranks = ranks
        self.ring_order = ring_order
        self.group_ids = group_ids
        self.barrier = threading.Barrier(ranks, timeout=300)
        self.items = {}
        self.made = None

    def collect(self, rank, item, compute):
        self.items[rank] = item
        if self.barrier.wait() == 0:
            self.made = compute([self.items[place] for place in range(self.ranks)])
        self.barrier.wait()
        return self.made[rank]

    def run(self, function):
        """Runs function() on every rank; returns the results, or raises the first error."""
        results, errors = {}, []

        def of_rank(rank):
            _thread.world, _thread.rank = self, rank
            try:
                results[rank] = function()
            except BaseException as error:  # noqa: a rank that ends must wake the others
                errors.append(error)
                self.barrier.abort()

        threads = [threading.Thread(target=of_rank, args=(rank,)) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        broken = threading.BrokenBarrierError
        for error in sorted(errors, key=lambda error: isinstance(error, broken)):
            raise error
        return [results[rank] for rank in range(self.ranks)]


class Array:
    """A tensor of either framework: values and the name of their type."""

    def __init__(self, values, dtype):
        self.values = nki_model.HbmArray(values, dtype).numpy()
        self.dtype = dtype

    def to(self, target):
        return Array(self.values, target) if isinstance(target, str) and target != "device" else self

    def cpu(self):
        return self

    def float(self):
        return self.to("float32")

    def numpy(self):
        return self.values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    def __getitem__(self, index):
        return Array(self.values[index], self.dtype)


def start(kernel, lnc, arguments):
    """A kernel call by one rank, which returns that rank's results."""
    world, rank = _thread.world, _thread.rank

    def compute(all_arguments):
        hbm = lambda value: nki_model.HbmArray(value.values, value.dtype) if isinstance(value, Array) else value
        per_rank = [{name: hbm(value) for name, value in given.items()} for given in all_arguments]
        return nki_model.launch(kernel, lnc, per_rank, ring_order=world.ring_order, group_ids=world.group_ids)

    results = world.collect(rank, arguments, compute)
    wrapped = tuple(Array(result, "float32") for result in (results if isinstance(results, tuple) else (results,)))
    return wrapped if isinstance(results, tuple) else wrapped[0]


def module(name, **members):
    made = types.ModuleType(name)
    made.__dict__.update(members)
    sys.modules[name] = made
    return made


def barrier():
    _thread.world.barrier.wait()


def all_reduce(array, op):
    """Leaves the largest of all ranks' values in the array."""
    assert op == "max"
    world = _thread.world
    array.values = world.collect(_thread.rank, array.values, lambda all_values: [np.max(all_values, 0)] * world.ranks)


def install_torch(native):
    """torch, with torch_neuronx alone (native) or with torch_xla."""
    opened = []
    types_of = {name: name for name in ("float32", "float16", "bfloat16")}
    distributed = module("torch.distributed", init_process_group=opened.append, get_rank=lambda: _thread.rank,
                         get_world_size=lambda: _thread.world.ranks, barrier=barrier, all_reduce=all_reduce,
                         ReduceOp=types.SimpleNamespace(MAX="max"),
                         destroy_process_group=lambda: None)
    module("torch", distributed=distributed, from_numpy=lambda values: Array(values, values.dtype.name),
           tensor=lambda values: Array(np.array(values, np.float32), "float32"),
           device=lambda name: "device", **types_of)
    if native:
        module("torch_neuronx")
        for name in ("torch_xla", "torch_xla.core", "torch_xla.core.xla_model"):
            sys.modules[name] = None
    else:
        xla_model = module("torch_xla.core.xla_model", xla_device=lambda: "device")
        core, backend = module("torch_xla.core", xla_model=xla_model), module("torch_xla.distributed.xla_backend")
        module("torch_xla", core=core, distributed=module("torch_xla.distributed", xla_backend=backend))
    return opened


def install_jax(devices, ring_order=None, experimental=False):
    """jax with that many devices; experimental: an older jax, whose shard_map is in jax.experimental."""

    def shard_map(function, mesh, in_specs, out_specs, **checks):
        assert checks == ({"check_rep": False} if experimental else {"check_vma": False}) and in_specs == out_specs

        def mapped(*arrays):
            def of_rank():
                rank = _thread.rank
                return function(*[Array(array.values[rank:rank + 1], array.dtype) for array in arrays])
            parts = World(len(mesh.devices), ring_order).run(of_rank)
            return tuple(Array(np.concatenate([part.values for part in result]), "float32") for result in zip(*parts))
        return mapped

    mesh = lambda grid, names: types.SimpleNamespace(devices=grid, names=names)
    module("jax.numpy", asarray=lambda values, dtype: Array(values, dtype), float32="float32", float16="float16",
           bfloat16="bfloat16")
    module("jax.sharding", Mesh=mesh, PartitionSpec=lambda *names: names)
    module("jax.experimental")
    module("jax.experimental.shard_map", shard_map=shard_map)
    jax = module("jax", devices=lambda: list(range(devices)), jit=lambda function: function)
    jax.numpy, jax.sharding = sys.modules["jax.numpy"], sys.modules["jax.sharding"]
    if not experimental:
        jax.shard_map = shard_map


def install_simulator():
    """ml_dtypes and nki.simulate, which takes numpy arrays and the kernel of one rank."""
    nki = sys.modules["nki"]
    module("ml_dtypes", bfloat16=np.float32)

    def simulate(kernel):
        called = kernel if hasattr(kernel, "lnc") else kernel[configured_cores()]

        def run(*arrays, **constants):
            given = inspect.signature(called.kernel.function).bind(*map(np.asarray, arrays), **constants).arguments
            return nki_model.launch(called.kernel, called.lnc, [given])[0]
        return run

    nki.simulate = simulate


def install():
    """Lets ranks start kernels of the model."""
    Kernel.start = staticmethod(start)
