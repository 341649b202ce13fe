"""annulus nki --like nkilib: functions with nkilib's names, parameters, layouts and results, run on the numpy model."""

import inspect
import os
import pathlib
import re
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
sys.dont_write_bytecode = True
from command import Folder, environment, run  # noqa: E402
from dense_attention import attend as dense  # noqa: E402
from dense_attention import relative_error  # noqa: E402
from launchers import emit, frameworks, nki_model, run_jax, run_torch, simulate, succeeds  # noqa: E402
from signatures import problems  # noqa: E402

# Parameters with their defaults, from the vendor's API reference and nki-library.
FORWARD, BACKWARD = "ring_attention_spmd_fwd", "ring_attention_spmd_bwd"
PARAMETERS = {
    FORWARD: "q, k, v, replica_groups=None, num_workers=1, softmax_scale=None, use_causal_mask=False, striped_input=False, "
             "training=False, lse_dtype=float32, tp_q=False, tp_k=False, bound_min=None, bound_max=None",
    BACKWARD: "q_ref, k_ref, v_ref, o_ref, dy_ref, lse_ref, use_causal_mask=False, mixed_precision=True, softmax_scale=None, "
              "num_workers=1, lnc_size=1, replica_groups=None, striped_attention=False, bound_min=None, bound_max=None, "
              "segment_cu_seqlens=None",
}
EXACT = 3e-6  # sums in float32, in another order
ALL = ["output", "lse", "dq", "dk", "dv"]
STRIPED = ["--causal", "--sharding", "striped"]


def like(folder, *arguments):
    """Writes a folder and checks its kernels' text; returns the text of each function's module."""
    emit(folder, "--like", "nkilib", *arguments)
    version = arguments[arguments.index("--nki-version") + 1] if "--nki-version" in arguments else "0.3"
    target = arguments[arguments.index("--target") + 1] if "--target" in arguments else "trn2"
    texts = {path.stem: path.read_text() for path in sorted(pathlib.Path(folder).glob("ring_attention_*"))}
    for name, text in texts.items():
        assert nki_model.subset.check(text) == [] and max(map(len, text.splitlines())) <= 120, name
        assert problems(text, version, target)[0] == [], problems(text, version, target)[0][:5]
    return texts


def function(texts, name):
    module = {}
    exec(compile(texts[name], name + ".py", "exec"), module)
    return module[name]


def regroup(folder, groups):
    path = pathlib.Path(folder, "problem.py")
    path.write_text(re.sub("REPLICA_GROUPS = .*", f"REPLICA_GROUPS = {groups}", path.read_text()))


def fails(call, *words):
    try:
        call()
    except nki_model.KernelFailed as error:
        assert all(word in str(error) for word in words), (words, str(error)[:300])
    else:
        raise AssertionError(f"no refusal that says {words}")


def tiles(lse):
    """[batch, heads, 128, columns] of [batch, heads, rows]."""
    columns = -(-lse.shape[2] // 128)
    padded = np.zeros((*lse.shape[:2], columns * 128), np.float32)
    padded[:, :, :lse.shape[2]] = lse
    return np.ascontiguousarray(padded.reshape(*lse.shape[:2], columns, 128).swapaxes(2, 3))


with Folder(), environment({"NEURON_LOGICAL_NC_CONFIG": "2"}):
    # The launchers run the functions in both frameworks, on rings in any order.
    cases = [
        ("striped", 4, [2, 0, 3, 1], ["--ranks", 4, "--tokens-per-rank", 40, "--query-heads", 2, "--kv-heads", 1, "--head-dim", 16, *STRIPED,
                                      "--dtype", "f32"]),
        ("contiguous", 2, None, ["--ranks", 2, "--tokens-per-rank", 140, "--query-heads", 2, "--head-dim", 136, "--value-dim", 24, "--causal", "--tp-q",
                                 "--tp-k", "--lse-dtype", "f32", "--scale", "-0.2"]),
        ("all", 2, [1, 0], ["--ranks", 2, "--tokens-per-rank", 40, "--head-dim", 16, "--dtype", "f16", "--nki-version", "0.7"]),
        ("documents", 2, [1, 0], ["--ranks", 2, "--tokens-per-rank", 140, "--query-heads", 2, "--head-dim", 16, *STRIPED, "--documents", "0,30,96",
                                  "--target", "trn3", "--dtype", "f32"]),
        ("bounds", 2, None, ["--ranks", 2, "--tokens-per-rank", 130, "--query-heads", 2, "--head-dim", 16, "--sharding", "striped", "--documents",
                             "0,30,96", "--run-time-documents", "--backward", "keys", "--dtype", "f32"]),
    ]
    for name, ranks, order, options in cases:
        texts = like(name, *options)
        for called, parameters in PARAMETERS.items():
            written = re.sub("nl.", "", str(inspect.signature(function(texts, called).function)))
            assert re.sub(r"<.*?>|\w+\.float32", "float32", written) == f"({parameters})", written
        found = succeeds(*run_torch(name, ranks, order), name)
        assert set(found) == {(result, rank) for result in ALL for rank in range(ranks)}, found
        assert ["--dtype", "f32"] != options[-2:] or max(found.values()) < EXACT, found
        assert succeeds(*run_jax(name, ranks, order), name) == found

    # The command line in the README makes the same files.
    told = re.findall(r"^annulus (nki .*) --emit \.$", pathlib.Path("documents", "README.md").read_text(), re.M)[0].split()
    assert "--like nkilib" in " ".join(told) and run(*told, "--emit", "again").returncode == 0
    assert all(path.read_bytes() == pathlib.Path("again", path.name).read_bytes() for path in pathlib.Path("documents").glob("*.*"))

    # Groups at equal distances, whether an id is counted in the world or in the group; a ring of any order in each.
    for sharding, travels in (("contiguous", "queries"), ("striped", "keys")):
        name = "groups_" + sharding
        like(name, "--ranks", 2, "--groups", 4, "--tokens-per-rank", 20, "--head-dim", 8, "--causal", "--sharding", sharding, "--backward", travels,
             "--dtype", "f32")
        for stride in (1, 2, 4):
            regroup(name, tuple((first, first + stride) for begin in range(0, 8, 2 * stride) for first in range(begin, begin + stride)))
            for ids in ("position", "global"):
                found = succeeds(*run_torch(name, 8, [1, 0], group_ids=ids), (name, stride, ids))
                assert max(found.values()) < EXACT, (stride, ids, found)
        for groups in (((0, 1), (2, 4), (3, 5), (6, 7)), ((0, 3), (1, 4), (2, 5), (6, 7)), ((1, 0), (3, 2), (5, 4), (7, 6)),
                       ((2, 3), (0, 1), (4, 5), (6, 7))):
            regroup(name, groups)
            fails(lambda: run_torch(name, 8), "replica_groups")
    # Without a mask the position of a rank does not matter, and neither do the groups.
    like("any_groups", "--ranks", 2, "--groups", 2, "--tokens-per-rank", 20, "--head-dim", 8, "--dtype", "f32", "--lnc", 1)
    with environment({"NEURON_LOGICAL_NC_CONFIG": "1"}):
        for groups in (((0, 3), (1, 2)), ((0, 2), (1, 3))):
            regroup("any_groups", groups)
            assert max(succeeds(*run_torch("any_groups", 4, group_ids="global"), groups).values()) < EXACT

    # One rank, in the vendor's simulator.
    frameworks.install_simulator()
    like("long_groups", "--ranks", 64, "--tokens-per-rank", 16, "--head-dim", 16)
    for options in (["--causal"], [*STRIPED, "--documents", "0,37"], ["--no-training", "--causal", "--lnc", 1]):
        name = "one" + "".join(map(str, options))
        with environment({"NEURON_LOGICAL_NC_CONFIG": "1" if "--lnc" in options else "2"}):
            like(name, "--ranks", 1, "--tokens-per-rank", 132, "--head-dim", 8, "--dtype", "f32", *options)
            found = succeeds(*simulate(name), name)
        assert max(found.values()) < EXACT and len(found) == (1 if "--no-training" in options else 5), found

    # Bounds of each batch item, and queries that see nothing: output, lse and gradients are 0. With documents that are
    # known when the kernel is built, bounds may also narrow them.
    ranks, rows, batch, heads, dim = 2, 140, 2, 2, 16
    random = np.random.default_rng(5)
    q, dy = (random.standard_normal((batch, ranks * rows, heads, dim)).astype(np.float32) for _ in range(2))
    k, v = (random.standard_normal((batch, ranks * rows, 1, dim)).astype(np.float32) for _ in range(2))
    narrow = [[(0, 30), (30, 96), (96, 200)], [(0, 20), (40, 96), (96, 280)]]  # of each batch item, in the sequence
    for name, causal, run_time, items in (("bounds_causal", True, True, narrow), ("bounds_all", False, True, narrow),
                                          ("narrowed", True, False, narrow), ("narrowed_all", False, False, narrow),
                                          ("built", True, False, None)):
        options = ["--documents", "0,30,96", "--sharding", "striped", *(["--run-time-documents"] if run_time else []),
                   *(["--causal"] if causal else [])]
        texts = like(name, "--ranks", ranks, "--tokens-per-rank", rows, "--batch", batch, "--query-heads", heads, "--kv-heads", 1, "--head-dim", dim,
                     "--dtype", "f32", *options)
        ids = np.zeros((batch, ranks * rows), int)
        bounds = np.zeros((2, batch, rows), np.float32)
        for item, documents in enumerate(items or [[(0, 30), (30, 96), (96, 280)]] * batch):
            for number, (begin, end) in enumerate(documents):
                ids[item, begin:end] = number + 1
                bounds[:, item, begin // ranks:end // ranks] = [[begin // ranks], [end // ranks]]
        expected = dense(q, k, v, dy, causal=causal, segments=(ids, ids))
        own = [np.arange(rank, ranks * rows, ranks) for rank in range(ranks)]
        by_dim = lambda x, rank: np.ascontiguousarray(x[:, own[rank]].transpose(0, 2, 3, 1))
        by_token = lambda x, rank: np.ascontiguousarray(x[:, own[rank]].transpose(0, 2, 1, 3))
        of_heads = [np.ascontiguousarray(side.repeat(heads, axis=0)[:, :, None]) for side in bounds]
        calls = [dict(q=by_dim(q, r), k=by_dim(k, r), v=by_token(v, r), num_workers=ranks, use_causal_mask=causal, striped_input=True,
                      training=True, bound_min=of_heads[0], bound_max=of_heads[1]) for r in range(ranks)]
        forward = nki_model.launch(function(texts, FORWARD), 2, calls)
        dead = np.isneginf(expected["lse"])
        assert dead.any() == bool(items)
        expected["lse"][dead] = 0
        for rank, (o, lse) in enumerate(forward):
            assert relative_error(o, by_token(expected["out"], rank)) < EXACT, name
            assert np.array_equal(lse, tiles(lse.swapaxes(2, 3).reshape(batch, heads, -1)[:, :, :rows])), "padding is 0"
            assert relative_error(lse, tiles(expected["lse"][:, :, own[rank]])) < EXACT, name
        given = {} if run_time else {"segment_cu_seqlens": (0, 30, 96, 280)}
        given |= {"bound_min": bounds[0], "bound_max": bounds[1]} if items else {}
        calls = [dict(q_ref=by_dim(q, r), k_ref=by_dim(k, r), v_ref=by_dim(v, r), dy_ref=by_dim(dy, r),
                      o_ref=np.ascontiguousarray(forward[r][0].swapaxes(2, 3)), lse_ref=forward[r][1], use_causal_mask=causal,
                      num_workers=ranks, lnc_size=2, striped_attention=True, softmax_scale=1 / np.sqrt(dim).item(), **given)
                 for r in range(ranks)]
        backward = nki_model.launch(function(texts, BACKWARD), 2, calls)
        for rank, gradients in enumerate(backward):
            for result, gradient in zip(("dq", "dk", "dv"), gradients):
                assert relative_error(gradient, by_dim(expected[result], rank)) < EXACT, (name, result)

    # Values that a kernel was not made for are refused, by name.
    def refuses(called, given, *words, **changed):
        fails(lambda: nki_model.launch(function(texts, called), 2, [{**one, **changed} for one in given]), *words)

    known = calls
    for changed in ({"use_causal_mask": False}, {"mixed_precision": False}, {"num_workers": 4}, {"lnc_size": 1}, {"striped_attention": False},
                    {"softmax_scale": 1.0}, {"segment_cu_seqlens": (0, 30, 98, 280)}, {"segment_cu_seqlens": None},
                    {"replica_groups": ((0, 1), (2, 3))}, {"replica_groups": ((0, 1, 2, 3),)}, {"replica_groups": ((1, 0),)},
                    {"bound_min": bounds[0]}):
        refuses(BACKWARD, known, "documents" if "segment_cu_seqlens" in changed else next(iter(changed)), **changed)
    known = [dict(q=by_dim(q, r), k=by_dim(k, r), v=by_token(v, r), num_workers=ranks, use_causal_mask=True, striped_input=True,
                  training=True, bound_min=of_heads[0], bound_max=of_heads[1]) for r in range(ranks)]
    for changed in ({"use_causal_mask": False}, {"num_workers": 1}, {"striped_input": False}, {"training": False}, {"tp_q": True},
                    {"tp_k": True}, {"softmax_scale": 1.0}, {"lse_dtype": sys.modules["nki.language"].bfloat16}, {"bound_min": None}):
        refuses(FORWARD, known, next(iter(changed)), **changed)

    # The cores share the transposes: without any one of the barriers around the kernel the model finds a race.
    for tensor in ("v_by_token", "o_by_token", "dy_by_token", "dq", "dk", "dv"):
        barrier = f"    nisa.core_barrier(data={tensor}, cores=(0, 1))\n"
        assert barrier in texts[BACKWARD]
        broken = {BACKWARD: texts[BACKWARD].replace(barrier, "")}
        fails(lambda: nki_model.launch(function(broken, BACKWARD), 2, calls), "race")

print("ok")
