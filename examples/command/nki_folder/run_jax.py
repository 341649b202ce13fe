"""Runs the kernels of this folder with JAX, one process for all ranks, and checks their results:

    python run_jax.py
"""
import importlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import check
import problem


def on_every_rank(function, mesh):
    """The function of one rank's tensors as a function of all ranks' tensors, joined along a first axis."""
    by_rank = PartitionSpec("rank")
    if hasattr(jax, "shard_map"):
        mapped = jax.shard_map(function, mesh=mesh, in_specs=by_rank, out_specs=by_rank, check_vma=False)
    else:
        from jax.experimental.shard_map import shard_map
        mapped = shard_map(function, mesh=mesh, in_specs=by_rank, out_specs=by_rank, check_rep=False)
    return jax.jit(mapped)


def main():
    devices = jax.devices()
    if len(devices) < check.WORLD:
        sys.exit(f"{len(devices)} devices; these kernels run on {check.WORLD}")
    mesh = Mesh(np.array(devices[:check.WORLD]), ("rank",))
    forward = [None] * check.WORLD
    for name in problem.KERNELS:
        if forward[0] and name == "ring_attention_fwd":
            continue
        kernel = check.launched(getattr(importlib.import_module(name), name))
        given = [check.arguments(name, rank, forward[rank]) for rank in range(check.WORLD)]

        def call(*tensors):
            results = check.call(kernel, name, dict(zip(given[0], [tensor[0] for tensor in tensors])))
            return tuple(result[None] for result in results)

        joined = [jnp.asarray(np.stack([tensors[operand][0] for tensors in given]), dtype=getattr(jnp, dtype))
                  for operand, (_, dtype) in given[0].items()]
        results = [np.asarray(result, np.float32) for result in on_every_rank(call, mesh)(*joined)]
        forward = [check.save(name, rank, [result[rank] for result in results]) for rank in range(check.WORLD)]
        if any(found.get("beyond_range", np.zeros(1)).any() for found in forward):
            forward = [None] * check.WORLD  # ring_attention_fwd is needed
    return 0 if check.check() else 1


if __name__ == "__main__":
    sys.exit(main())
