"""annulus nki --simulate over shapes, masks and machines: every kernel's errors are within the accepted ones.

The rings are shuffled, and of a pair of cores either runs first.
"""

from support.command import Case, main, quiet, run

CASES = [
    # ranks 1 to 8, both kinds of logical cores
    "--ranks 1 --tokens-per-rank 200 --causal --lnc 1",
    "--ranks 1 --tokens-per-rank 1 --head-dim 40",
    "--ranks 2 --tokens-per-rank 130 --query-heads 3 --causal --sharding striped --lnc 2",
    "--ranks 3 --tokens-per-rank 129 --query-heads 2 --causal --sharding zigzag --lnc 1",
    "--ranks 5 --tokens-per-rank 96 --causal --sharding striped",
    "--ranks 6 --tokens-per-rank 64 --causal --sharding zigzag --query-heads 2",
    "--ranks 7 --tokens-per-rank 65 --window 100,0 --lnc 1",
    "--ranks 8 --tokens-per-rank 40 --causal --sharding striped --backward keys",
    # head_dim 40 to 512
    "--ranks 2 --tokens-per-rank 150 --head-dim 40 --causal",
    "--ranks 2 --tokens-per-rank 128 --head-dim 96 --value-dim 160 --causal --sharding striped",
    "--ranks 2 --tokens-per-rank 128 --head-dim 256 --causal --sharding zigzag",
    "--ranks 2 --tokens-per-rank 100 --head-dim 512 --lnc 1",
    # groups of 3 and 7 query heads
    "--ranks 2 --tokens-per-rank 140 --query-heads 6 --kv-heads 2 --head-dim 64 --causal --sharding striped",
    "--ranks 3 --tokens-per-rank 70 --query-heads 7 --kv-heads 1 --head-dim 40 --causal --backward keys",
    # masked rows, scales
    "--ranks 2 --tokens-per-rank 150 --causal --query-offset -70 --dead-row zero",
    "--ranks 2 --tokens-per-rank 150 --causal --query-offset -170 --lnc 1",
    "--ranks 2 --tokens-per-rank 90 --scale 0 --causal",
    "--ranks 2 --tokens-per-rank 90 --scale -0.4 --causal --sharding striped --dtype f16",
    # masks, soft cap, sink logits, documents
    "--ranks 4 --tokens-per-rank 90 --window 40,30 --sharding zigzag",
    "--ranks 4 --tokens-per-rank 64 --causal --window 20,-1 --sink-tokens 5",
    "--ranks 3 --tokens-per-rank 100 --chunk 77 --causal",
    "--ranks 4 --tokens-per-rank 64 --documents 0,3,130,131,250 --causal --sharding striped",
    "--ranks 2 --tokens-per-rank 140 --documents 0,200 --backward keys",
    "--ranks 2 --tokens-per-rank 128 --softcap 4 --sinks 3 --causal --sharding striped --query-heads 2",
    # a bias
    "--ranks 2 --tokens-per-rank 130 --query-heads 2 --bias heads,queries,keys --bias-gradient --causal "
    "--sharding striped",
    "--ranks 3 --tokens-per-rank 70 --bias queries --bias-gradient --backward keys --dtype f16 --lnc 1",
    "--ranks 2 --tokens-per-rank 128 --batch 2 --query-heads 4 --kv-heads 2 --bias heads,keys --bias-dtype bf16 "
    "--documents 0,100 --softcap 4",
    "--ranks 2 --tokens-per-rank 130 --groups 2 --bias keys,queries --bias-dtype bf16 --bias-gradient "
    "--sharding zigzag --query-heads 3",
    "--ranks 2 --tokens-per-rank 128 --query-heads 2 --head-dim 40 --bias heads,queries,keys --bias-dtype bf16 "
    "--seed 2 --causal",
    "--ranks 1 --tokens-per-rank 1 --bias keys --bias-dtype bf16",
    "--ranks 3 --tokens-per-rank 1 --query-heads 3 --backward keys --only bwd",
    # trn3, layouts, rings side by side
    "--ranks 3 --tokens-per-rank 130 --target trn3 --causal --sharding striped --query-heads 3",
    "--ranks 2 --tokens-per-rank 130 --target trn3 --tp-q --tp-k --window 64,0 --dtype f32",
    "--ranks 2 --tokens-per-rank 128 --groups 3 --causal --sharding striped",
    "--ranks 2 --tokens-per-rank 130 --keys-per-rank 300 --batch 2",
]

# Forward kernels with stationary keys, with and without rows beyond their range.
STATIONARY = [
    "--ranks 1 --tokens-per-rank 1",
    "--ranks 1 --tokens-per-rank 333 --causal --query-heads 3 --kv-heads 3",
    "--ranks 2 --tokens-per-rank 256 --causal --sharding striped --query-heads 2",
    "--ranks 3 --tokens-per-rank 384 --causal --query-heads 3 --head-dim 40",
    "--ranks 4 --tokens-per-rank 300 --causal --sharding striped --query-heads 3 --kv-heads 1 --lnc 1",
    "--ranks 5 --tokens-per-rank 129 --sharding striped --query-heads 7 --kv-heads 1",
    "--ranks 2 --tokens-per-rank 512 --causal --sharding zigzag --query-heads 2",
    "--ranks 8 --tokens-per-rank 128 --causal --head-dim 256 --value-dim 72",
    "--ranks 2 --tokens-per-rank 256 --window 50,20 --head-dim 160 --tp-q --tp-k",
    "--ranks 2 --tokens-per-rank 256 --sinks 2 --causal --scale -0.3",
    "--ranks 2 --tokens-per-rank 200 --scale 0 --target trn3",
    "--ranks 2 --tokens-per-rank 128 --keys-per-rank 700 --batch 2 --head-dim 512 --value-dim 500 --groups 2",
    "--ranks 4 --tokens-per-rank 130 --documents 0,3,130,131,250 --causal --sharding striped --softcap 4",
    "--ranks 2 --tokens-per-rank 256 --documents 0,100,400 --sharding zigzag --query-heads 4 --kv-heads 2 "
    "--run-time-documents",
    "--ranks 3 --tokens-per-rank 200 --chunk 77 --causal --lnc 1",
]
BEYOND = [
    "--ranks 2 --tokens-per-rank 200 --scale 6 --causal --query-heads 2",
    "--ranks 2 --tokens-per-rank 150 --causal --query-offset -70",
]


class Sweep(Case):
    def simulate(self, case, seed, *more):
        done = run("nki", "--simulate", *case.split(), "--ring-order", seed, *more)
        self.assertTrue(quiet(done))
        return done.stdout

    def test_errors(self):
        for seed, case in enumerate(CASES):
            with self.subTest(case):
                text = self.simulate(case, seed)
                # The other forward kernel; the backward kernel would be the same again.
                if "ring_attention_fwd_stationary" in text:
                    self.simulate(case.replace("--backward keys", ""), seed, "--no-keys-stationary", "--only", "fwd")

    def test_stationary_keys(self):
        for seed, case in enumerate(STATIONARY + BEYOND):
            with self.subTest(case):
                text = self.simulate(case, seed, "--keys-stationary", "--only", "fwd")
                self.assertEqual("run again" in text, case in BEYOND)


main()
