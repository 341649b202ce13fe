"""attend --verify: status 0 if rounding explains the errors, status 1 if it does not."""

import os
import re
import shutil
import subprocess
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import ANNULUS, Folder, aligned, run, save_operands  # noqa: E402

random = np.random.default_rng(22)
TYPES = ("f64", "f32", "f16", "bf16")
worst = {}


def shares(text):
    """The largest ratio of an error to its bound, for each result."""
    return {name: float(share) for name, share in re.findall(r"^  (\w+) +\S+ +\S+ +(\S+)$", text, re.M)}


def accepted(*arguments, dtype, results=5, label=""):
    done = run("attend", *aligned(arguments), "--dtype", dtype, "--verify", "--out-dir", "out")
    assert done.returncode == 0 and done.stderr == "", (label, arguments, dtype, done.stdout, done.stderr)
    seen = shares(done.stdout)
    assert len(seen) == results and all(0 <= share <= 1 for share in seen.values()), (done.stdout, seen)
    for name, share in seen.items():
        worst[dtype, name] = max(worst.get((dtype, name), (0, "")), (share, label), key=lambda found: found[0])


def operands(queries=33, keys=40, heads=4, kv_heads=2, dim=16, value_dim=12, make=random.standard_normal):
    return make((1, queries, heads, dim)), make((1, keys, kv_heads, dim)), make((1, keys, kv_heads, value_dim)), make((1, queries, heads, value_dim))


def alternating(shape):
    return np.where(np.arange(np.prod(shape)).reshape(shape) % 2 == 0, 1.0, -1.0)


with Folder():
    # Correct results are accepted, for operands of any size.
    q, k, v, dout = operands()
    bias, mask = random.standard_normal((1, 4, 33, 40)), random.random((1, 1, 33, 40)) < 0.7
    masking = np.where(random.random((1, 1, 33, 40)) < 0.5, 0.0, -1e9)
    masking[:, :, 5] = -1e9
    for name, array in (("bias", bias), ("mask", mask), ("masking", masking), ("infinite", np.where(masking == 0, 0, -np.inf)),
                        ("sinks", random.standard_normal((4, 2))), ("large_sinks", np.full(4, 30.0)),
                        ("q_ids", random.integers(0, 4, (1, 33))), ("kv_ids", random.integers(0, 4, (1, 40)))):
        np.save(name + ".npy", array)
    files = save_operands(q, k, v, dout)
    options = [["--causal", "--ranks", "3", "--sharding", "zigzag"], ["--window", "3,0", "--sharding", "striped"], ["--scale", "0"], ["--scale", "-1"],
               ["--scale", "30"], ["--scale", "1e4"], ["--softcap", "0.5"], ["--softcap", "30", "--scale", "100"], ["--softcap", "1e-3"],
               ["--dropout", "0.9", "--seed", "3"], ["--mask", "mask.npy"], ["--bias", "bias.npy", "--bias-gradient"], ["--bias", "masking.npy", "--bias-gradient"],
               ["--bias", "infinite.npy"], ["--sinks", "sinks.npy"], ["--sinks", "large_sinks.npy"], ["--q-segments", "q_ids.npy", "--kv-segments", "kv_ids.npy"],
               ["--causal", "--query-offset", "-20"], ["--chunk", "7"], ["--rotation", "queries"],
               ["--causal", "--window", "9,0", "--scale", "0.6", "--softcap", "2", "--bias", "bias.npy", "--bias-gradient", "--mask", "mask.npy",
                "--sinks", "sinks.npy", "--dropout", "0.2", "--q-segments", "q_ids.npy", "--kv-segments", "kv_ids.npy"]]
    for dtype in TYPES:
        for arguments in options:
            for backend in ("reference", "cpu"):
                results = 5 + ("--bias-gradient" in arguments) + ("--sinks" in arguments)
                accepted(*files, *arguments, "--backend", backend, dtype=dtype, results=results, label=(backend, arguments))
    for dtype in TYPES[1:]:
        for arguments in options[:3]:
            accepted(*files, *arguments, "--backend", "nki", dtype=dtype, label=("nki", arguments))

    # Operands that cancel, repeat, are 0, tiny, huge or have a mean: gradients that are 0 up to rounding.
    shapes = [("one key", operands(queries=3, keys=1)), ("zeros", operands(make=np.zeros)), ("ones", operands(make=np.ones)),
              ("alternating", operands(make=alternating)), ("mean", tuple(x + 5 for x in operands())),
              ("equal keys", (q, np.broadcast_to(k[:, :1], k.shape), v, dout)), ("equal values", (q, k, np.broadcast_to(v[:, :1], v.shape), dout)),
              ("one of many", (q, np.where(np.arange(40)[None, :, None, None] == 3, 20 * k, k), v, dout)), ("large logits", (30 * q, 30 * k, v, dout)),
              ("tiny", tuple(1e-4 * x for x in operands())), ("large values", (q, k, 100 * v, dout)), ("wide", operands(dim=128, value_dim=128)),
              ("integers", tuple(np.rint(3 * x) for x in operands())), ("long", operands(queries=300, keys=600, heads=2, kv_heads=1))]
    for label, arrays in shapes:
        files = save_operands(*arrays)
        for dtype in TYPES:
            for backend in ("reference", "cpu"):
                accepted(*files, "--backend", backend, "--axes", "bshd", dtype=dtype, label=(backend, label))
    for dtype in TYPES:
        accepted(*save_operands(q, k, v, dout, axes="bhds"), dtype=dtype, label="axes")

    # Logits whose log-sum-exp absorbs the difference of any two: the bounds stay numbers.
    for size in (1e18, 1e20, 1e25):
        files = save_operands(size * q, k, v, dout)
        done = run("attend", *files, "--dtype", "f32", "--verify", "--out-dir", "out")
        assert done.returncode == 0 and "nan" not in done.stdout and len(shares(done.stdout)) == 5, (size, done)

    # Results that are not finite fail, with one line.
    files = save_operands(1e30 * q, 1e30 * k, v)
    done = run("attend", *files, "--dtype", "f32", "--verify", "--out-dir", "out")
    assert done.returncode == 1 and done.stderr.startswith("annulus: --verify: out[0, 0, 0, 0] is ") and done.stderr.count("\n") == 1, done
    shutil.rmtree("out")
    done = run("attend", *files, "--dtype", "f32", "--require-finite", "--out-dir", "out")
    assert done.returncode == 1 and "rank" in done.stderr and "step" in done.stderr and done.stderr.count("\n") == 1, done
    assert not os.path.exists("out/out.npy")

    # An error of 3 percent in tanhf alone is found.
    if compiler := shutil.which("cc") or shutil.which("gcc") or shutil.which("clang"):
        with open("wrong.c", "w") as file:
            file.write("double tanh(double); float tanhf(float x) { return (float)(1.03 * tanh(x)); }\n")
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-fno-builtin", "wrong.c", "-o", "wrong.so", "-lm"], check=True)
        files = save_operands(q, k, v, dout)
        for softcap, status in (("0", 0), ("2", 1)):
            done = subprocess.run([ANNULUS, "attend", *files, "--dtype", "f32", "--backend", "reference", "--softcap", softcap, "--verify", "--out-dir", "out"],
                                  env={**os.environ, "LD_PRELOAD": os.path.abspath("wrong.so"), "ASAN_OPTIONS": "verify_asan_link_order=0"}, capture_output=True, text=True, timeout=300)
            assert done.returncode == status, (softcap, done)
        assert "--verify: " in done.stderr and "accepted: up to" in done.stderr and done.stderr.count("\n") == 1, done.stderr
        assert all(share > 1 for share in shares(done.stdout).values()), done.stdout

for key, (share, label) in sorted(worst.items()):
    print(*key, share, label)
print("ok")
