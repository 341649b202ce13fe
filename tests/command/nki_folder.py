"""The launchers and the check of annulus nki --emit, run on the numpy model of NKI behind the frameworks' interfaces."""

import contextlib
import io
import os
import re
import shlex
import shutil
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
sys.dont_write_bytecode = True
from command import Folder, environment  # noqa: E402
from launchers import emit, ends_with, frameworks, inside, nki_model, run_jax, run_torch, simulate, succeeds  # noqa: E402

with Folder():
    forward_names, all_names = ["output", "lse"], ["output", "lse", "dq", "dk", "dv"]
    cases = [
        # name, ranks of all rings, ring order, options
        ("striped", 4, [2, 0, 3, 1], ["--ranks", 4, "--tokens-per-rank", 40, "--query-heads", 2, "--kv-heads", 1, "--head-dim", 16, "--causal",
                                      "--sharding", "striped"]),
        ("documents", 2, None, ["--ranks", 2, "--tokens-per-rank", 64, "--head-dim", 16, "--value-dim", 8, "--causal", "--documents", "0,30,96",
                                "--sharding", "zigzag", "--tp-q", "--lse-dtype", "bf16", "--dtype", "f16"]),
        ("groups", 4, None, ["--ranks", 2, "--groups", 2, "--tokens-per-rank", 32, "--head-dim", 8, "--window", "9,4", "--softcap", 3, "--lnc", 1,
                             "--dtype", "f32", "--nki-version", "0.7", "--sink-tokens", 2]),
        ("dead", 2, None, ["--ranks", 2, "--tokens-per-rank", 32, "--head-dim", 8, "--causal", "--query-offset", -7, "--dtype", "f32", "--sinks", 0]),
        ("sinks", 2, None, ["--ranks", 2, "--tokens-per-rank", 32, "--head-dim", 8, "--chunk", 20, "--scale", "-0.3", "--sinks", 2, "--dtype", "f32",
                            "--batch", 2]),
        ("bias", 4, [1, 0, 3, 2], ["--ranks", 4, "--tokens-per-rank", 40, "--batch", 2, "--query-heads", 2, "--kv-heads", 1, "--head-dim", 16, "--causal",
                                   "--sharding", "striped", "--bias", "heads,queries,keys", "--bias-dtype", "bf16", "--bias-gradient"]),
        ("key_bias", 2, None, ["--ranks", 2, "--tokens-per-rank", 32, "--head-dim", 8, "--query-heads", 2, "--dtype", "f32", "--softcap", 3, "--sharding", "zigzag",
                               "--bias", "keys", "--bias-gradient", "--backward", "keys"]),
        ("query_bias", 4, None, ["--ranks", 2, "--groups", 2, "--tokens-per-rank", 32, "--head-dim", 8, "--dtype", "f32", "--bias", "queries,heads",
                                 "--bias-gradient", "--documents", "0,40"]),
    ]
    for name, ranks, order, options in cases:
        emit(name, *options)
        with environment({"NEURON_LOGICAL_NC_CONFIG": "1" if name == "groups" else "2"}):
            by_torch = succeeds(*run_torch(name, ranks, order), name)
            names = all_names + ["dbias"] * ("--bias-gradient" in options)
            assert set(by_torch) == {(result, rank) for result in names for rank in range(ranks)}, by_torch
            if "f32" in options:
                assert max(by_torch.values()) < 3e-6, by_torch
            shutil.rmtree(os.path.join(name, "results"))
            assert succeeds(*run_jax(name, ranks, order, experimental=name == "groups"), name) == by_torch
            assert succeeds(*run_torch(name, ranks, order, native=True), name) == by_torch

    # The command line in the README makes the same folder of a bias; the README gives its axes.
    for name in ("bias", "key_bias", "query_bias"):
        text = open(os.path.join(name, "README.md")).read()
        told = shlex.split(re.search(r"^annulus nki (.*) --emit \.$", text, re.M)[1])
        emit("told_" + name, *told)
        for file in set(os.listdir("told_" + name)) - {"nki_model"}:
            assert open(os.path.join(name, file), "rb").read() == open(os.path.join("told_" + name, file), "rb").read(), file
        assert "[ranks of all rings, batch * query heads or 1, queries or 1, keys or 1]: added to the logits" in text, text
    # dbias is checked on its own: its values, and zeros for the ranks of other rings.
    with inside("query_bias", "check") as check, contextlib.redirect_stdout(io.StringIO()) as told:
        assert check.check()
        path = os.path.join("query_bias", "results", "dbias.rank3.npy")
        values = np.load(path)
        ranks = check.problem.RANKS
        assert (values[:ranks] == 0).all() != (values[ranks:] == 0).all(), values
        np.save(path, 1.001 * values)
        assert not check.check()
        other = values.copy()
        other[0 if (values[:ranks] == 0).all() else ranks] = 1e-30
        np.save(path, other)
        assert not check.check()
    wrong = [line.split()[:2] for line in told.getvalue().splitlines() if "TOO LARGE" in line]
    assert wrong == [["dbias", "3"]] * 2, told.getvalue()
    # A launcher sees a kernel that ignores its bias.
    source = open(os.path.join("query_bias", "check.py")).read()
    with open(os.path.join("query_bias", "check.py"), "w") as file:
        file.write(source.replace("values = pair_table(ring.bias, ", "values = 0 * pair_table(ring.bias, "))
    with environment({"NEURON_LOGICAL_NC_CONFIG": "2"}):
        told, status = run_torch("query_bias", 4)
    assert status != 0 and "TOO LARGE" in told, told

    # Of two forward kernels the launchers run the one with a running maximum only if a rank reports a row that needs it.
    stationary = ["--ranks", 2, "--tokens-per-rank", 130, "--query-heads", 2, "--head-dim", 16, "--causal", "--keys-stationary"]
    emit("narrow", *stationary, "--documents", "0,70,200", "--softcap", 5)
    emit("wide", *stationary, "--scale", 6)
    online = "ring_attention_fwd.py"
    with environment({"NEURON_LOGICAL_NC_CONFIG": "2"}):
        found = {}
        for name in ("narrow", "wide"):
            found[name] = succeeds(*run_torch(name, 2), name)
            assert set(found[name]) == {(result, rank) for result in all_names for rank in range(2)}, found[name]
            assert succeeds(*run_jax(name, 2, [1, 0]), name).keys() == found[name].keys()
            reports = [np.load(os.path.join(name, "results", f"beyond_range.rank{rank}.npy")) for rank in range(2)]
            assert any(report.any() for report in reports) == (name == "wide"), reports
            os.rename(os.path.join(name, online), name + online)
        for run_one in (run_torch, run_jax):
            assert succeeds(*run_one("narrow", 2), "narrow").keys() == found["narrow"].keys()
            try:
                run_one("wide", 2)
            except ModuleNotFoundError as error:
                assert error.name == "ring_attention_fwd", error
            else:
                raise AssertionError("a launcher did without the kernel with a running maximum")
    emit("one", "--ranks", 1, *stationary[2:], "--scale", 6, "--only", "fwd")
    emit("one_narrow", "--ranks", 1, *stationary[2:], "--only", "fwd")

    # Correct results are accepted: with a rounded output, which delta takes; where all terms cancel; with large logits; of
    # few rows; with a bias that TensorE adds.
    for number, options in enumerate([
            "--ranks 2 --tokens-per-rank 256 --query-heads 2 --head-dim 64 --causal --dtype f32 --output-dtype bf16",
            "--ranks 2 --tokens-per-rank 32 --head-dim 16 --window 0,0 --dtype f32",
            "--ranks 2 --tokens-per-rank 64 --head-dim 512 --dtype f16 --scale 10 --causal",
            "--ranks 2 --tokens-per-rank 64 --head-dim 512 --dtype f32 --scale 40",
            "--ranks 2 --tokens-per-rank 2 --head-dim 64 --causal",
            "--ranks 1 --tokens-per-rank 3 --head-dim 320 --dtype f16",
            "--ranks 2 --tokens-per-rank 128 --query-heads 2 --head-dim 40 --bias heads,queries,keys --bias-dtype bf16 --causal"]):
        emit(f"correct{number}", *options.split())
        with environment({"NEURON_LOGICAL_NC_CONFIG": "2"}):
            succeeds(*run_torch(f"correct{number}", int(options.split()[1])), options)

    # A wrong result is found: by the launcher's own check and by check.py on its files.
    with inside("striped", "check") as check, contextlib.redirect_stdout(io.StringIO()) as told:
        assert check.check()
        path = os.path.join("striped", "results", "dk.rank2.npy")
        values = np.load(path)
        np.save(path, values + 0.02 * np.abs(values).max())
        assert not check.check()
        np.save(path, 1.01 * values)
        assert not check.check()
        np.save(path, values * np.nan)
        assert check.error_of("dk", np.full(2, np.nan), np.zeros(2), np.ones(2))[0] == np.inf and not check.check()
    assert told.getvalue().count("TOO LARGE") == 3 and "dk          2" in told.getvalue(), told.getvalue()
    # bfloat16 of check.py is the device's.
    random = np.random.default_rng(1).standard_normal(1000).astype(np.float32) * 10
    assert np.array_equal(check.rounded(random, "bfloat16"), nki_model.bfloat16(random).numpy())

    # A kernel refuses the table of another mask: documents 0,64 are not documents 0,40.
    documents = lambda starts: ["--ranks", 2, "--tokens-per-rank", 64, "--head-dim", 8, "--dtype", "f32", "--causal", "--documents", starts]
    emit("first", *documents("0,64"))
    emit("second", *documents("0,40"))
    tables = lambda folder: {name for name in os.listdir(folder) if name.endswith(".npy")}
    assert not tables("first") & tables("second"), tables("first")
    for name in ("problem.py", *tables("second")):
        shutil.copy(os.path.join("second", name), "first")
    try:
        run_torch("first", 2)
    except nki_model.KernelFailed as error:
        assert "the table is of another mask than this kernel" in str(error), error
    else:
        raise AssertionError("a kernel took the table of another mask")

    # The table of a pass in which queries rotate has other values than that of the other pass.
    emit("passes", "--ranks", 2, "--tokens-per-rank", 64, "--head-dim", 16, "--dtype", "f32", "--causal")
    path = os.path.join("passes", "problem.py")
    text = open(path).read()
    forward, backward = re.findall(r'"mask": "(.*)"', text)
    assert forward.split(".")[2] != backward.split(".")[2], (forward, backward)
    fingerprints = re.findall(r'"mask_fingerprint": "(\w+)"', text)
    with open(path, "w") as file:  # both passes take the table of the forward kernel, and say so
        file.write(text.replace(backward, forward).replace(fingerprints[1], fingerprints[0]))
    try:
        run_torch("passes", 2)
    except nki_model.KernelFailed as error:
        assert "the table is of another mask than this kernel" in str(error), error
    else:
        raise AssertionError("the backward kernel took the table of the forward kernel")

    # With documents as an argument one kernel serves all of them, each with its own table.
    for sharding in ("contiguous", "striped", "zigzag"):
        emit("any_" + sharding, *documents("0,64"), "--run-time-documents", "--sharding", sharding, "--sink-tokens", 3, "--window", "50,50")
        emit("other", *documents("0,9,40,100"), "--run-time-documents", "--sharding", sharding, "--sink-tokens", 3, "--window", "50,50")
        for name in ("ring_attention_fwd.py", "ring_attention_bwd.py"):
            assert open(os.path.join("any_" + sharding, name)).read() == open(os.path.join("other", name)).read()
        with inside("other", "check") as check:
            for kernel, about in check.problem.KERNELS.items():
                (name, _, shape), = (tensor for tensor in about["inputs"] if tensor[0] == "mask_ranges")
                for rank in range(2):
                    written = np.load(os.path.join("other", about["mask"].format(rank)))
                    assert np.array_equal(check.mask_table(kernel, rank, shape), written), (sharding, kernel, rank)
        for starts in ("0,64", "0,9,40,100", "0"):
            text = open(os.path.join("any_" + sharding, "problem.py")).read()
            with open(os.path.join("any_" + sharding, "problem.py"), "w") as file:
                file.write(re.sub(r'"documents": .*', f'"documents": ({starts},),', text))
            found = succeeds(*run_torch("any_" + sharding, 2, native=True), starts)
            assert max(found.values()) < 3e-6, (starts, found)

    # Wrong numbers of processes, devices and cores are refused before anything runs.
    frameworks.install_torch(False)
    with inside("striped", "run_torch") as launcher:
        ends_with(lambda: frameworks.World(3).run(launcher.main), "3 processes", "--nproc_per_node 4")
    frameworks.install_jax(3)
    with inside("striped", "run_jax") as launcher:
        ends_with(launcher.main, "3 devices", "4")
    with environment({"NEURON_LOGICAL_NC_CONFIG": "1"}):
        ends_with(lambda: run_torch("striped", 4), "NEURON_LOGICAL_NC_CONFIG=1", "2")

    # The number of cores is set when a launcher imports check.py, before it opens a device.
    with environment({}):
        os.environ.pop("NEURON_LOGICAL_NC_CONFIG", None)
        with inside("groups", "check"):
            assert os.environ["NEURON_LOGICAL_NC_CONFIG"] == "1"

    # One kernel alone; the backward kernel then reads output and lse of the reference.
    for only, names in (("fwd", forward_names), ("bwd", ["dq", "dk", "dv"])):
        emit(only, "--ranks", 2, "--tokens-per-rank", 32, "--head-dim", 8, "--dtype", "f32", "--causal", "--only", only)
        found = succeeds(*run_torch(only, 2), only)
        assert {name for name, _ in found} == set(names) and max(found.values()) < 3e-6, found

    # The simulator takes one rank; a folder for more prints the command that makes such a folder.
    frameworks.install_simulator()
    with inside("striped", "simulate") as launcher:
        ends_with(launcher.main, "--ranks 1 --tokens-per-rank 40", "--emit one_rank")
        told = launcher.problem.COMMAND_OF_ONE_RANK.split()
    emit("one_rank", *told[2:])
    assert {name for name, _ in succeeds(*simulate("one_rank"), "simulate")} == set(all_names)
    # Both numbers of cores, in the call of the kernel and, from NKI 0.7 on, in the environment.
    for version in ("0.6", "0.7"):
        for cores in ("1", "2"):
            name = f"one_rank_{version[2:]}_{cores}"
            emit(name, "--ranks", 1, "--tokens-per-rank", 100, "--head-dim", 64, "--causal", "--lnc", cores, "--nki-version", version, "--dtype", "f32")
            with environment({"NEURON_LOGICAL_NC_CONFIG": cores}):
                found = succeeds(*simulate(name), name)
            assert {result for result, _ in found} == set(all_names) and max(found.values()) < 3e-6, (name, found)
    for name, needed in (("one", True), ("one_narrow", False)):
        if not needed:
            os.remove(os.path.join(name, online))
        assert {name for name, _ in succeeds(*simulate(name), name)} == set(forward_names)
        assert np.load(os.path.join(name, "results", "beyond_range.rank0.npy")).any() == needed

print("ok")
