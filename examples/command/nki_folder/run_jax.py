"""Runs the kernels of this folder with JAX, one process for all ranks, and checks their results:

    python run_jax.py
"""
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

import check


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

    def run(kernel, name, given):
        function = check.launched(kernel)

        def call(*tensors):
            results = check.call(function, name, dict(zip(given[0], [tensor[0] for tensor in tensors])))
            return tuple(result[None] for result in results)

        joined = [jnp.asarray(np.stack([tensors[operand][0] for tensors in given]), dtype=getattr(jnp, dtype))
                  for operand, (_, dtype) in given[0].items()]
        return list(zip(*[np.asarray(result, np.float32) for result in on_every_rank(call, mesh)(*joined)]))

    return check.run_kernels(range(check.WORLD), run)


if __name__ == "__main__":
    sys.exit(main())
