"""The processes of mpirun give the same bits as simulated ranks, and all end if a call is bad."""

import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import Folder, attend, run, save_operands  # noqa: E402
from mpi import SKIPPED, launcher, refused  # noqa: E402

random = np.random.default_rng(10)


with Folder():
    q, k = random.standard_normal((1, 23, 4, 8)), random.standard_normal((1, 29, 2, 8))
    v, dout = random.standard_normal((1, 29, 2, 5)), random.standard_normal((1, 23, 4, 5))
    files = save_operands(q, k, v, dout, axes="bhsd", order="F")
    if "ANNULUS_MPIEXEC" not in os.environ:
        alone = run("attend", *files, "--comm", "mpi", "--out-dir", "out")
        if alone.returncode == 0:
            print("the command has MPI, but ANNULUS_MPIEXEC is not set")
            sys.exit(SKIPPED)
        assert alone.returncode == 2 and "no MPI; accepted: sim" in alone.stderr and alone.stderr.count("\n") == 1, alone
        print("ok: --comm mpi is refused in a build without MPI")
        sys.exit(0)
    for name, array in [("bias", random.standard_normal((1, 4, 23, 29))), ("mask", random.random((1, 1, 23, 29)) < 0.7),
                        ("sinks", random.standard_normal(4)), ("q_ids", random.integers(1, 3, (1, 23))), ("k_ids", random.integers(1, 3, (1, 29))),
                        ("joint_k", random.standard_normal((1, 2, 6, 8))), ("joint_v", random.standard_normal((1, 2, 6, 5)))]:
        np.save(name + ".npy", array)
    everything = ["--bias", "bias.npy", "--bias-gradient", "--mask", "mask.npy", "--sinks", "sinks.npy", "--q-segments", "q_ids.npy",
                  "--kv-segments", "k_ids.npy", "--dropout", "0.2", "--seed", "5"]
    for ranks, arguments in [(1, ["--causal"]), (3, ["--causal", "--sharding", "zigzag", "--dtype", "bf16"]), (3, everything),
                             (3, ["--window", "3,0", "--rotation", "queries"]), (2, ["--sharding", "striped", "--dtype", "f32", "--verify"]),
                             (3, ["--joint-k", "joint_k.npy", "--joint-v", "joint_v.npy", "--causal", "--query-offset", "0"])]:
        over_mpi = attend(*files, "--comm", "mpi", *arguments, launcher=launcher(ranks))
        simulated = attend(*files, "--ranks", str(ranks), *arguments)
        assert set(over_mpi) == set(simulated) and len(simulated) >= 5
        for name in simulated:
            assert over_mpi[name].tobytes() == simulated[name].tobytes(), (ranks, arguments, name)

    # A double ring without a group takes the ranks of a node, here all.
    over_mpi = attend(*files, "--comm", "mpi", "--schedule", "double-ring", launcher=launcher(3))
    simulated = attend(*files, "--ranks", "3", "--schedule", "double-ring", "--schedule-group", "3")
    assert all(over_mpi[name].tobytes() == simulated[name].tobytes() for name in simulated)

    # A balanced sharding follows from documents that rank 0 alone reads.
    square = save_operands(*(random.standard_normal(s) for s in ((1, 40, 4, 8), (1, 40, 2, 8), (1, 40, 2, 8), (1, 40, 4, 8))))
    np.save("ids.npy", np.repeat([[1, 2, 0, 2]], 10, axis=1))
    packed = [*square, "--causal", "--sharding", "balanced", "--q-segments", "ids.npy", "--kv-segments", "ids.npy"]
    over_mpi, simulated = attend(*packed, "--comm", "mpi", launcher=launcher(3)), attend(*packed, "--ranks", "3")
    assert all(over_mpi[name].tobytes() == simulated[name].tobytes() for name in simulated)
    save_operands(q, k, v, dout, axes="bhsd", order="F")

    refused(3, *files, "--bias", "missing.npy", "--out-dir", "new", says="missing.npy: does not exist")
    refused(3, *files, "--out-dir", "new", "--ranks", "2", says="--ranks 2: mpirun started 3")
    refused(3, *files, "--out-dir", "new", "--ranks", "none", says="--ranks")
    refused(2, *files, "--out-dir", os.path.join("q.npy", "below"), says="cannot be created")
    refused(2, *files, "--out-dir", "new", "--dropout", "2", says="dropout")
    refused(2, *files, "--out-dir", "new", "--scale", "1e60", "--dtype", "f32", says="softmax_scale")
    refused(2, "--out-dir", "new", says="required")
    help_text = run("attend", "--comm", "mpi", "--help", launcher=launcher(2))
    assert help_text.returncode == 0 and help_text.stdout.count("--out-dir") == 1, help_text

print("ok")
