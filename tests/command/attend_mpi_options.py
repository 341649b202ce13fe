"""All ranks of a job must have the same command line: a difference is refused on all ranks before a file is touched."""

import concurrent.futures
import os
import re
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import Folder, load, run, save_operands  # noqa: E402
from mpi import launcher, lines_of_annulus, refused_each, require_mpi, run_each  # noqa: E402

require_mpi()
random = np.random.default_rng(11)

# For each option of attend, the arguments that the other rank has in addition. All of them can be parsed.
FILES = {"q", "k", "v", "dout", "bias", "mask", "sinks", "out-dir", "trace"}
DIFFERENCES = {
    **{"--" + name: ["--" + name, "other"] for name in FILES - {"q", "k", "v", "out-dir"}},
    "--bias-gradient": ["--bias-gradient", "--bias", "bias.npy", "--dout", "q.npy"],
    "--q-segments": ["--q-segments", "other", "--kv-segments", "ids.npy"],
    "--kv-segments": ["--kv-segments", "other", "--q-segments", "ids.npy"],
    "--joint-k": ["--joint-k", "other", "--joint-v", "k.npy"],
    "--joint-v": ["--joint-v", "other", "--joint-k", "k.npy"],
    "--ranks": ["--ranks", "2"],
    "--comm": [],
    "--timeout": ["--timeout", "100.5"],
    "--sharding": ["--sharding", "zigzag"],
    "--block": ["--sharding", "block-striped", "--block", "3"],
    "--rotation": ["--rotation", "keys"],
    "--schedule": ["--schedule", "tiles"],
    "--schedule-group": ["--schedule-group", "1", "--schedule", "tiles"],
    "--wire": ["--wire", "bf16"],
    "--reproducible": ["--reproducible"],
    "--reproducible-leaf": ["--reproducible-leaf", "8", "--reproducible"],
    "--backend": ["--backend", "nki"],
    "--dtype": ["--dtype", "f64"],
    "--threads": ["--threads", "7"],
    "--axes": ["--axes", "bhsd"],
    "--causal": ["--causal"],
    "--window": ["--window", "3,0"],
    "--sink-tokens": ["--sink-tokens", "2", "--window", "1,1"],
    "--chunk": ["--chunk", "4"],
    "--query-offset": ["--query-offset", "-3"],
    "--scale": ["--scale", "0.3"],
    "--softcap": ["--softcap", "5"],
    "--dropout": ["--dropout", "0.1"],
    "--seed": ["--seed", "18446744073709551615", "--dropout", "0.2"],
    "--verify": ["--verify"],
    "--require-finite": ["--require-finite"],
}
# Arguments of the first rank, for options that need others which must not be the difference that is reported.
FIRST = {
    "--bias-gradient": ["--bias", "bias.npy", "--dout", "q.npy"],
    "--q-segments": ["--q-segments", "ids.npy", "--kv-segments", "ids.npy"],
    "--kv-segments": ["--kv-segments", "ids.npy", "--q-segments", "ids.npy"],
    "--joint-k": ["--joint-k", "k.npy", "--joint-v", "k.npy"],
    "--joint-v": ["--joint-v", "k.npy", "--joint-k", "k.npy"],
    "--sink-tokens": ["--window", "1,1"],
    "--block": ["--sharding", "block-striped", "--block", "2"],
    "--reproducible-leaf": ["--reproducible-leaf", "4", "--reproducible"],
    "--seed": ["--seed", "18446744073709551614", "--dropout", "0.2"],
    "--schedule-group": ["--schedule-group", "2", "--schedule", "tiles"],
}

with Folder():
    files = save_operands(random.standard_normal((1, 6, 4, 8)), random.standard_normal((1, 6, 2, 8)), random.standard_normal((1, 6, 2, 8)))
    call = ["attend", *files, "--out-dir", "new"]
    mpi = [*call, "--comm", "mpi"]

    # Bad options of one rank.
    refused_each(mpi, [*mpi, "--nonsense"], says=["rank 1", "--nonsense"])
    refused_each([*mpi, "--threads", "none"], mpi, mpi, says=["rank 0", "--threads", "'none'"])
    refused_each(mpi, mpi, ["attack", "--comm", "mpi"], says=["rank 2", "'attack'"])
    refused_each(mpi, ["attend", "--comm", "mpi"], says=["rank 1", "required"])
    refused_each(mpi, ["attend", "--comm=mpi", "--help"], says=["--help", "rank 0", "rank 1"])
    refused_each(mpi, ["demo"], says=["subcommand", "'attend' on rank 0", "'demo' on rank 1"])

    # One rank without --comm mpi, the first or another.
    refused_each(mpi, call, says=["--comm", "'mpi' on rank 0", "'sim' on rank 1"])
    refused_each(call, mpi, mpi, says=["--comm", "'sim' on rank 0", "'mpi' on rank 1"])

    # Every option that the help lists.
    listed = set(re.findall(r"^  (?:-\w,)?(--[\w-]+)", run("attend", "--help").stdout, re.MULTILINE)) - {"--help"}
    always = {"--q", "--k", "--v", "--out-dir"}
    assert listed == set(DIFFERENCES) | always, listed ^ (set(DIFFERENCES) | always)

    def differ(option):
        if option in always:
            other = ["other" if mpi[place - 1] == option else word for place, word in enumerate(mpi)]
            refused_each(mpi, other, says=[option + " is '", "'other' on rank 1"])
        elif option != "--comm":
            first = [*mpi, *FIRST.get(option, [])]
            refused_each(first, [*mpi, *DIFFERENCES[option]], says=[option + " is ", " on rank 0", " on rank 1", "accepted"])

    # A job mostly waits for its launcher.
    with concurrent.futures.ThreadPoolExecutor(4) as jobs:
        list(jobs.map(differ, sorted(always | set(DIFFERENCES))))
    refused_each(mpi, mpi, [*mpi, "--axes", "bhsd"], says=["--axes is 'bshd' on rank 0 and 'bhsd' on rank 2"])

    # The notation of numbers, the order of options, and options with their default value make no difference.
    spellings = [["--scale", "100000", "--window", "3,-1", "--causal"], ["--causal", "--window=3,-1", "--scale", "1e5", "--axes", "bshd"],
                 ["--window", "03,-1", "--causal", "--scale", "100000.0", "--threads", "0", "--softcap", "0.0", "--timeout", "6e2"]]
    done = run_each(*([*mpi, *spelling] for spelling in spellings))
    assert done.returncode == 0 and lines_of_annulus(done.stderr) == [] and set(load("new")) == {"out", "lse"}, done

with Folder():
    # Several processes that would each compute all results.
    files = save_operands(*(random.standard_normal((1, 6, 2, 8)) for _ in range(3)))
    for arguments, says in [(["attend", *files, "--out-dir", "new"], ["2 processes were started", "--comm sim", "accepted: --comm mpi, or one process"]),
                            (["attend", *files, "--out-dir", "new", "--comm", "sim"], "--comm sim"), (["demo"], ["2 processes", "'demo'", "one process"]),
                            (["plan", "--tokens", "4"], "'plan'"), (["nki", "--tokens-per-rank", "128", "--emit", "kernels"], "'nki'"), (["attack"], "'attack'")]:
        refused_each(arguments, arguments, says=says)
    done = run("plan", "--help", launcher=launcher(2))
    assert done.returncode == 0 and done.stdout.count("Usage") == 1, done
    done = run("plan", "--tokens", "4", launcher=launcher(1))
    assert done.returncode == 0 and "forward" in done.stdout, done

print("ok")
