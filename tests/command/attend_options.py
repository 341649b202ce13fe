"""Every option of attend: the results agree with the definition, and each option changes them."""

import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import AXES, Folder, attend, run, save_operands  # noqa: E402
from dense_attention import attend as dense  # noqa: E402
from dense_attention import relative_error  # noqa: E402

DOUBLE = 1e-12  # relative, against the dense computation
random = np.random.default_rng(7)


def normal(*shape):
    return random.standard_normal(shape)


BATCH, QUERIES, KEYS, HEADS, KV_HEADS, DIM, VALUE_DIM = 2, 21, 26, 6, 2, 8, 5
q, k = normal(BATCH, QUERIES, HEADS, DIM), normal(BATCH, KEYS, KV_HEADS, DIM)
v, dout = normal(BATCH, KEYS, KV_HEADS, VALUE_DIM), normal(BATCH, QUERIES, HEADS, VALUE_DIM)
segments = (random.integers(0, 4, (BATCH, QUERIES)), random.integers(-1, 4, (BATCH, KEYS)))
arrays = {
    "bias": normal(BATCH, HEADS, QUERIES, KEYS),
    "shared_bias": normal(1, 1, QUERIES, KEYS),
    "mask": random.random((BATCH, HEADS, QUERIES, KEYS)) < 0.6,
    "shared_mask": random.random((1, HEADS, QUERIES, KEYS)) < 0.6,
    "sinks": normal(HEADS),
    "two_sinks": normal(HEADS, 2),
}


def check(arguments, **meaning):
    """Checks the command with these arguments against dense attention with this meaning; returns the results."""
    found = attend(*files, *arguments, "--verify")
    expected = dense(q, k, v, dout, **meaning)
    if "--bias-gradient" not in arguments:
        expected.pop("dbias", None)
    assert set(found) == set(expected), (arguments, sorted(found))
    for name in expected:
        error = relative_error(found[name], expected[name])
        assert found[name].dtype == np.float64 and error <= DOUBLE, (arguments, name, error)
    return found


def same(a, b):
    return all(np.array_equal(a[name], b[name]) for name in ("out", "lse", "dq", "dk", "dv"))


with Folder():
    files = save_operands(q, k, v, dout)
    for name, array in arrays.items():
        np.save(name + ".npy", array)
    np.save("q_segments.npy", segments[0])
    np.save("kv_segments.npy", segments[1].astype(np.int16))
    plain = check([])

    # Options that change what is computed.
    meanings = [
        (["--causal"], {"causal": True}),
        (["--window", "4,3"], {"window": (4, 3)}),
        (["--window", "-1,3"], {"window": (-1, 3)}),
        (["--window", "4,-7"], {"window": (4, -7)}),
        (["--causal", "--window", "3,0"], {"causal": True, "window": (3, 0)}),
        (["--window", "2,2", "--sink-tokens", "3"], {"window": (2, 2), "sink_tokens": 3}),
        (["--chunk", "8"], {"chunk": 8}),
        (["--causal", "--query-offset", "5"], {"causal": True, "query_offset": 5}),
        (["--causal", "--query-offset", "-4"], {"causal": True, "query_offset": -4}),
        (["--scale", "0.7"], {"scale": 0.7}),
        (["--scale", "-0.5"], {"scale": -0.5}),
        (["--scale", "0"], {"scale": 0.0}),
        (["--softcap", "0.8"], {"softcap": 0.8}),
        (["--bias", "bias.npy"], {"bias": arrays["bias"]}),
        (["--bias", "shared_bias.npy", "--bias-gradient"], {"bias": arrays["shared_bias"]}),
        (["--bias", "bias.npy", "--bias-gradient"], {"bias": arrays["bias"]}),
        (["--mask", "mask.npy"], {"mask": arrays["mask"]}),
        (["--mask", "shared_mask.npy"], {"mask": arrays["shared_mask"]}),
        (["--q-segments", "q_segments.npy", "--kv-segments", "kv_segments.npy"], {"segments": segments}),
        (["--sinks", "sinks.npy"], {"sinks": arrays["sinks"]}),
        (["--sinks", "two_sinks.npy"], {"sinks": arrays["two_sinks"]}),
        (["--dropout", "0.3", "--seed", "11"], {"dropout": (0.3, 11)}),
        (["--dropout", "0.3", "--seed", str(2**64 - 1)], {"dropout": (0.3, 2**64 - 1)}),
        (["--dropout", "0.3", "--seed", "11", "--query-offset", "9"], {"dropout": (0.3, 11), "query_offset": 9}),
    ]
    # Keys that all ranks hold: as if each query saw them before the others, which a mask of all keys says.
    joint = {"joint_k": normal(BATCH, 4, KV_HEADS, DIM), "joint_v": normal(BATCH, 4, KV_HEADS, VALUE_DIM)}
    for name, array in joint.items():
        np.save(name + ".npy", array)
    with_joint = ["--joint-k", "joint_k.npy", "--joint-v", "joint_v.npy"]
    seen_keys = np.concatenate([np.ones((QUERIES, 4), bool), np.tri(QUERIES, KEYS, dtype=bool)], axis=1)[None, None]
    expected = dense(q, np.concatenate([joint["joint_k"], k], axis=1), np.concatenate([joint["joint_v"], v], axis=1), dout,
                     mask=seen_keys)
    for gradient in ("dk", "dv"):
        expected["d_joint_" + gradient[1]], expected[gradient] = np.split(expected[gradient], [4], axis=1)
    for arguments in (["--ranks", "1"], ["--ranks", "3", "--rotation", "queries"], ["--schedule", "both-directions"]):
        found = attend(*files, *with_joint, "--causal", "--query-offset", "0", *arguments, "--verify")
        assert set(found) == set(expected), sorted(found)
        assert all(relative_error(found[name], expected[name]) <= DOUBLE for name in expected), arguments
    # Their gradients are written in the order of --axes, as their files are read.
    for axes in ("bhsd", "bhds"):
        stored = save_operands(q, k, v, dout, axes=axes)
        for name, array in joint.items():
            np.save(name + ".npy", array.transpose(AXES[axes]))
        found = attend(*stored, *with_joint, "--causal", "--query-offset", "0", "--verify")
        for name, result in expected.items():
            assert relative_error(found[name], result if name == "lse" else result.transpose(AXES[axes])) <= DOUBLE, (axes, name)
    files = save_operands(q, k, v, dout)
    for name, array in joint.items():
        np.save(name + ".npy", array)
    for dtype in ("f32", "bf16"):
        attend(*files, *with_joint, "--dtype", dtype, "--q-segments", "q_segments.npy", "--kv-segments", "kv_segments.npy",
               "--bias", "bias.npy", "--bias-gradient", "--sinks", "two_sinks.npy", "--softcap", "2", "--verify")

    # The same bits for any number of ranks.
    for arguments in (["--causal", "--dtype", "f32"], ["--sinks", "two_sinks.npy", "--bias", "bias.npy", "--bias-gradient"]):
        ring = ["--reproducible", "--reproducible-leaf", "4", "--sharding", "block-striped", "--block", "4"]
        alone = attend(*files, *arguments, *ring, "--ranks", "1", "--verify")
        assert {"dbias", "dsinks"} <= set(alone) or "--causal" in arguments
        for ranks in ("2", "3", "5", "8"):
            found = attend(*files, *arguments, *ring, "--ranks", ranks)
            assert all(np.array_equal(found[name], alone[name]) for name in alone), (arguments, ranks)
    free = [attend(*files, "--causal", "--dtype", "f32", "--ranks", ranks)["dk"] for ranks in ("1", "3")]
    assert not np.array_equal(*free)

    # On a wire of 16 bits, the bits of operands that were rounded beforehand, in every schedule.
    rounded = []
    for name, array in {"q": q, "k": k, "v": v, "dout": dout}.items():
        np.save("rounded_" + name + ".npy", array.astype(np.float32).astype(np.float16))
        rounded += ["--" + name, "rounded_" + name + ".npy"]
    for schedule in ("ring", "both-directions", "two-levels", "tiles", "all-gather", "double-ring"):
        arguments = ["--causal", "--query-offset", "0", "--dtype", "f32", "--ranks", "4", "--schedule", schedule]
        if schedule in ("two-levels", "tiles", "double-ring"):
            arguments += ["--schedule-group", "2", "--rotation", "keys"]
        found = attend(*files, *arguments, "--wire", "f16", "--verify")
        expected = attend(*rounded, *arguments)
        assert all(np.array_equal(found[name], expected[name]) for name in expected), schedule
        assert not same(found, attend(*files, *arguments)), schedule

    seen = [plain]
    for arguments, meaning in meanings:
        found = check(arguments, **meaning)
        if "--bias-gradient" not in arguments:
            assert not any(same(found, other) for other in seen), arguments
        seen.append(found)

    # All options together, on every sharding, and every rotation: the same results up to rounding.
    everything = (["--causal", "--window", "9,0", "--sink-tokens", "2", "--query-offset", "5", "--scale", "0.6", "--softcap", "2",
                   "--bias", "bias.npy", "--bias-gradient", "--mask", "shared_mask.npy", "--q-segments", "q_segments.npy",
                   "--kv-segments", "kv_segments.npy", "--sinks", "sinks.npy", "--dropout", "0.2", "--seed", "3"],
                  {"causal": True, "window": (9, 0), "sink_tokens": 2, "query_offset": 5, "scale": 0.6, "softcap": 2.0,
                   "bias": arrays["bias"], "mask": arrays["shared_mask"], "segments": segments, "sinks": arrays["sinks"],
                   "dropout": (0.2, 3)})
    for sharding in ("contiguous", "striped", "zigzag", "block-striped"):
        blocks = ["--block", "3"] if sharding == "block-striped" else []
        for ranks in ("1", "3", "30"):
            check(everything[0] + ["--sharding", sharding, *blocks, "--ranks", ranks], **everything[1])
            for schedule in ("two-levels", "tiles", "all-gather", "auto") if ranks == "3" else ():
                check(everything[0] + ["--schedule", schedule, "--sharding", sharding, *blocks, "--ranks", ranks], **everything[1])
            for rotation in ("auto", "keys", "queries"):
                check(["--causal", "--rotation", rotation, "--sharding", sharding, *blocks, "--ranks", ranks], causal=True)
            check(everything[0] + ["--schedule", "both-directions", "--sharding", sharding, *blocks, "--ranks", ranks], **everything[1])
    check(["--backend", "cpu", "--threads", "0", "--comm", "sim"])

    # Sharding and rotation change the order of the sums and so the last bits.
    in_float = [attend(*files, "--dtype", "f32", "--ranks", "4", *arguments)
                for arguments in (["--rotation", "keys"], ["--rotation", "queries"], ["--sharding", "zigzag", "--rotation", "keys"],
                                  ["--sharding", "striped", "--rotation", "keys"])]
    assert not any(same(a, b) for i, a in enumerate(in_float) for b in in_float[:i])
    assert same(in_float[0], attend(*files, "--dtype", "f32", "--ranks", "4", "--rotation", "keys"))

    # --verify prints the error of each result against the reference in double: rounding errors of the type, not 0.
    for dtype, least, most in [("f64", 0, 1e-12), ("f32", 1e-9, 2e-6), ("f16", 1e-5, 1e-2), ("bf16", 1e-4, 1e-1)]:
        done = run("attend", *files, *everything[0], "--dtype", dtype, "--verify", "--out-dir", "verified")
        lines = done.stdout[done.stdout.index("largest relative error"):].splitlines()[3:]
        errors = {name: float(error) for name, error, bound, share in (line.split() for line in lines)}
        assert set(errors) == {"out", "lse", "dq", "dk", "dv", "dbias", "dsinks"}, done.stdout
        assert all(error <= most for error in errors.values()) and max(errors.values()) > least, (dtype, errors)
    assert "largest relative error" not in run("attend", *files, "--out-dir", "verified").stdout

    # Forward only.
    forward = attend(*save_operands(q, k, v), "--causal")
    assert sorted(forward) == ["lse", "out"]
    assert relative_error(forward["out"], dense(q, k, v, causal=True)["out"]) <= DOUBLE

print("ok")
