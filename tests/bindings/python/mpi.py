"""The Python module on the ranks of an mpi4py communicator: run by mpirun on two ranks or more."""

import annulus
import numpy as np
from mpi4py import MPI
from oracle import error_of, expected, named, random_arrays

world = MPI.COMM_WORLD
q, k, v, dout = random_arrays()
options = {"causal": True, "sharding": "zigzag"}
wanted = expected(q, k, v, dout, {}, options)
rows = annulus.positions("zigzag", world.rank, world.size, q.shape[1])
assert world.size > 1 and 0 < len(rows) < q.shape[1]

for zero_copy in ("automatic", "never"):
    with annulus.MpiRing(world, timeout=60, zero_copy=zero_copy) as ring:
        assert (ring.rank, ring.size) == (world.rank, world.size)
        attention = annulus.Attention(ring, **options)
        own = q[:, rows], k[:, rows], v[:, rows]
        forward = attention.forward(*own)
        gradients = attention.backward(dout[:, rows], forward, *own)
        found = named(forward.output, forward.lse, gradients)
        shards = {name: array[:, :, rows] if name == "lse" else array[:, rows] for name, array in wanted.items()}
        assert error_of(found, shards) < 1e-12, error_of(found, shards)
        try:
            attention.forward(own[0], own[1].astype(np.float32) if ring.rank == 1 else own[1], own[2])
        except annulus.UnsupportedError as error:
            assert "rank 1: k has elements of float32" in str(error)
        else:
            raise AssertionError("keys of another type are accepted")

# Not closed: it is freed before mpi4py finalizes MPI.
last = annulus.MpiRing(world.Split(0, -world.rank))
assert last.rank == world.size - 1 - world.rank
if world.rank == 0:
    print(f"the module agrees with dense attention on {world.size} ranks")
