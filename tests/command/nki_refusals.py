"""Bad calls of annulus nki end with status 2 and one line on stderr that says what is wrong, and leave no files."""

import os
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "support"))
from command import Folder, save_operands  # noqa: E402
from refusals import calls, refused  # noqa: E402

random = np.random.default_rng(13)

with Folder():
    q, k = random.standard_normal((1, 12, 4, 8)), random.standard_normal((1, 12, 2, 8))
    v, dout = random.standard_normal((1, 12, 2, 8)), random.standard_normal((1, 12, 4, 8))
    files = save_operands(q, k, v)
    np.save("dout.npy", dout)
    np.save("sinks.npy", np.zeros(4))

    def bad(*arguments, says):
        refused("nki", *arguments, says=says)

    def bad_kernel(*arguments, says):
        """A bad call with --emit; no kernel is written."""
        refused("nki", "--emit", "new", "--tokens-per-rank", "64", *arguments, says=says)

    # Actions and operands.
    bad(says=["--emit", "--simulate", "--cost-only"])
    bad("--tokens-per-rank", "64", says=["--emit", "--simulate", "--cost-only"])
    bad("--simulate", says=["--tokens-per-rank", "--q"])
    bad("--simulate", "--cost-only", "--tokens-per-rank", "64", says="--cost-only")
    bad("--simulate", *files, "--tokens-per-rank", "3", says="--tokens-per-rank")
    bad("--simulate", *files, "--head-dim", "8", says="--head-dim")
    bad("--simulate", *files, "--seed", "1", says="--seed")
    bad("--simulate", "--q", "q.npy", says="--q")
    bad("--simulate", "--tokens-per-rank", "8", "--dout", "dout.npy", says="--dout")
    bad("--simulate", "--tokens-per-rank", "8", "--axes", "bhsd", says="--axes")
    # The length of the whole sequence, which was that of a rank: refused alone, and checked against the ranks.
    for option in ("--tokens", "--keys"):
        per_rank = option + "-per-rank"
        alone = [] if option == "--tokens" else ["--tokens-per-rank", "64"]
        bad("--cost-only", *alone, option, "64", says=[option + " 64 meant the length of each rank, and will mean that of the whole sequence",
                                                       f"accepted: {per_rank} 64, which is what it meant"])
        bad("--cost-only", "--ranks", "4", *alone, per_rank, "64", option, "250",
            says=[option + " 250", per_rank + " 64 on 4 ranks", f"accepted: {option} 256, the length of the whole sequence"])
    for option in ("--out-dir", "--seed", "--ring-order"):
        bad_kernel(option, "1", says=[option, "--simulate"])
    bad("--simulate", *files, "--backward", "queries", says=["--dout", "--only fwd"])
    bad("--simulate", *files, "--only", "bwd", says=["--dout", "--only fwd"])
    bad("--simulate", *files, "--dout", "dout.npy", "--only", "fwd", says=["--dout", "backward"])
    bad_kernel("--only", "bwd", "--backward", "none", says=["--only bwd", "queries|keys"])
    bad_kernel("--no-training", "--backward", "keys", says=["--no-training", "lse"])
    bad_kernel("--no-training", "--only", "bwd", says=["--no-training", "lse"])

    for option, word in (("--lse-dtype", "bf16"), ("--lse-dtype", "f32"), ("--masked-row", "zero")):
        bad_kernel("--no-training", option, word, says=[option, "--no-training", "no lse"])
    for word in ("keys", "queries"):
        bad_kernel("--only", "fwd", "--backward", word, says=["--backward", "--only fwd", "no backward kernel"])
    bad("--cost-only", "--tokens-per-rank", "8", "--only", "bwd", "--keys-stationary", says=["--keys-stationary", "--only bwd", "no forward kernel"])
    for action in ("--cost-only", "--simulate"):
        bad(action, "--tokens-per-rank", "8", "--nki-version", "0.4", says=["--nki-version", "--emit"])

    # Words and numbers.
    for option, words in (("--dtype", "bf16|f16|f32"), ("--output-dtype", "bf16|f16|f32"), ("--lse-dtype", "bf16|f16|f32"), ("--lnc", "1|2"),
                          ("--target", "trn2|trn3"), ("--masked-row", "-inf|zero"), ("--backward", "none|queries|keys"), ("--only", "fwd|bwd"),
                          ("--sharding", "contiguous|striped|zigzag"), ("--nki-version", "0.3|0.4|0.5|0.6")):
        bad_kernel(option, "f64", says=["'f64'", words])
    for option in ("--ranks", "--groups", "--batch", "--query-heads", "--kv-heads", "--head-dim", "--value-dim", "--keys-per-rank"):
        for value in ("0", "-1", "many", "1.5", "99999999999999999999"):
            bad_kernel(option, value, says=[option, "accepted: a whole number"])
    for value in ("5", "0,0", "0,9,4", "0,", "0,x", "", "-1,0", "0,1,"):
        bad_kernel("--documents", value, says=["--documents", "accepted"])
    bad_kernel("--documents", "0,256", says=["--documents", "256"])
    bad_kernel("--documents", "0,4", "--query-offset", "3", says=["--documents", "--query-offset"])
    bad_kernel("--documents", "0,4", "--keys-per-rank", "32", says=["--documents", "equally many"])
    bad_kernel("--sinks", "-1", says=["--sinks", "0 to 1024"])
    bad_kernel("--sinks", "sinks.npy", says=["--sinks", "--q"])
    bad("--simulate", *files, "--ranks", "2", "--sinks", "2", says=["--sinks", "file"])
    bad("--simulate", *files, "--ranks", "2", "--sinks", "missing.npy", says=["missing.npy", "does not exist"])
    for value in ("bias.npy", "heads,heads", ",keys", "keys,", "pairs", "heads queries", ","):
        bad_kernel("--bias", value, says=["--bias", "--q", "heads, queries and keys"])
    bad_kernel("--bias", "", says=["--bias", "accepted"])
    bad_kernel("--bias-gradient", says="--bias")
    bad_kernel("--bias-dtype", "bf16", says="--bias")
    bad_kernel("--bias", "keys", "--bias-dtype", "f16", says=["'f16'", "f32|bf16"])
    bad_kernel("--bias", "keys", "--bias-gradient", "--only", "fwd", says=["--bias-gradient", "--backward", "--only fwd"])
    bad_kernel("--bias", "keys", "--keys-stationary", says=["stationary keys", "with a bias", "no bias"])
    bad("--simulate", *files, "--ranks", "2", "--bias", "heads,keys", says=["--bias names axes", "file"])
    bad("--simulate", *files, "--ranks", "2", "--bias", "missing.npy", says=["missing.npy", "does not exist"])
    bad("--simulate", *files, "--ranks", "2", "--bias", "dout.npy", says=["dout.npy", "queries"])
    np.save("bias.npy", np.zeros((1, 1, 12, 12)))
    bad("--simulate", *files, "--ranks", "2", "--bias", "bias.npy", "--bias-gradient", says=["--dout"])
    bad_kernel("--softcap", "-1", says=["softcap", "accepted"])
    bad_kernel("--sink-tokens", "2", says=["--sink-tokens", "--window"])
    bad_kernel("--backend", "nki", says="--backend")

    # What nkilib has no parameter for.
    bad("--cost-only", "--tokens-per-rank", "64", "--like", "nkilib", says=["--like", "--emit"])
    bad_kernel("--like", "annulus", says=["'annulus'", "nkilib"])
    for options, says in ((["--window", "9,0"], "--window"), (["--window", "9,0", "--sink-tokens", "2"], "--window"), (["--chunk", "8"], "--chunk"),
                          (["--query-offset", "3"], "--query-offset"), (["--keys-per-rank", "32"], "--keys-per-rank"), (["--softcap", "3"], "--softcap"),
                          (["--sinks", "2"], "--sinks"), (["--bias", "keys"], "--bias"), (["--output-dtype", "f32"], "--output-dtype"), (["--keys-stationary"], "--keys-stationary"),
                          (["--masked-row", "-inf"], "--masked-row"), (["--sharding", "zigzag"], "--sharding"), (["--sharding", "striped"], "--causal"),
                          (["--documents", "0,8"], "--sharding striped"),
                          (["--documents", "0,7", "--sharding", "striped", "--ranks", "2"], "from 7 on")):
        bad_kernel("--like", "nkilib", *options, says=[says, "--like nkilib", "accepted"])
    bad_kernel("--like", "nkilib", "--documents", "0,8", "--sharding", "striped", "--batch", "2", "--query-heads", "2",
               says=["2 batch items", "2 kv heads"])

    # Problems that no kernel can be built for.
    bad_kernel("--query-heads", "3", "--kv-heads", "2", says=["3 query heads", "2 kv heads"])
    bad_kernel("--head-dim", "513", says=["head_dim 513", "512"])
    bad_kernel("--value-dim", "600", says=["value_dim 600", "512"])
    for value in ("1e9", "1e20", "1e-30"):
        bad_kernel("--scale", value, says=["--scale 1e", "accepted", "2^20"])
    for value in ("1e9", "1e20", "-5"):
        bad_kernel("--softcap", value, says=["--softcap -5" if value == "-5" else "--softcap 1e", "accepted", "2^20"])
    bad_kernel("--ranks", "1", "--groups", "2", says=["--groups 2", "--ranks 1", "--ranks 2 or more"])
    bad_kernel("--sinks", "", says=["--sinks", "accepted"])
    bad_kernel("--training", "--no-training", says=["--training", "--no-training"])
    bad_kernel("--keys-stationary", "--no-keys-stationary", says=["--keys-stationary", "--no-keys-stationary"])
    bad_kernel("--keys-per-rank", "64", "--tokens-per-rank", "64", says="--tokens-per-rank")
    bad("--cost-only", "--tokens-per-rank", "65536", "--query-heads", "64", "--kv-heads", "1", "--ranks", "1", says=["nki", "bytes"])
    bad("--simulate", *files, "--ranks", "5", says=["12 queries", "5 ranks", "equally many"])
    bad("--simulate", *save_operands(q[:, :, :3], k, v), "--ranks", "2", says=["k.npy", "2 heads", "divides"])
    files = save_operands(q, k, v)

    # Operands that are not finite in the element type of the kernel are refused before anything runs.
    operands = {"q": q, "k": k, "v": v, "dout": dout}
    for name in operands:
        for value, dtype, seen in ((np.nan, "f32", "nan"), (np.inf, "bf16", "inf"), (-np.inf, "bf16", "-inf"), (1e6, "f16", "inf as float16")):
            wrong = {other: array.copy() for other, array in operands.items()}
            wrong[name][0, 5, 1, 2] = value
            bad("--simulate", *save_operands(*wrong.values()), "--ranks", "2", "--dtype", dtype, "--emit", "new", "--out-dir", "results",
                says=[f"--{name}: ", seen, "finite"])
    np.save("nan_sinks.npy", np.full(4, np.nan))
    bad("--simulate", *save_operands(q, k, v), "--ranks", "2", "--sinks", "nan_sinks.npy", says=["--sinks: ", "nan", "finite"])

    for value in (np.nan, np.inf):
        np.save("bad_bias.npy", np.full((1, 1, 12, 12), value))
        bad("--simulate", *save_operands(q, k, v), "--ranks", "2", "--bias", "bad_bias.npy", says=["--bias: ", str(value), "-inf"])

    # Paths that cannot be written are refused before anything is computed.
    open("plain", "w").close()
    bad("--simulate", *files, "--ranks", "2", "--emit", "plain", says=["plain", "not a folder"])
    bad("--simulate", *files, "--ranks", "2", "--out-dir", "plain", says=["plain", "not a folder"])
    for option in ("--trace", "--listing"):
        bad("--cost-only", "--tokens-per-rank", "8", "--only", "fwd", option, "missing/file", says=["missing/file", "cannot be written"])
        bad("--cost-only", *files, "--ranks", "2", "--only", "bwd", option, "q.npy", says=["q.npy", "is an input"])
        bad_kernel("--only", "bwd", option, "new/README.md", says=["README.md", "differ"])
        bad_kernel(option, "", says=[option, "accepted"])
    bad("--cost-only", "--tokens-per-rank", "8", "--trace", "a.txt", "--listing", "a.txt", says=["a_fwd_stationary.txt", "differ"])
    os.makedirs("taken/ring_attention_fwd.py")
    bad("--emit", "taken", "--tokens-per-rank", "8", says=["ring_attention_fwd.py", "not a regular file"])

print(f"ok: {len(calls)} bad calls")
