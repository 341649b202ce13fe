"""annulus nki --simulate and --cost-only: kernels on simulated cores against the oracle, printed tables and files."""

import json
import os
import re
import shutil
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import AXES, Folder, load, quiet, run, save_operands  # noqa: E402
from dense_attention import attend as dense  # noqa: E402
from dense_attention import relative_error  # noqa: E402

# All in float32, with sums in another order.
EXACT = 3e-6


def simulate(*arguments, out="out"):
    """A call that must succeed; returns its standard output and its results."""
    done = run("nki", "--simulate", *arguments, *(["--out-dir", out] if out else []))
    assert quiet(done), (arguments, done.stdout[-3000:], done.stderr)
    results = load(out) if out else {}
    if out:
        shutil.rmtree(out)
    return done.stdout, results


def errors_of(text):
    """{name: (largest relative error, distance, dense, accepted)} from the printed table."""
    number = r"\s+([-+.0-9a-z]+)"
    rows = re.findall(r"^  (out|lse|dq|dk|dv|dsinks|dbias)" + number * 4 + "(?:  of terms)?$", text, re.M)
    return {name: tuple(map(float, numbers)) for name, *numbers in rows}


def rounded_bfloat16(x):
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32).astype(np.float64)


random = np.random.default_rng(12)

with Folder():
    # Results from files against the oracle, for several ring orders and axis orders.
    length = 4 * 50
    q, k = random.standard_normal((1, length, 3, 16)), random.standard_normal((1, length, 3, 16))
    v, dout = random.standard_normal((1, length, 3, 24)), random.standard_normal((1, length, 3, 24))
    expected = dense(*(x.astype(np.float32) for x in (q, k, v, dout)), causal=True)
    call = ["--dtype", "f32", "--causal", "--sharding", "striped", "--lnc", "2"]
    files = save_operands(q, k, v, dout)
    text, natural = simulate(*files, *call)
    assert set(natural) == set(expected)
    assert set(errors_of(text)) == set(expected)
    for name in expected:
        assert natural[name].dtype == np.float32
        assert relative_error(natural[name], expected[name]) <= EXACT, name
    for seed in (1, 2, 7):
        _, shuffled = simulate(*files, *call, "--ring-order", seed)
        for name in ("out", "lse", "dq", "dk", "dv"):
            # The owners arrive in another order, and so do the terms of the sums.
            assert relative_error(shuffled[name], expected[name]) <= EXACT, (seed, name)
    assert any(not np.array_equal(shuffled[name], natural[name]) for name in natural)
    for axes in ("bhsd", "bhds"):
        _, found = simulate(*save_operands(q, k, v, dout, axes=axes), *call)
        for name in expected:
            other = natural[name] if name == "lse" else natural[name].transpose(AXES[axes])
            assert np.array_equal(found[name], other), (axes, name)

    # The other options, alone and together.
    sinks = random.standard_normal((4, 2)).astype(np.float32)
    np.save("sinks.npy", sinks)
    biases = [random.standard_normal(extents).astype(np.float32) for extents in ((1, 4, 66, 66), (2, 1, 66, 66), (1, 1, 66, 66))]
    for number, bias in enumerate(biases):
        bias[random.random(bias.shape) < 0.2] = -np.inf
        np.save(f"bias{number}.npy", bias)
    with_bias = lambda number: ["--bias", f"bias{number}.npy", "--bias-gradient"]
    q, k = random.standard_normal((2, 66, 4, 8)), random.standard_normal((2, 66, 2, 8))
    v, dout = random.standard_normal((2, 66, 2, 8)), random.standard_normal((2, 66, 4, 8))
    files = save_operands(q, k, v, dout)
    single = [x.astype(np.float32) for x in (q, k, v, dout)]
    for options, told in [(["--scale", "-0.7", "--ranks", "2"], {"scale": -0.7}), (["--softcap", "2", "--sharding", "zigzag", "--ranks", "3"], {"softcap": 2.0}),
                          (["--window", "5,2", "--lnc", "1", "--ranks", "2"], {"window": (5, 2)}),
                          (["--causal", "--window", "9,-1", "--sink-tokens", "3", "--ranks", "2"], {"causal": True, "window": (9, -1), "sink_tokens": 3}),
                          (["--chunk", "20", "--ranks", "3", "--backward", "keys"], {"chunk": 20}), (["--ranks", "1", "--target", "trn3"], {}),
                          (["--sinks", "sinks.npy", "--ranks", "2", "--tp-q", "--tp-k", "--groups", "3"], {"sinks": sinks}),
                          ([*with_bias(0), "--causal", "--sharding", "striped", "--ranks", "2"], {"bias": biases[0], "causal": True}),
                          ([*with_bias(1), "--softcap", "2", "--sharding", "zigzag", "--ranks", "3", "--backward", "keys"], {"bias": biases[1], "softcap": 2.0}),
                          ([*with_bias(2), "--sharding", "striped", "--ranks", "2", "--groups", "2"], {"bias": biases[2]}),
                          (["--causal", "--query-offset", "-7", "--ranks", "2"], {"causal": True, "query_offset": -7})]:
        _, found = simulate(*files, "--dtype", "f32", *options)
        expected = dense(*single, **told)
        for name in found:
            assert relative_error(found[name], expected[name]) <= EXACT, (options, name, relative_error(found[name], expected[name]))
        assert set(found) == set(expected)

    # Fully masked rows: output and gradients 0, and the lse that --masked-row selects.
    for word, value in (("-inf", -np.inf), ("zero", 0)):
        _, found = simulate(*files, "--dtype", "f32", "--ranks", "2", "--causal", "--query-offset", "-7", "--masked-row", word)
        assert np.all(found["lse"][:, :, :7] == value) and np.all(np.isfinite(found["lse"][:, :, 7:]))
        assert np.all(found["out"][:, :7] == 0) and np.all(found["dq"][:, :7] == 0)

    # --documents equals document ids.
    starts = [0, 10, 47]
    ids = np.broadcast_to(np.searchsorted(starts, np.arange(66), side="right"), (1, 66))
    one = save_operands(*(x[:1] for x in (q, k, v, dout)))
    for sharding in ("contiguous", "striped", "zigzag"):
        _, found = simulate(*one, "--dtype", "f32", "--causal", "--ranks", "2", "--sharding", sharding, "--documents", "0,10,47")
        expected = dense(*(x[:1] for x in single), causal=True, segments=(ids, ids))
        for name in found:
            assert relative_error(found[name], expected[name]) <= EXACT, (sharding, name)

    # bfloat16 by default: errors within the printed bound, and as printed.
    half = [rounded_bfloat16(x) for x in (q, k, v, dout)]
    files = save_operands(q, k, v, dout)
    text, found = simulate(*files, "--causal", "--ranks", "2")
    expected = dense(*half, causal=True)
    for name, (largest, distance, naive, accepted) in errors_of(text).items():
        assert distance <= accepted and (name == "lse" or 1e-4 < distance < 2e-2), (name, distance)
        measured = relative_error(found[name], expected[name])
        if name != "lse":
            assert abs(measured - distance) <= 0.02 * distance, (name, measured, distance)
        else:
            assert np.abs(found[name] - expected[name]).max() <= accepted
        assert naive > 0 and largest > 0

    # Without --dout the backward kernel is not simulated, and with --no-training there is no lse.
    text, found = simulate(*save_operands(q, k, v), "--ranks", "2")
    assert set(found) == {"out", "lse"} and set(errors_of(text)) == {"out", "lse"}
    assert "ring_attention_bwd: not simulated" in text
    text, _ = simulate(*save_operands(q, k, v), "--ranks", "2", "--no-training", out=None)
    assert set(errors_of(text)) == {"out"}

    # Random input depends only on the seed. A backward kernel alone takes output and lse from the reference.
    small = ["--tokens-per-rank", "40", "--head-dim", "16", "--query-heads", "2", "--causal"]
    _, first = simulate(*small, out="first")
    for seed, same in (("0", True), ("1", False)):
        _, other = simulate(*small, "--seed", seed, out="other" + seed)
        assert np.array_equal(first["out"], other["out"]) == same and np.array_equal(first["dk"], other["dk"]) == same
    text, _ = simulate(*small, "--only", "bwd", out=None)
    assert set(errors_of(text)) == {"dq", "dk", "dv"} and "ring_attention_fwd" not in text

    # Printed tables and files other than the results.
    text, _ = simulate(*small, "--emit", "kernels", "--trace", "trace.json", "--listing", "programs.txt", out=None)
    assert {"README.md", "ring_attention_fwd.py", "ring_attention_bwd.py"} <= set(os.listdir("kernels"))
    for kernel in ("fwd_stationary", "fwd", "bwd"):
        assert (f"ring_attention_{kernel}: 4 ranks simulated" in text) == (kernel != "fwd")
        assert f"ring_attention_{kernel}: one rank of trn2, 2 cores" in text
        with open(f"trace_{kernel}.json") as file:
            events = json.load(file)["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        assert {event["pid"] for event in spans} == {0, 1} and all(event["dur"] >= 0 for event in spans)
        assert any("matmul" in event["name"] for event in spans)
        assert open(f"programs_{kernel}.txt").read().startswith(f"program ring_attention_{kernel}: trn2, 2 cores, 4 ranks")
    assert "tensor engine utilisation" in text and "estimate" in text
    simulate(*small, "--only", "fwd", "--no-keys-stationary", "--trace", "one.json", out=None)
    assert json.load(open("one.json"))["traceEvents"]

    # Costs alone, of a problem too large to simulate.
    done = run("nki", "--cost-only", "--ranks", "64", "--tokens-per-rank", "4096", "--causal", "--sharding", "striped", "--only", "fwd",
               "--no-keys-stationary")
    assert quiet(done), done
    assert re.search(r"built in [\d.]+ s, validated in [\d.]+ s, costed in [\d.]+ s; memory so far \d+ MiB", done.stdout)
    assert "simulated" not in done.stdout and errors_of(done.stdout) == {}
    of_time = {name.strip(): float(share) for name, share in re.findall(r"^~ (.{36}) +[\d.]+ +([\d.]+) %$", done.stdout, re.M)}
    assert of_time["DMA takes no time"] <= 100 < of_time["DMA transposes at half their rate"], done.stdout
    assert of_time["no DMA transposes, TensorE does all"] > 100, done.stdout

    # Causal attention of one rank and one tile: half of the pairs, and the diagonal, are visible, the rest is computed too.
    for options, part in ((["--causal"], 129 / 256), ([], 1), (["--window", "0,0"], 1 / 128)):
        done = run("nki", "--cost-only", "--ranks", "1", "--lnc", "1", "--tokens-per-rank", "128", "--tokens", "128", *options, "--only", "fwd", "--no-keys-stationary")
        raw, useful = (float(re.search(name + r"\s+([\d.]+) %", done.stdout)[1]) for name in
                       ("tensor engine utilisation", "useful utilisation"))
        assert abs(useful - raw * part) <= 0.05 * (1 + part), (options, raw, useful)

    # Results of exactly 0, or with terms that all cancel: errors are relative to the terms, and bounds are finite.
    masked = ["--causal", "--query-offset", "-100000"]
    for options, cancel in [(["--ranks", "4", "--tokens-per-rank", "130", "--head-dim", "32", *masked, "--sinks", "1"], set()),
                            (["--ranks", "2", "--tokens-per-rank", "40", "--head-dim", "16", *masked], set()),
                            (["--ranks", "2", "--tokens-per-rank", "64", "--head-dim", "16", "--chunk", "20", "--query-offset", "1000", "--sinks", "2"], set()),
                            (["--ranks", "2", "--tokens-per-rank", "64", "--head-dim", "16", "--chunk", "1"], {"dq", "dk"}),
                            (["--ranks", "2", "--tokens-per-rank", "64", "--head-dim", "16", "--window", "0,0"], {"dq", "dk"}),
                            (["--ranks", "2", "--tokens-per-rank", "24", "--head-dim", "16", "--causal", "--window", "0,3", "--chunk", "200"], {"dq", "dk"}),
                            (["--ranks", "5", "--tokens-per-rank", "1", "--head-dim", "16", "--documents", "0,1,2,3,4", "--seed", "1"], {"dq", "dk"})]:
        for dtype in ("bf16", "f32"):
            text, found = simulate(*options, "--dtype", dtype)
            assert set(re.findall(r"^  (\w+) .*  of terms$", text, re.M)) == cancel, (options, text[-3000:])
            for name, (largest, distance, naive, accepted) in errors_of(text).items():
                assert np.isfinite([largest, distance, naive, accepted]).all() and accepted < 0.03, (options, dtype, name)
                assert name not in cancel or distance <= 1e-6, (options, dtype, name, distance)
                if "-100000" in options:
                    assert distance == naive == 0 or name == "lse", (options, dtype, name)
            if "-100000" in options:
                assert all(np.all(found[name] == 0) for name in found if name != "lse")

    # The bound of lse: 1e-5 for scores of usual size, the rounding of the scores if they are some hundreds.
    for scale, least, most in (("0.25", 1e-5, 1e-5), ("25", 1e-5, 4e-4)):
        text, _ = simulate("--ranks", "2", "--tokens-per-rank", "200", "--head-dim", "16", "--scale", scale, "--only", "fwd", "--no-keys-stationary", out=None)
        _, distance, _, accepted = errors_of(text)["lse"]
        assert distance <= accepted and least <= accepted <= most and (scale != "25" or accepted > 2e-5), (scale, accepted)

    # Scores beyond float32 end with status 1 and leave no kernel, whatever the error of dense attention is.
    huge = np.full((1, 4, 1, 8), 1e30)
    done = run("nki", "--simulate", *save_operands(huge, huge, huge), "--ranks", "2", "--emit", "bad", "--only", "fwd")
    assert done.returncode == 1 and done.stderr.startswith("annulus: ") and done.stderr.count("\n") == 1, done
    assert not os.path.exists("bad"), os.listdir("bad")

print("ok")
