"""The files of annulus nki --emit: reproducible, valid Python for NKI, and correct kernels."""

import glob
import os
import re
import shlex
import sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "support"))
sys.path.insert(0, os.path.join(HERE, "..", "nki"))
from command import Folder, run  # noqa: E402
from dense_attention import attend as dense  # noqa: E402
from dense_attention import relative_error  # noqa: E402
import nki_model  # noqa: E402

nki_model.install()

# Files of every folder.
ALWAYS = {"README.md", "problem.py", "check.py", "run_torch.py", "run_jax.py", "simulate.py", "requirements.txt", "nki_model"}
# All products and sums of the kernels are in float32, in another order than those of the oracle.
EXACT = 3e-6


def content(path):
    """Bytes of a file, or of all files of a folder."""
    if os.path.isdir(path):
        return b"".join(content(os.path.join(path, name)) for name in sorted(os.listdir(path)))
    with open(path, "rb") as file:
        return file.read()


def emit(folder, *arguments):
    """Runs the command; returns the files of the folder by name."""
    done = run("nki", "--emit", folder, *arguments)
    assert done.returncode == 0, (arguments, done)
    ranks = int(arguments[arguments.index("--ranks") + 1]) if "--ranks" in arguments else 4
    warned = ranks & (ranks - 1) != 0  # permutes of such rings are not documented
    assert warned == ("physical link" in done.stderr) and done.stderr.count("\n") == warned, (arguments, done)
    listed = [os.path.basename(line.split()[0]) for line in done.stdout.splitlines()]
    assert sorted(listed) == sorted(os.listdir(folder)), (listed, os.listdir(folder))
    files = {name: content(os.path.join(folder, name)) for name in os.listdir(folder)}
    assert warned == (b"physical link" in files["README.md"])
    return files


def kernel(files, name):
    text = files[name + ".py"].decode()
    assert nki_model.subset.check(text) == []
    assert max(map(len, text.splitlines())) <= 120
    module = {}
    exec(compile(text, name + ".py", "exec"), module)
    return module[name]


def positions(sharding, ranks, length):
    """Global positions [rank][row], as the README defines them."""
    local = length // ranks
    if sharding == "contiguous":
        return [np.arange(rank * local, (rank + 1) * local) for rank in range(ranks)]
    if sharding == "striped":
        return [np.arange(rank, length, ranks) for rank in range(ranks)]
    half = local // 2
    chunks = np.arange(length).reshape(2 * ranks, half)
    return [np.concatenate([chunks[rank], chunks[2 * ranks - 1 - rank]]) for rank in range(ranks)]


def lse_rows(lse, rows):
    """[batch, heads, rows] of the kernel's [batch, heads, 128, columns]."""
    return lse.transpose(0, 1, 3, 2).reshape(*lse.shape[:2], -1)[:, :, :rows]


def execute(folder, files, sharding, *, ranks, lnc, q, k, v, dout, ring_order, by_token=()):
    """Both kernels on the numpy model of NKI; the results of the whole sequence in the order bshd."""
    length = q.shape[1]
    own = positions(sharding, ranks, length)
    group = (tuple(range(ranks)),)

    def layout(x, rank, token):
        return np.ascontiguousarray(x[:, own[rank]].transpose(0, 2, 1, 3) if token else x[:, own[rank]].transpose(0, 2, 3, 1)).astype(np.float32)

    def mask(name, rank):
        for table in glob.glob(os.path.join(folder, f"ring_attention_{name}.mask_offsets.*.npy")):
            return (np.load(table)[rank],)
        for table in glob.glob(os.path.join(folder, f"ring_attention_{name}.mask_ranges.*.rank{rank}.npy")):
            return (np.load(table),)
        return ()

    def named(name):
        return tuple(re.findall(r'^    assert mask_fingerprint == "(\w+)"', files[f"ring_attention_{name}.py"].decode(), re.M))

    operands = [(layout(q, r, "q" in by_token), layout(k, r, "k" in by_token), layout(v, r, True)) for r in range(ranks)]
    ring = (group,) if ranks > 1 else ()
    forward = nki_model.launch(kernel(files, "ring_attention_fwd"), lnc, [(*operands[r], *mask("fwd", r), *ring, *named("fwd")) for r in range(ranks)],
                               ring_order=ring_order)
    backward = nki_model.launch(kernel(files, "ring_attention_bwd"), lnc,
                                [order_backward(files, operands[r], layout(dout, r, True), forward[r], mask("bwd", r), ring) + named("bwd") for r in range(ranks)],
                                ring_order=ring_order)
    results = {"out": np.empty((*q.shape[:3], v.shape[3])), "lse": np.empty((q.shape[0], q.shape[2], length)),
               "dq": np.empty(q.shape), "dk": np.empty(k.shape), "dv": np.empty(v.shape)}
    for rank in range(ranks):
        results["out"][:, own[rank]] = forward[rank][0].transpose(0, 2, 1, 3)
        results["lse"][:, :, own[rank]] = lse_rows(forward[rank][1], length // ranks)
        for name, gradient in zip(("dq", "dk", "dv"), backward[rank]):
            results[name][:, own[rank]] = gradient.transpose(0, 2, 1, 3)
    return results


def order_backward(files, operands, dout, forward, mask, ring):
    """Arguments by name, in the order of the call in the README."""
    named = dict(zip("qkv", operands)) | {"dout": dout, "output": forward[0], "lse": forward[1]}
    text = files["README.md"].decode()
    call = re.search(r"^dq, dk, dv = ring_attention_bwd(?:\[2\])?\((.*)\)$", text, re.M).group(1).split(", ")
    arguments = []
    for name in (name for name in call if '"' not in name):
        arguments += [named[name]] if name in named else ring if name == "replica_groups" else mask
    return tuple(arguments)


with Folder():
    random = np.random.default_rng(3)
    cases = [
        # ranks, tokens per rank, batch, query heads, kv heads, dims, sharding, lnc, options, oracle options, ring order
        (4, 40, 1, 2, 1, 16, 16, "striped", 2, ["--causal"], {"causal": True}, [2, 0, 3, 1]),
        (2, 130, 1, 3, 3, 24, 8, "contiguous", 2, ["--causal", "--backward", "keys", "--tp-q", "--tp-k"], {"causal": True}, None),
        (3, 20, 2, 2, 1, 8, 8, "zigzag", 1, ["--window", "9,4", "--softcap", "3"], {"window": (9, 4), "softcap": 3.0}, [1, 0, 2]),
        (2, 64, 1, 2, 2, 16, 16, "striped", 2, ["--causal", "--documents", "0,30,96"], {"causal": True, "starts": [0, 30, 96]}, None),
        (1, 50, 1, 1, 1, 8, 8, "contiguous", 1, [], {}, None),
    ]
    for number, (ranks, tokens, batch, heads, kv_heads, dim, value_dim, sharding, lnc, options, told, ring_order) in enumerate(cases):
        length = ranks * tokens
        arguments = ["--ranks", ranks, "--tokens-per-rank", tokens, "--batch", batch, "--query-heads", heads, "--kv-heads", kv_heads, "--head-dim", dim,
                     "--value-dim", value_dim, "--sharding", sharding, "--lnc", lnc, "--dtype", "f32", *options]
        folder = f"kernels{number}"
        files = emit(folder, *arguments)
        assert {"README.md", "ring_attention_fwd.py", "ring_attention_bwd.py"} <= set(files)

        # The same files from the same options, and from the command line in the README.
        assert emit(f"again{number}", *arguments) == files
        told_line = re.findall(r"^annulus (nki .*)$", files["README.md"].decode(), re.M)
        assert len(told_line) == 1 and told_line[0].endswith(" --emit .")
        done = run(*shlex.split(told_line[0])[:-1], f"told{number}")
        assert done.returncode == 0, done
        assert {name: content(os.path.join(f"told{number}", name)) for name in os.listdir(f"told{number}")} == files

        q, k = random.standard_normal((batch, length, heads, dim)), random.standard_normal((batch, length, kv_heads, dim))
        v, dout = random.standard_normal((batch, length, kv_heads, value_dim)), random.standard_normal((batch, length, heads, value_dim))
        q, k, v, dout = (x.astype(np.float32) for x in (q, k, v, dout))
        by_token = [side for side in "qk" if f"--tp-{side}" in options]
        found = execute(folder, files, sharding, ranks=ranks, lnc=lnc, q=q, k=k, v=v, dout=dout, ring_order=ring_order, by_token=by_token)
        starts = told.pop("starts", None)
        if starts:
            ids = np.broadcast_to(np.searchsorted(starts, np.arange(length), side="right"), (batch, length))
            told["segments"] = (ids, ids)
        expected = dense(q, k, v, dout, **told)
        for name in expected:
            error = relative_error(found[name], expected[name])
            assert error <= EXACT, (number, name, error)

    # Where queries and keys differ in number, the command line in the README states the offset.
    for offset in (0, 64):
        text = emit(f"uneven{offset}", "--ranks", 2, "--tokens-per-rank", 64, "--keys-per-rank", 96, "--head-dim", 16, "--causal", "--query-offset", offset)["README.md"].decode()
        done = run(*shlex.split(re.findall(r"^annulus (nki .*)$", text, re.M)[0])[:-1], f"told_uneven{offset}")
        assert done.returncode == 0 and f"--query-offset {offset}" in text, done

    # The README gives the cores of a call, the ranks of each ring, and the necessary conversions.
    text = emit("groups", "--ranks", 2, "--tokens-per-rank", 64, "--groups", 2, "--lse-dtype", "bf16", "--causal")["README.md"].decode()
    for words in ("ring_attention_fwd[2](", "replica_groups = ((0, 1), (2, 3))", "NEURON_LOGICAL_NC_CONFIG=2", "returns bfloat16: convert it",
                  "NEURON_PLATFORM_TARGET_OVERRIDE=trn2", "[rank % 2]"):
        assert words in text, words
    assert np.load(*glob.glob("groups/ring_attention_fwd.mask_offsets.*.npy")).shape == (2, 4, 2)
    text = emit("single", "--ranks", 1, "--tokens-per-rank", 64, "--lnc", 1, "--target", "trn3", "--no-training")["README.md"].decode()
    assert "replica_groups" not in text and "output = ring_attention_fwd(q, k, v)" in text and "trn3" in text
    both = {"ring_attention_fwd.py", "ring_attention_fwd_stationary.py"}
    assert set(os.listdir("single")) == ALWAYS | both
    # A used folder keeps no kernel or table of an earlier problem, and all other files.
    emit("used", "--ranks", 2, "--tokens-per-rank", 64, "--head-dim", 16, "--causal")
    for name in ("notes.txt", "ring_attention_notes.py", "my.mask_offsets.npy"):
        open(os.path.join("used", name), "w").close()
    done = run("nki", "--emit", "used", "--ranks", 2, "--tokens-per-rank", 64, "--head-dim", 16, "--dtype", "f32", "--documents", "0,9", "--only", "fwd")
    left = set(os.listdir("used")) - {os.path.basename(line.split()[0]) for line in done.stdout.splitlines()}
    assert left == {"notes.txt", "ring_attention_notes.py", "my.mask_offsets.npy"}, left
    # No line of a kernel is longer than 120 characters.
    files = emit("wide", "--ranks", 16, "--tokens-per-rank", 300, "--query-heads", 2, "--kv-heads", 1, "--head-dim", 256, "--window", "300,-1", "--sink-tokens", 4,
                 "--sharding", "zigzag", "--nki-version", "0.4", "--target", "trn3", "--output-dtype", "bf16", "--groups", 4, "--only", "fwd")
    kernel(files, "ring_attention_fwd")
    # The second forward kernel is for bfloat16 without key pieces inside a block of 128 keys, unless the call says otherwise.
    for options, needs in (([], True), (["--dtype", "f32"], False), (["--no-keys-stationary"], False), (["--window", "9,0", "--sink-tokens", 3], False)):
        text = emit("one_forward" + "".join(map(str, options)), "--ranks", 1, "--tokens-per-rank", 64, *options, "--only", "fwd")["README.md"].decode()
        assert ("all ranks call `ring_attention_fwd`" in text) == ("`ring_attention_fwd_stationary.py`" in text) == needs, (options, text)
        assert ("keys-stationary" in text) == ("--no-keys-stationary" in options), text
    assert set(emit("backward", "--tokens-per-rank", 64, "--only", "bwd")) == ALWAYS | {"ring_attention_bwd.py"}
    assert set(emit("forward", "--tokens-per-rank", 64, "--backward", "none")) == ALWAYS | both

    # The version of NKI determines the text and is named in every file.
    for version, sdk in (("0.3", "2.29"), ("0.4", "2.30"), ("0.5", "2.31"), ("0.6", "2.32"), ("0.7", "2.33")):
        folder = "nki" + version
        files = emit(folder, "--tokens-per-rank", 64, "--head-dim", 16, "--causal", "--nki-version", version)
        for name in ("README.md", "ring_attention_bwd.py", *both):
            assert f"NKI {version} (Neuron SDK {sdk}) and later{'' if version == '0.7' else ', before 0.7'}." in files[name].decode(), (version, name)
        assert f" --nki-version {version} " in files["README.md"].decode()
        required = files["requirements.txt"].decode()
        assert f"nki>={version}{'' if version == '0.7' else ',<0.7'}\n" in required
        assert "--extra-index-url" in required and "setup-env.html\n" in required
        # From 0.7 on the environment alone says how many cores a kernel has.
        grid = "ring_attention_fwd[2](" in files["README.md"].decode()
        assert grid == (version != "0.7") == ("LAUNCH_GRID = True" in files["problem.py"].decode())
        assert grid == ("# Launch: ring_attention_fwd[2](...)" in files["ring_attention_fwd.py"].decode())
        if version == "0.3":
            assert emit("oldest", "--tokens-per-rank", 64, "--head-dim", 16, "--causal") == files

    # The command line in the README has no options of a kernel that is left out.
    told = emit("told-forward", "--tokens-per-rank", 64, "--only", "fwd", "--no-training")["README.md"].decode()
    assert "--backward" not in told and "--lse-dtype" not in told and "--only fwd --emit ." in told

    # Tables that would fill the disk are not written; the README says how to make them.
    files = emit("large", "--ranks", 32, "--groups", 64, "--tokens-per-rank", 600, "--head-dim", 16, "--documents", "0,1000", "--only", "fwd")
    assert set(files) == ALWAYS | both
    for call in ("sharded_mask(", ".ranges(rank % 32, 64)", ".key_ranges(rank % 32, 64)"):
        assert call in files["README.md"].decode(), call

print("ok")
