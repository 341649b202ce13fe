"""Bad calls of annulus nki end with status 2 and one line on stderr that says what is wrong, and leave no files."""

import os
import shlex

import numpy as np

from support.arrays import ArrayCase, save_all, save_operands
from support.command import main

random = np.random.default_rng(13)
Q, K = random.standard_normal((1, 12, 4, 8)), random.standard_normal((1, 12, 2, 8))
V, DOUT = random.standard_normal((1, 12, 2, 8)), random.standard_normal((1, 12, 4, 8))
OPERANDS = {"q": Q, "k": K, "v": V, "dout": DOUT}
FILES = "--simulate --q q.npy --k k.npy --v v.npy"
ON_2 = FILES + " --ranks 2"


def each(options, values, *words):
    """Rows of options x values; the words of a message are those given and the option."""
    return [(f"{option} {shlex.quote(value)}", option, *words) for option in options for value in values]


def whole_sequence(option, needed):
    """The length of the whole sequence, which was that of a rank: refused alone, and checked against the ranks."""
    return [(f"--cost-only {needed} {option} 64",
             f"{option} 64 meant the length of each rank, and will mean that of the whole sequence",
             f"accepted: {option}-per-rank 64, which is what it meant"),
            (f"--cost-only --ranks 4 {needed} {option}-per-rank 64 {option} 250",
             f"{option} 250", f"{option}-per-rank 64 on 4 ranks",
             f"accepted: {option} 256, the length of the whole sequence")]


# Tables: arguments, words of the message.
ACTIONS = [
    ("", "--emit", "--simulate", "--cost-only"),
    ("--tokens-per-rank 64", "--emit", "--simulate", "--cost-only"),
    ("--simulate", "--tokens-per-rank", "--q"),
    ("--simulate --cost-only --tokens-per-rank 64", "--cost-only"),
    (f"{FILES} --tokens-per-rank 3", "--tokens-per-rank"),
    (f"{FILES} --head-dim 8", "--head-dim"),
    (f"{FILES} --seed 1", "--seed"),
    ("--simulate --q q.npy", "--q"),
    ("--simulate --tokens-per-rank 8 --dout dout.npy", "--dout"),
    ("--simulate --tokens-per-rank 8 --axes bhsd", "--axes"),
    *whole_sequence("--tokens", ""),
    *whole_sequence("--keys", "--tokens-per-rank 64"),
    (f"{FILES} --backward queries", "--dout", "--only fwd"),
    (f"{FILES} --only bwd", "--dout", "--only fwd"),
    (f"{FILES} --dout dout.npy --only fwd", "--dout", "backward"),
    ("--cost-only --tokens-per-rank 8 --only bwd --keys-stationary", "--keys-stationary", "--only bwd",
     "no forward kernel"),
    ("--cost-only --tokens-per-rank 8 --nki-version 0.4", "--nki-version", "--emit"),
    ("--simulate --tokens-per-rank 8 --nki-version 0.4", "--nki-version", "--emit"),
    ("--cost-only --tokens-per-rank 64 --like nkilib", "--like", "--emit"),
    ("--cost-only --tokens-per-rank 65536 --query-heads 64 --kv-heads 1 --ranks 1", "nki", "bytes"),
    (f"{FILES} --ranks 5", "12 queries", "5 ranks", "equally many"),
    (f"{ON_2} --sinks 2", "--sinks", "file"),
    (f"{ON_2} --sinks missing.npy", "missing.npy", "does not exist"),
    (f"{ON_2} --sinks nan_sinks.npy", "--sinks: ", "nan", "finite"),
    (f"{ON_2} --bias heads,keys", "--bias names axes", "file"),
    (f"{ON_2} --bias missing.npy", "missing.npy", "does not exist"),
    (f"{ON_2} --bias dout.npy", "dout.npy", "queries"),
    (f"{ON_2} --bias bias.npy --bias-gradient", "--dout"),
    (f"{ON_2} --bias nan_bias.npy", "--bias: ", "nan", "-inf"),
    (f"{ON_2} --bias inf_bias.npy", "--bias: ", "inf", "-inf"),
    # Paths that cannot be written are refused before anything is computed.
    (f"{ON_2} --emit plain", "plain", "not a folder"),
    (f"{ON_2} --out-dir plain", "plain", "not a folder"),
    ("--emit taken --tokens-per-rank 8", "ring_attention_fwd.py", "not a regular file"),
    ("--cost-only --tokens-per-rank 8 --trace a.txt --listing a.txt", "a_fwd_stationary.txt", "differ"),
    *[row for option in ("--trace", "--listing") for row in (
        (f"--cost-only --tokens-per-rank 8 --only fwd {option} missing/file", "missing/file", "cannot be written"),
        (f"--cost-only --q q.npy --k k.npy --v v.npy --ranks 2 --only bwd {option} q.npy", "q.npy", "is an input"))],
]
# With --emit new --tokens-per-rank 64.
KERNELS = [
    *each(("--out-dir", "--seed", "--ring-order"), "1", "--simulate"),
    ("--only bwd --backward none", "--only bwd", "queries|keys"),
    ("--no-training --backward keys", "--no-training", "lse"),
    ("--no-training --only bwd", "--no-training", "lse"),
    ("--no-training --lse-dtype bf16", "--lse-dtype", "--no-training", "no lse"),
    ("--no-training --lse-dtype f32", "--lse-dtype", "--no-training", "no lse"),
    ("--no-training --masked-row zero", "--masked-row", "--no-training", "no lse"),
    ("--only fwd --backward keys", "--backward", "--only fwd", "no backward kernel"),
    ("--only fwd --backward queries", "--backward", "--only fwd", "no backward kernel"),
    ("--training --no-training", "--training", "--no-training"),
    ("--keys-stationary --no-keys-stationary", "--keys-stationary", "--no-keys-stationary"),
    ("--keys-per-rank 64 --tokens-per-rank 64", "--tokens-per-rank"),
    ("--backend nki", "--backend"),
    # Words and numbers.
    *each(("--dtype", "--output-dtype", "--lse-dtype"), ["f64"], "'f64'", "bfloat16|float16|float32"),
    *each(["--lnc"], ["f64"], "'f64'", "1|2"),
    *each(["--target"], ["f64"], "'f64'", "trn2|trn3"),
    *each(["--masked-row"], ["f64"], "'f64'", "-inf|zero"),
    *each(["--backward"], ["f64"], "'f64'", "none|queries|keys"),
    *each(["--only"], ["f64"], "'f64'", "fwd|bwd"),
    *each(["--sharding"], ["f64"], "'f64'", "contiguous|striped|zigzag"),
    *each(["--nki-version"], ["f64"], "'f64'", "0.3|0.4|0.5|0.6"),
    *each(("--ranks", "--groups", "--batch", "--query-heads", "--kv-heads", "--head-dim", "--value-dim",
           "--keys-per-rank"),
          ("0", "-1", "many", "1.5", "99999999999999999999"), "accepted: a whole number"),
    *each(["--documents"], ("5", "0,0", "0,9,4", "0,", "0,x", "", "-1,0", "0,1,"), "accepted"),
    ("--documents 0,256", "--documents", "256"),
    ("--documents 0,4 --query-offset 3", "--documents", "--query-offset"),
    ("--documents 0,4 --keys-per-rank 32", "--documents", "equally many"),
    ("--sinks -1", "--sinks", "0 to 1024"),
    ("--sinks sinks.npy", "--sinks", "--q"),
    ("--sinks ''", "--sinks", "accepted"),
    *each(["--bias"], ("bias.npy", "heads,heads", ",keys", "keys,", "pairs", "heads queries", ","),
          "--q", "heads, queries and keys"),
    ("--bias ''", "--bias", "accepted"),
    ("--bias-gradient", "--bias"),
    ("--bias-dtype bf16", "--bias"),
    ("--bias keys --bias-dtype f16", "'f16'", "float32|bfloat16"),
    ("--bias keys --bias-gradient --only fwd", "--bias-gradient", "--backward", "--only fwd"),
    ("--bias keys --keys-stationary", "stationary keys", "with a bias", "no bias"),
    ("--sink-tokens 2", "--sink-tokens", "--window"),
    ("--only bwd --trace new/README.md", "README.md", "differ"),
    ("--only bwd --listing new/README.md", "README.md", "differ"),
    *each(("--trace", "--listing"), [""], "accepted"),
    # Problems that no kernel can be built for.
    ("--query-heads 3 --kv-heads 2", "3 query heads", "2 kv heads"),
    ("--head-dim 513", "head_dim 513", "512"),
    ("--value-dim 600", "value_dim 600", "512"),
    *[(f"--scale {value}", "--scale 1e", "accepted", "2^20") for value in ("1e9", "1e20", "1e-30")],
    *[(f"--softcap {value}", f"--softcap {value[:2]}", "accepted", "2^20") for value in ("1e9", "1e20", "-5", "-1")],
    ("--ranks 1 --groups 2", "--groups 2", "--ranks 1", "--ranks 2 or more"),
    ("--like annulus", "'annulus'", "nkilib"),
]
# What nkilib has no parameter for, with --like nkilib.
LIKE = [
    ("--window 9,0", "--window"), ("--window 9,0 --sink-tokens 2", "--window"), ("--chunk 8", "--chunk"),
    ("--query-offset 3", "--query-offset"), ("--keys-per-rank 32", "--keys-per-rank"), ("--softcap 3", "--softcap"),
    ("--sinks 2", "--sinks"), ("--bias keys", "--bias"), ("--output-dtype f32", "--output-dtype"),
    ("--keys-stationary", "--keys-stationary"), ("--masked-row -inf", "--masked-row"),
    ("--sharding zigzag", "--sharding"),
    ("--sharding striped", "--causal"), ("--documents 0,8", "--sharding striped"),
    ("--documents 0,7 --sharding striped --ranks 2", "from 7 on"),
]
EMIT = ["nki", "--emit", "new", "--tokens-per-rank", "64"]


class Refusals(ArrayCase):
    def setUp(self):
        super().setUp()
        save_all(**OPERANDS, sinks=np.zeros(4), nan_sinks=np.full(4, np.nan), bias=np.zeros((1, 1, 12, 12)),
                 nan_bias=np.full((1, 1, 12, 12), np.nan), inf_bias=np.full((1, 1, 12, 12), np.inf))
        open("plain", "w").close()
        os.makedirs("taken/ring_attention_fwd.py")

    def test_actions_and_operands(self):
        self.refuses_all(ACTIONS, ["nki"])

    def test_kernels(self):
        self.refuses_all(KERNELS, EMIT)

    def test_like_nkilib(self):
        self.refuses_all([(*row, "--like nkilib", "accepted") for row in LIKE], [*EMIT, "--like", "nkilib"])
        self.refuses([*EMIT, *"--like nkilib --documents 0,8 --sharding striped --batch 2 --query-heads 2".split()],
                     "2 batch items", "2 kv heads")

    def test_heads_of_files(self):
        save_all(q=Q[:, :, :3])
        self.refuses(["nki", *ON_2.split()], "k.npy", "2 heads", "divides")

    def test_operands_that_are_not_finite_in_the_type_of_the_kernel(self):
        """Refused before anything runs."""
        for name, array in OPERANDS.items():
            for value, dtype, seen in ((np.nan, "f32", "nan"), (np.inf, "bf16", "inf"), (-np.inf, "bf16", "-inf"),
                                       (1e6, "f16", "inf as float16")):
                with self.subTest(name, value=value):
                    wrong = array.copy()
                    wrong[0, 5, 1, 2] = value
                    files = save_operands(**{**OPERANDS, name: wrong})
                    self.refuses(["nki", "--simulate", *files, "--ranks", "2", "--dtype", dtype, "--emit", "new",
                                  "--out-dir", "results"], f"--{name}: ", seen, "finite")


main()
