"""Input and output files of attend: element types, memory orders, axis orders, and NumPy's storage formats."""

import os
import shutil
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import AXES, Folder, attend, run, save_operands  # noqa: E402
from dense_attention import attend as dense  # noqa: E402
from dense_attention import relative_error  # noqa: E402

random = np.random.default_rng(8)
q, k = random.standard_normal((2, 13, 4, 6)), random.standard_normal((2, 17, 2, 6))
v, dout = random.standard_normal((2, 17, 2, 3)), random.standard_normal((2, 13, 4, 3))
operands = {"q": q, "k": k, "v": v, "dout": dout}


def bfloat16_bits(x):
    """The bits of x as bfloat16, rounded to nearest, ties to even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_bfloat16(x):
    return (bfloat16_bits(np.asarray(x, np.float32)).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


ROUNDED = {
    "f64": lambda x: np.asarray(x, np.float64),
    "f32": lambda x: np.asarray(x, np.float32).astype(np.float64),
    "f16": lambda x: np.asarray(x, np.float32).astype(np.float16).astype(np.float64),
    "bf16": to_bfloat16,
}
EXACT = {"f64": 1e-12, "f32": 2e-6}


def check(found, dtype, axes="bshd"):
    """Checks the results of causal attention over the operands, rounded to dtype."""
    rounded = ROUNDED[dtype]
    inputs = [rounded(x) for x in operands.values()]
    exact = dense(*inputs, causal=True)
    same_precision = dense(*inputs, causal=True, rounded=rounded)
    assert set(found) == set(exact)
    for name, expected in exact.items():
        assert found[name].dtype == (np.float64 if dtype == "f64" else np.float32), (name, found[name].dtype)
        assert found[name].flags.c_contiguous
        if name != "lse":
            expected, naive = expected.transpose(AXES[axes]), same_precision[name].transpose(AXES[axes])
        else:
            naive = same_precision[name]
        # Narrow types: at most twice the error of dense attention that rounds its results alike.
        bound = EXACT.get(dtype, EXACT["f32"] + 2 * relative_error(naive, expected))
        error = relative_error(found[name], expected)
        assert error <= bound, (dtype, axes, name, error, bound)


with Folder():
    # Element types, from --dtype or from the file of q, in every axis order and both memory orders.
    for stored, chosen, dtype in [("f8", None, "f64"), ("f4", None, "f32"), ("f2", None, "f16"), ("f8", "f32", "f32"), ("f8", "f16", "f16"),
                                  ("f8", "bf16", "bf16"), ("f4", "bf16", "bf16"), (">f8", None, "f64"), (">f4", "f32", "f32")]:
        for axes in AXES:
            for order in "CF":
                files = save_operands(*(x.astype(stored) for x in operands.values()), axes=axes, order=order)
                found = attend(*files, "--causal", *(["--dtype", chosen] if chosen else []), "--sharding", "zigzag", "--ranks", "3")
                check(found, dtype, axes)

    # f4 converts to f64 without another rounding.
    files = save_operands(*(x.astype("f4") for x in operands.values()))
    widened = attend(*files, "--causal", "--dtype", "f64")
    exact = dense(*(ROUNDED["f32"](x) for x in operands.values()), causal=True)
    assert all(relative_error(widened[name], exact[name]) <= EXACT["f64"] for name in exact)

    # bfloat16: two opaque bytes (V2), or u2 with --dtype bf16; the same bits both ways.
    for bits in ("V2", "u2"):
        files = save_operands(*(bfloat16_bits(x).view(bits) for x in operands.values()))
        check(attend(*files, "--causal", "--dtype", "bf16"), "bf16")
    done = run("attend", *files, "--out-dir", "out")
    assert done.returncode == 2 and "bf16" in done.stderr, done.stderr

    # Format versions 2 and 3.
    files = save_operands(q, k, v, dout)
    for version in ((2, 0), (3, 0)):
        with open("q.npy", "wb") as file:
            np.lib.format.write_array(file, q, version=version)
        check(attend(*files, "--causal"), "f64")

    # An integer mask equals the boolean mask; document ids of any integer type.
    files = save_operands(q, k, v)
    truth = random.random((1, 1, 13, 17)) < 0.5
    expected = dense(q, k, v, mask=truth)
    for stored in ("?", "i1", "u1", "i8", ">i4"):
        np.save("mask.npy", np.asarray(truth.astype(stored), order="F"))
        found = attend(*files, "--mask", "mask.npy")
        assert all(relative_error(found[name], expected[name]) <= EXACT["f64"] for name in expected), stored
    ids = random.integers(0, 3, (2, 13)), random.integers(0, 3, (2, 17))
    expected = dense(q, k, v, segments=ids)
    for stored in ("u1", "i2", "i8", ">u4"):
        np.save("q_ids.npy", ids[0].astype(stored))
        np.save("k_ids.npy", np.asarray(ids[1].astype(stored), order="F"))
        found = attend(*files, "--q-segments", "q_ids.npy", "--kv-segments", "k_ids.npy")
        assert all(relative_error(found[name], expected[name]) <= EXACT["f64"] for name in expected), stored

    # Fully masked rows: output and gradients 0, lse -inf, no NaN.
    np.save("mask.npy", np.zeros((1, 1, 13, 17), bool))
    found = attend(*save_operands(q, k, v, dout), "--mask", "mask.npy")
    assert np.all(found["lse"] == -np.inf)
    assert all(np.all(found[name] == 0) for name in ("out", "dq", "dk", "dv"))

    # A folder whose parents are missing, and one that holds older results and an unrelated file.
    files = save_operands(q, k, v)
    deep = os.path.join("a", "b", "c")
    first = attend(*files, out=deep)
    os.makedirs("kept", exist_ok=True)
    for name in ("out.npy", "dq.npy", "dbias.npy", "stranger.txt"):
        with open(os.path.join("kept", name), "w") as file:
            file.write("before")
    done = run("attend", *files, "--out-dir", "kept")
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir("kept")) == ["lse.npy", "out.npy", "stranger.txt"]
    assert np.array_equal(np.load("kept/out.npy"), first["out"])
    assert open("kept/stranger.txt").read() == "before"

    # An input in the folder stays, though it has the name of a result of another run.
    shutil.copy("q.npy", os.path.join("kept", "dv.npy"))
    done = run("attend", "--q", os.path.join("kept", "dv.npy"), *files[2:], "--out-dir", "kept")
    assert done.returncode == 0, done.stderr
    assert sorted(os.listdir("kept")) == ["dv.npy", "lse.npy", "out.npy", "stranger.txt"]

print("ok")
