"""Bad calls end with status 2 and one line on stderr that says what is wrong, and leave no files."""

import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import Folder, attend, environment, run, save_operands  # noqa: E402
from refusals import calls, refused  # noqa: E402

random = np.random.default_rng(9)


def save(name, array):
    np.save(name + ".npy", array)


with Folder():
    q, k = random.standard_normal((2, 5, 4, 6)), random.standard_normal((2, 7, 2, 6))
    v, dout = random.standard_normal((2, 7, 2, 3)), random.standard_normal((2, 5, 4, 3))
    files = save_operands(q, k, v)

    def bad(*arguments, says, out="new"):
        refused("attend", *files, *arguments, *(["--out-dir", out] if out is not None else []), says=says)

    def bad_operand(option, array, says, *more):
        np.save("bad.npy", array)
        bad(option, "bad.npy", *more, says=["bad.npy", *(says if isinstance(says, list) else ["accepted", says])])

    def bad_file(content, says):
        with open("bad.npy", "wb") as file:
            file.write(content)
        bad("--bias", "bad.npy", says=["bad.npy", says])

    # Leaves.
    bad("--reproducible", "--reproducible-leaf", "2", "--ranks", "2", says="whole leaves of reproducible_leaf = 2")
    bad("--reproducible", "--backend", "nki", "--dtype", "f32", says="reproducible")
    bad("--reproducible-leaf", "2", says="--reproducible")

    # The command line.
    refused(says=["subcommand", "attend|demo|plan"])
    refused("attack", says=["'attack'", "attend|demo|plan"])
    refused("attend", says="is required")
    refused("attend", "--q", "q.npy", "--k", "k.npy", "--out-dir", "new", says=["--v", "required"])
    bad(says=["--out-dir", "required"], out=None)
    bad(says="--out-dir", out="")
    bad("--frobnicate", says="--frobnicate")
    bad("stray", says="stray")
    bad("--ranks", says="--ranks")
    for value in ("0", "-1", "2.5", "two", "", "99999999999999999999", "1025", "3x"):
        bad("--ranks", value, says=["--ranks", "accepted: a whole number, 1 to 1024"])
    bad("--ranks", "2", "--ranks", "3", says="--ranks")
    bad("--sharding", "diagonal", says=["'diagonal'", "contiguous|striped|zigzag"])
    bad("--sharding", "block-striped", says=["block-striped", "--block N"])
    bad("--block", "4", says=["--block", "block-striped"])
    bad("--sharding", "block-striped", "--block", "0", says=["--block", "accepted"])
    bad("--causal=5", says="causal was given a disallowed flag override")
    bad("--rotation", "values", says=["'values'", "auto|keys|queries"])
    bad("--schedule", "tile", says=["'tile'", "ring|both-directions|two-levels|tiles|all-gather|auto|double-ring"])
    bad("--schedule-group", "2", says="--schedule")
    bad("--ranks", "4", "--schedule", "tiles", "--schedule-group", "3", says=["groups of 3 ranks", "accepted: [1, 2, 4]"])
    bad("--ranks", "2", "--schedule", "all-gather", "--rotation", "keys", says="no rows rotate")
    bad("--ranks", "2", "--schedule", "double-ring", says=["--schedule double-ring requires", "--schedule-group N", "near each other"])
    refused("plan", "--tokens", "8", "--schedule", "double-ring", says=["--schedule double-ring requires", "--schedule-group N"])
    bad("--wire", "bf16", "--dtype", "bf16", says=["wire bfloat16 for operands of 2 bytes", "accepted for 4 and 8"])
    bad("--comm", "carrier-pigeon", says="sim|mpi")
    bad("--dtype", "f8", says=["'f8'", "f64|f32|bf16|f16"])
    bad("--axes", "sbhd", says="bshd|bhsd|bhds")
    bad("--backend", "abacus", says=["'abacus'", "accepted: cpu|reference|nki"])
    bad("--backend", "reference", "--threads", "2", says=["--threads 2", "one thread per rank"])
    for value in ("0", "0.0009", "-1", "nan", "inf", "1e10", "soon", "", "1s"):
        bad("--timeout", value, says=["--timeout", "accepted: seconds, 0.001 to 1000000000, fractions too"])
    bad("--threads", "-1", says=["--threads", "accepted"])
    bad("--trace", "", says=["--trace", "accepted"])
    bad("two\nlines", says="two")

    # Options of the attention.
    for window in ("3", "3,", ",3", "3,4,5", "a,b", "3;4", "1.5,2", "", "3, 4"):
        bad("--window", window, says=["--window", "L,R"])
    bad("--sink-tokens", "2", says=["--sink-tokens", "--window"])
    bad("--sink-tokens", "-1", "--window", "1,1", says=["--sink-tokens", "accepted"])
    bad("--chunk", "-1", says=["--chunk", "accepted"])
    for value in ("nan", "inf", "-inf", "1e999", "one", ""):
        bad("--scale", value, says=["--scale", "accepted: a finite number"])
    bad("--scale", "1e60", "--dtype", "f32", says=["softmax_scale", "accepted"])
    bad("--softcap", "-1", says=["softcap", "accepted"])
    bad("--softcap", "nan", says=["--softcap", "accepted"])
    for value in ("1", "-0.1", "1.5"):
        bad("--dropout", value, says=["dropout", "0 <= probability < 1"])
    bad("--seed", "1", says=["--seed", "--dropout"])
    bad("--dropout", "0.1", "--seed", "-1", says=["--seed", "accepted"])
    bad("--query-offset", str(2**62), says=["query_offset", "accepted"])
    bad("--causal", says=["query_offset is unset", "set it to 0", "keys - queries = 2"])
    bad("--query-offset", "1e3", says=["--query-offset", "accepted"])

    # Options that need others.
    save("bias", random.standard_normal((1, 4, 5, 7)))
    save("mask", np.ones((1, 4, 5, 7), bool))
    save("dout", dout)
    save("q_ids", np.ones((2, 5), int))
    save("k_ids", np.ones((2, 7), int))
    bad("--bias-gradient", says=["--bias-gradient", "--bias"])
    bad("--bias", "bias.npy", "--bias-gradient", says=["--bias-gradient", "--dout"])
    bad("--q-segments", "q_ids.npy", says="--kv-segments")
    bad("--kv-segments", "q_ids.npy", says="--q-segments")
    bad("--bias", "bias.npy", "--rotation", "queries", says=["--rotation queries", "auto|keys"])
    bad("--mask", "mask.npy", "--rotation", "queries", says=["--rotation queries", "auto|keys"])

    # Shapes that do not fit.
    bad_operand("--dout", dout[:, :4], "sequence 5")
    bad_operand("--dout", dout.transpose(0, 2, 1, 3), "sequence 5")
    bad("--axes", "bhsd", says=["k.npy", "heads", "accepted"])
    bad_operand("--bias", np.zeros((3, 4, 5, 7)), "1 or batch 2")
    bad_operand("--bias", np.zeros((2, 2, 5, 7)), "1 or query_heads 4")
    bad_operand("--bias", np.zeros((2, 4, 1, 7)), "queries 5")
    bad_operand("--bias", np.zeros((5, 7)), "(5, 7)")
    bad_operand("--mask", np.zeros((1, 1, 5, 8), bool), "keys 7")
    bad_operand("--q-segments", np.zeros((2, 6), int), "queries 5", "--kv-segments", "q_ids.npy")
    bad_operand("--kv-segments", np.zeros((1, 7), int), "batch 2", "--q-segments", "q_ids.npy")
    bad_operand("--sinks", np.zeros(3), "query_heads 4")
    bad_operand("--sinks", np.zeros((4, 0)), "n at least 1")
    bad_operand("--sinks", np.float64(1), "()")
    bad_operand("--joint-k", np.zeros((2, 3, 2, 5)), "dim 6", "--joint-v", "v.npy")
    bad_operand("--joint-v", np.zeros((2, 3, 2, 4)), "joint keys 7", "--joint-k", "k.npy")
    bad("--joint-k", "k.npy", says="--joint-v")
    bad("--joint-k", "k.npy", "--joint-v", "v.npy", "--dropout", "0.1", says="joint keys with dropout")
    for name, array, word in [("q", q[0], "(5, 4, 6)"), ("q", q[:, :0], "at least 1"), ("k", k[:1], "batch 2"),
                              ("k", k[..., :4], "dim 6"), ("v", v[:, :6], "sequence 7"), ("v", v[:, :, :1], "heads 2"), ("v", v[..., :0], "at least 1")]:
        save(name, array)
        bad(says=[name + ".npy", "accepted", word])
        save_operands(q, k, v)

    save("q", q[:, :, :3])
    bad(says=["k.npy", "2 heads", "divides"])
    save("q", q)

    # Element types that would be converted unasked.
    for name in ("k", "v"):
        save(name, {"k": k, "v": v}[name].astype("f4"))
        bad(says=[f"{name}.npy: holds f4, q.npy holds f8; accepted: f8, or --dtype"])
        save_operands(q, k, v)
    bad_operand("--dout", dout.astype("f2"), "holds f2, q.npy holds f8")
    bad_operand("--bias", np.zeros((1, 1, 5, 7), "f4"), "holds f4, q.npy holds f8")
    bad_operand("--sinks", np.zeros(4, "f4"), "holds f4, q.npy holds f8; accepted: f8, or")
    bad_operand("--joint-k", np.zeros((2, 7, 2, 6), "f4"), "holds f4", "--joint-v", "v.npy")
    bad_operand("--joint-v", v.astype("f4"), "holds f4", "--joint-k", "k.npy")
    save_operands(*(x.astype("f2") for x in (q, k, v)))
    bad_operand("--sinks", np.zeros(4), "holds f8, q.npy holds f2; accepted: f2 or f4, or --dtype")
    save_operands(q, k, v)

    # Element types and values that the option does not accept.
    bad_operand("--bias", np.zeros((1, 1, 5, 7), int), "i8")
    bad_operand("--bias", np.zeros((1, 1, 5, 7), complex), "c16")
    bad_operand("--sinks", np.zeros(4, bool), "b1")
    bad_operand("--mask", np.ones((1, 1, 5, 7)), ["f8", "accepted for a mask: b1"])
    bad_operand("--mask", np.full((1, 1, 5, 7), 2), ["holds 2", "0 or 1"])
    bad_operand("--q-segments", np.ones((2, 5)), "f8", "--kv-segments", "k_ids.npy")
    bad_operand("--q-segments", np.full((2, 5), 2**40), "32 bits", "--kv-segments", "k_ids.npy")
    bad_operand("--bias", np.array([{"a": 1}], object), "pickle")

    # Files that are not arrays.
    whole = open("bias.npy", "rb").read()
    bad("--bias", "missing.npy", says=["missing.npy", "does not exist"])
    bad("--bias", ".", says="folder")
    bad("--bias", "", says="--bias")
    bad("--bias", "new\nline.npy", says="new\\x0aline.npy")
    bad_file(b"", "empty")
    bad_file(b"1 2 3\n", "NUMPY")
    bad_file(whole[:4], "ends")
    bad_file(whole[:40], "header")
    bad_file(whole[:-1], "bytes of data")
    bad_file(whole + b"\0", "bytes of data")
    bad_file(whole.replace(b"(1, 4, 5, 7),", b"(01, 4, 5, 7)"), "leading zeros")
    bad_file(whole.replace(b"(1, 4, 5, 7)", b"(1, 4, 5, 8)"), "bytes of data")
    bad_file(whole.replace(b"(1, 4, 5, 7), }", b"(9999999999, 9999999999), }"), "too large")
    bad_file(b"\x93NUMPY\x09\x00" + whole[8:], "version 9.0")
    np.savez("archive.npz", q=q)
    bad("--bias", "archive.npz", says="zip")
    os.mkfifo("pipe.npy")
    bad("--bias", "pipe.npy", says="not a regular file")

    # Paths that cannot be written are refused before anything is computed, and no folder is left.
    open("plain", "w").close()
    bad(says=["plain", "not a folder"], out="plain")
    bad(says="cannot be created", out=os.path.join("plain", "below"))
    bad(says="cannot be created", out="/proc/annulus")
    bad(says="cannot be created", out=os.path.join("made", "x" * 300))
    os.makedirs(os.path.join("taken", "lse.npy"))
    bad(says=["lse.npy", "not a regular file"], out="taken")
    if os.geteuid() != 0:
        os.mkdir("locked", 0o500)
        bad(says="cannot be written", out="locked")
    os.mkdir("own")
    os.link("q.npy", os.path.join("own", "out.npy"))
    bad(says=["out.npy", "is an input"], out="own")
    os.mkdir("results")
    bad("--trace", os.path.join("results", "..", "results", "out.npy"), says=["out.npy", "--trace"], out="results")
    bad("--trace", "lse.npy", says=["lse.npy", "is the name of a result"], out=".")
    bad("--trace", "q.npy", says=["q.npy", "is an input"])
    bad("--trace", os.path.join("missing", "trace.json"), says=["trace.json", "cannot be written"])
    bad("--trace", "results", says=["results", "not a regular file"])

    # A launcher started several processes without --comm mpi: only the first prints the error.
    for variables in ({"PMI_SIZE": "3", "PMI_RANK": "0"}, {"SLURM_STEP_NUM_TASKS": "3", "SLURM_PROCID": "0"}):
        with environment(variables):
            bad(says=["3 processes were started", list(variables)[0], "--comm sim", "accepted: --comm mpi, or one process"])
            refused("demo", says=["3 processes", "'demo'", "one process"])
    with environment({"PMI_SIZE": "3", "PMI_RANK": "2"}):
        silent = run("attend", *files, "--out-dir", "new")
        assert (silent.returncode, silent.stdout, silent.stderr) == (2, "", ""), silent
    # A batch script with many allotted tasks is one process.
    with environment({"SLURM_NTASKS": "3", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}):
        attend(*files)

    # The other subcommands.
    for arguments, says in [(["--tokens", "0"], "--tokens"), (["--tokens", "many"], "--tokens"), (["--ranks", "0"], "--ranks"),
                            (["--heads", "3", "--kv-heads", "2"], "divides"), (["--head-dim", "7"], "even"), (["--text", "missing"], "missing"),
                            (["--text", "."], "folder"), (["--timeout", "0"], "--timeout"), (["--text", "plain"], "empty"), (["--text", ""], "--text"), (["--seed", "1"], "--seed")]:
        refused("demo", *arguments, says=says)
    for arguments, says in [([], "--tokens"), (["--queries", "4"], "--keys"), (["--tokens", "4", "--keys", "4"], "--keys"),
                            (["--tokens", "4", "--heads", "3", "--kv-heads", "2"], "divides"),
                            (["--tokens", "4", "--block", "2"], "block-striped"), (["--tokens", "4", "--sharding", "block-striped"], "--block"),
                            (["--tokens", str(2**26), "--sharding", "block-striped", "--block", "1"], "blocks"),
                            (["--tokens", "4", "--documents", "0,4"], "below the number of tokens, 4"), (["--tokens", "4", "--documents", "1,2"], "the first 0"),
                            (["--queries", "4", "--keys", "9", "--documents", "0"], "equally many"), (["--queries", "4", "--keys", "9", "--sharding", "balanced"], "equally many"),
                            (["--tokens", "4", "--bandwidth", "1"], "--flops"), (["--tokens", "4", "--flops", "0"], "1e-6"),
                            (["--tokens", "4", "--flops", "1e-320"], "1e-6"), (["--tokens", "4", "--flops", "1", "--bandwidth", "4.9e-324"], "1e-6"),
                            (["--tokens", "4", "--flops", "1", "--group", "2", "--far-bandwidth", "1e-7"], "1e-6"),
                            (["--tokens", "4", "--flops", "1", "--overlap", "2"], "0 to 1"), (["--tokens", "4", "--flops", "1", "--far-latency", "1"], "--group"),
                            (["--tokens", str(2**30), "--heads", "1024"], "multiply-adds"), (["--tokens", "4", "--pass", "sideways"], "both"),
                            (["--tokens", "4", "--window", "1"], "L,R"), (["--tokens", "4", "--chunk", "-2"], "--chunk"),
                            (["--queries", "4", "--keys", "9", "--causal"], ["query_offset is unset", "set it to 0", "keys - queries = 5"]),
                            (["--tokens", "4", "--query-offset", str(2**63 - 1)], ["query_offset", "accepted"]),
                            (["--tokens", "4", "--query-offset", str(-2**63), "--json"], ["query_offset", "accepted"]),
                            (["--tokens", "4", "--sink-tokens", "-1", "--window", "1,1"], ["--sink-tokens", "accepted"]),
                            (["--tokens", "4", "--sink-tokens", "1"], "--window"), (["--tokens", "4", "--softcap", "2"], "--softcap"),
                            (["--tokens", "4", "--dropout", "0.1"], "--dropout"), (["--tokens", "4", "--chunk", str(2**63)], "--chunk")]:
        refused("plan", *arguments, says=says)

print(f"ok: {len(calls)} bad calls")
