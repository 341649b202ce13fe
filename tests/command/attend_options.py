"""Every option of attend: the results agree with the definition, and each option changes them."""

import itertools

import numpy as np

from support.arrays import AXES, ArrayCase, natural, same, save_all, save_operands
from support.command import main
from support.dense_attention import attend as dense

DOUBLE = 1e-12  # relative, against the dense computation
random = np.random.default_rng(7)
normal = random.standard_normal

BATCH, QUERIES, KEYS, HEADS, KV_HEADS, DIM, VALUE_DIM, JOINT = 2, 21, 26, 6, 2, 8, 5, 4
Q, K = normal((BATCH, QUERIES, HEADS, DIM)), normal((BATCH, KEYS, KV_HEADS, DIM))
V, DOUT = normal((BATCH, KEYS, KV_HEADS, VALUE_DIM)), normal((BATCH, QUERIES, HEADS, VALUE_DIM))
DOCUMENTS = (random.integers(0, 4, (BATCH, QUERIES)), random.integers(-1, 4, (BATCH, KEYS)))
ARRAYS = {
    "bias": normal((BATCH, HEADS, QUERIES, KEYS)),
    "shared_bias": normal((1, 1, QUERIES, KEYS)),
    "mask": random.random((BATCH, HEADS, QUERIES, KEYS)) < 0.6,
    "shared_mask": random.random((1, HEADS, QUERIES, KEYS)) < 0.6,
    "sinks": normal(HEADS),
    "two_sinks": normal((HEADS, 2)),
}
JOINT_ARRAYS = {"joint_k": normal((BATCH, JOINT, KV_HEADS, DIM)),
                "joint_v": normal((BATCH, JOINT, KV_HEADS, VALUE_DIM))}
OF_DOCUMENTS = "--q-segments q_ids.npy --kv-segments kv_ids.npy"
# Options that change what is computed, and their meaning for dense attention.
MEANINGS = [
    ("", {}),
    ("--causal", {"causal": True}),
    ("--window 4,3", {"window": (4, 3)}),
    ("--window -1,3", {"window": (-1, 3)}),
    ("--window 4,-7", {"window": (4, -7)}),
    ("--causal --window 3,0", {"causal": True, "window": (3, 0)}),
    ("--window 2,2 --sink-tokens 3", {"window": (2, 2), "sink_tokens": 3}),
    ("--chunk 8", {"chunk": 8}),
    ("--causal --query-offset 5", {"causal": True, "query_offset": 5}),
    ("--causal --query-offset -4", {"causal": True, "query_offset": -4}),
    ("--scale 0.7", {"scale": 0.7}),
    ("--scale -0.5", {"scale": -0.5}),
    ("--scale 0", {"scale": 0.0}),
    ("--softcap 0.8", {"softcap": 0.8}),
    ("--bias bias.npy", {"bias": ARRAYS["bias"]}),
    ("--bias shared_bias.npy --bias-gradient", {"bias": ARRAYS["shared_bias"]}),
    ("--bias bias.npy --bias-gradient", {"bias": ARRAYS["bias"]}),
    ("--mask mask.npy", {"mask": ARRAYS["mask"]}),
    ("--mask shared_mask.npy", {"mask": ARRAYS["shared_mask"]}),
    (OF_DOCUMENTS, {"segments": DOCUMENTS}),
    ("--sinks sinks.npy", {"sinks": ARRAYS["sinks"]}),
    ("--sinks two_sinks.npy", {"sinks": ARRAYS["two_sinks"]}),
    ("--dropout 0.3 --seed 11", {"dropout": (0.3, 11)}),
    (f"--dropout 0.3 --seed {2**64 - 1}", {"dropout": (0.3, 2**64 - 1)}),
    ("--dropout 0.3 --seed 11 --query-offset 9", {"dropout": (0.3, 11), "query_offset": 9}),
]
EVERYTHING = ("--causal --window 9,0 --sink-tokens 2 --query-offset 5 --scale 0.6 --softcap 2 --bias bias.npy "
              f"--bias-gradient --mask shared_mask.npy {OF_DOCUMENTS} --sinks sinks.npy --dropout 0.2 --seed 3")
MEANING_OF_EVERYTHING = {
    "causal": True, "window": (9, 0), "sink_tokens": 2, "query_offset": 5, "scale": 0.6, "softcap": 2.0,
    "bias": ARRAYS["bias"], "mask": ARRAYS["shared_mask"], "segments": DOCUMENTS,
    "sinks": ARRAYS["sinks"], "dropout": (0.2, 3)}
SHARDINGS = ("contiguous", "striped", "zigzag", "block-striped --block 3")
GROUPED = ("two-levels", "tiles", "double-ring")
CAUSAL_WITH_JOINT = "--joint-k joint_k.npy --joint-v joint_v.npy --causal --query-offset 0 --verify"


class OptionsCase(ArrayCase):
    def setUp(self):
        super().setUp()
        self.files = save_operands(Q, K, V, DOUT)
        save_all(**ARRAYS, **JOINT_ARRAYS, q_ids=DOCUMENTS[0], kv_ids=DOCUMENTS[1].astype(np.int16))

    def found(self, options):
        return self.attend(*self.files, *options.split())

    def check(self, options, expected):
        """Checks the command with these options against results of dense attention; returns the results."""
        found = self.found(options + " --verify")
        self.assertEqual({array.dtype for array in found.values()}, {np.dtype("f8")})
        written = set(expected) - ({"dbias"} if "--bias-gradient" not in options else set())
        self.close(found, {name: expected[name] for name in written}, DOUBLE)
        return found


class Options(OptionsCase):
    def test_each_option_changes_the_results_as_it_says(self):
        seen = []
        for options, meaning in MEANINGS:
            with self.subTest(options):
                found = self.check(options, dense(Q, K, V, DOUT, **meaning))
                if "--bias-gradient" not in options:
                    self.assertFalse(any(same(found, other) for other in seen))
                seen.append({name: found[name] for name in ("out", "lse", "dq", "dk", "dv")})

    def test_all_options_together_on_every_sharding_and_schedule(self):
        expected = dense(Q, K, V, DOUT, **MEANING_OF_EVERYTHING)
        schedules = ("ring", "both-directions", "two-levels", "tiles", "all-gather", "auto")
        for sharding, ranks, schedule in itertools.product(SHARDINGS, (1, 3, 30), schedules):
            if ranks == 3 or schedule in ("ring", "both-directions"):
                options = f"--sharding {sharding} --ranks {ranks} --schedule {schedule}"
                with self.subTest(options):
                    self.check(f"{EVERYTHING} {options}", expected)

    def test_rotations_on_every_sharding(self):
        expected = dense(Q, K, V, DOUT, causal=True)
        for sharding, ranks, rotation in itertools.product(SHARDINGS, (1, 3, 30), ("auto", "keys", "queries")):
            options = f"--causal --rotation {rotation} --sharding {sharding} --ranks {ranks}"
            with self.subTest(options):
                self.check(options, expected)

    def test_defaults(self):
        self.check("--backend cpu --threads 0 --comm sim", dense(Q, K, V, DOUT))

    def test_sharding_and_rotation_change_the_last_bits(self):
        choices = ("keys", "queries", "keys --sharding zigzag", "keys --sharding striped")
        results = [self.found(f"--dtype f32 --ranks 4 --rotation {choice}") for choice in choices]
        self.assertFalse(any(same(a, b) for a, b in itertools.combinations(results, 2)))
        self.assertTrue(same(results[0], self.found("--dtype f32 --ranks 4 --rotation keys")))

    def test_reproducible_bits_for_any_number_of_ranks(self):
        ring = "--reproducible --reproducible-leaf 4 --sharding block-striped --block 4"
        for options in ("--causal --dtype f32", "--sinks two_sinks.npy --bias bias.npy --bias-gradient"):
            alone = self.found(f"{options} {ring} --ranks 1 --verify")
            self.assertEqual({"dbias", "dsinks"} <= set(alone), "--bias" in options)
            for ranks in (2, 3, 5, 8):
                with self.subTest(options, ranks=ranks):
                    self.assertTrue(same(self.found(f"{options} {ring} --ranks {ranks}"), alone))
        free = [self.found(f"--causal --dtype f32 --ranks {ranks}") for ranks in (1, 3)]
        self.assertFalse(np.array_equal(free[0]["dk"], free[1]["dk"]))

    def test_wire_has_the_bits_of_operands_rounded_beforehand(self):
        rounded = []
        for name, array in {"q": Q, "k": K, "v": V, "dout": DOUT}.items():
            np.save(f"rounded_{name}.npy", array.astype(np.float32).astype(np.float16))
            rounded += ["--" + name, f"rounded_{name}.npy"]
        for schedule in ("ring", "both-directions", "two-levels", "tiles", "all-gather", "double-ring"):
            with self.subTest(schedule):
                options = f"--causal --query-offset 0 --dtype f32 --ranks 4 --schedule {schedule}"
                options += " --schedule-group 2 --rotation keys" if schedule in GROUPED else ""
                found = self.found(f"{options} --wire f16 --verify")
                self.assertTrue(same(found, self.attend(*rounded, *options.split())))
                self.assertFalse(same(found, self.found(options)))

    def test_forward_only(self):
        found = self.attend(*save_operands(Q, K, V), "--causal")
        self.close(found, dense(Q, K, V, causal=True), DOUBLE)


class JointKeys(OptionsCase):
    """Keys that all ranks hold: as if each query saw them before the others, which a mask of all keys says."""

    def setUp(self):
        super().setUp()
        seen = np.concatenate([np.ones((QUERIES, JOINT), bool), np.tri(QUERIES, KEYS, dtype=bool)], axis=1)[None, None]
        k, v = (np.concatenate([JOINT_ARRAYS["joint_" + name], array], axis=1) for name, array in (("k", K), ("v", V)))
        self.expected = dense(Q, k, v, DOUT, mask=seen)
        for name in "kv":
            gradient = self.expected["d" + name]
            self.expected["d_joint_" + name], self.expected["d" + name] = np.split(gradient, [JOINT], axis=1)

    def test_on_rings(self):
        for options in ("--ranks 1", "--ranks 3 --rotation queries", "--schedule both-directions"):
            with self.subTest(options):
                self.close(self.found(f"{CAUSAL_WITH_JOINT} {options}"), self.expected, DOUBLE)

    def test_gradients_in_the_order_of_axes(self):
        for axes in ("bhsd", "bhds"):
            with self.subTest(axes):
                files = save_operands(Q, K, V, DOUT, axes=axes)
                save_all(**{name: array.transpose(AXES[axes]) for name, array in JOINT_ARRAYS.items()})
                found = self.attend(*files, *CAUSAL_WITH_JOINT.split())
                self.close(natural(found, axes), self.expected, DOUBLE)

    def test_with_other_operands(self):
        for dtype in ("f32", "bf16"):
            with self.subTest(dtype):
                self.found(f"--joint-k joint_k.npy --joint-v joint_v.npy --dtype {dtype} {OF_DOCUMENTS} --verify "
                           "--bias bias.npy --bias-gradient --sinks two_sinks.npy --softcap 2")


main()
