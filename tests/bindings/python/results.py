"""Results of the Python module for every option and operand, on one rank and on rings, against dense attention."""

import unittest

import annulus
import numpy as np
from oracle import error_of, expected, named, random_arrays

BOUND = 1e-12
RANKS = 3

rng = np.random.default_rng(1)
DOCUMENTS = np.sort(rng.integers(0, 4, (2, 23)), axis=1)
OPERANDS = [
    {},
    {"bias": rng.standard_normal((2, 4, 23, 23))},
    {"bias": rng.standard_normal((1, 1, 23, 23))},
    {"mask": rng.random((1, 4, 23, 23)) < 0.7},
    {"mask": rng.integers(0, 2, (2, 1, 23, 23), np.int16)},
    {"query_documents": DOCUMENTS, "key_documents": DOCUMENTS.astype(np.uint8)},
    {"sinks": rng.standard_normal(4)},
    {"sinks": rng.standard_normal((4, 3))},
]
OPTIONS = [
    {"causal": True},
    {"window": (5, 2)},
    {"window": (None, 3)},
    {"window": (4, 0), "sink_tokens": 2, "causal": True},
    {"chunk": 7},
    {"softmax_scale": 0.0},
    {"softmax_scale": -1.5},
    {"logit_softcap": 0.8},
    {"dropout": 0.3, "seed": 2**40 + 5},
    {"query_offset": 3, "causal": True},
]
HOW = [
    {},
    {"sharding": "striped"},
    {"sharding": annulus.Striped(3)},
    {"sharding": "zigzag", "rotation": "keys", "checked": True},
    {"sharding": "zigzag", "rotation": "queries", "checked": False},
    {"sharding": annulus.ExplicitMap([[5, 3, 4], [], [i for i in range(23) if i not in (3, 4, 5)]])},
    {"sharding": annulus.ExplicitMap([range(12), range(12, 23), []], [[], range(10, 23), range(10)])},
    {"require_finite": True, "threads": 1},
    {"schedule": "two_levels"},
    {"schedule": "tiles", "ranks_per_group": RANKS, "sharding": "zigzag"},
    {"schedule": "all_gather"},
    {"schedule": "automatic"},
    {"schedule": "both_directions", "sharding": "zigzag"},
]


class Results(unittest.TestCase):
    def check(self, operands, options, arrays=None):
        q, k, v, dout = random_arrays() if arrays is None else arrays
        wanted = expected(q, k, v, dout, operands, options)
        if "bias" not in operands:
            wanted.pop("dbias", None)
        gradient = {"bias_gradient": "bias" in operands}

        attention = annulus.Attention(**options)
        forward = attention.forward(q, k, v, **operands)
        gradients = attention.backward(dout, forward, q, k, v, **gradient, **operands)
        found = named(forward.output, forward.lse, gradients)
        self.assertEqual(found.keys(), wanted.keys())
        self.assertLess(error_of(found, wanted), BOUND)

        for how in HOW:
            bound_to_queries = "bias" in operands or "mask" in operands
            if bound_to_queries and how.get("rotation") == "queries":
                continue
            if isinstance(how.get("sharding"), annulus.ExplicitMap) and (q.shape[1], k.shape[1]) != (23, 23):
                continue
            with self.subTest(how=how):
                output, lse = annulus.ring(RANKS, q, k, v, **operands, **options, **how)
                gradients = annulus.ring_gradients(RANKS, dout, q, k, v, **gradient, **operands, **options, **how)
                found = named(output, lse, gradients)
                self.assertEqual(found.keys(), wanted.keys())
                self.assertLess(error_of(found, wanted), BOUND)
        return wanted

    def test_operands(self):
        plain = self.check({}, {})
        for operands in OPERANDS[1:]:
            with self.subTest(operands=operands.keys()):
                self.assertGreater(error_of({"out": plain["out"]}, self.check(operands, {"causal": True})), 1e-3)

    def test_options(self):
        plain = self.check({}, {})
        for options in OPTIONS:
            with self.subTest(options=options):
                self.assertGreater(error_of({"out": plain["out"]}, self.check({}, options)), 1e-3)

    def test_all_operands_and_options_together(self):
        operands = {name: array for given in OPERANDS for name, array in given.items()}
        self.check(operands, {"causal": True, "window": (9, 0), "logit_softcap": 2.0, "dropout": 0.1, "seed": 7})

    def test_old_names(self):
        def results(**given):
            return annulus.ring(RANKS, *random_arrays()[:3], schedule="tiles", **given)[0].tobytes()

        renamed = results(ranks_per_group=RANKS, query_documents=DOCUMENTS, key_documents=DOCUMENTS)
        with self.assertWarnsRegex(DeprecationWarning, "group is deprecated: use ranks_per_group"):
            self.assertEqual(results(group=RANKS, query_segments=DOCUMENTS, key_segments=DOCUMENTS), renamed)
        with self.assertWarns(DeprecationWarning):
            old = annulus.plan(8, 64, heads=2, head_dim=4, schedule="tiles", group=4, segments=True)
        new = annulus.plan(8, 64, heads=2, head_dim=4, schedule="tiles", ranks_per_group=4, document_ids=True)
        self.assertEqual(old.bytes_sent, new.bytes_sent)

    def test_unequal_lengths(self):
        self.check({}, {"causal": True, "query_offset": 9}, random_arrays(queries=11, keys=20))

    def test_reproducible(self):
        arrays = [array.astype(np.float32) for array in random_arrays()]
        q, k, v, dout = arrays
        def bits(ranks, reproducible):
            options = {"causal": True, "sharding": annulus.Striped(4), "reproducible": reproducible, "reproducible_leaf": 4}
            found = named(*annulus.ring(ranks, q, k, v, **options), annulus.ring_gradients(ranks, dout, q, k, v, **options))
            return {name: array.tobytes() for name, array in found.items()}
        for ranks in (2, 3, 8):
            self.assertEqual(bits(ranks, True), bits(1, True))
        self.assertNotEqual(bits(3, False), bits(1, False))

    def test_joint_keys(self):
        q, k, v, dout = random_arrays()
        joint_keys, joint_values = rng.standard_normal((2, 5, 2, 6)), rng.standard_normal((2, 5, 2, 5))
        causal = np.concatenate([np.ones((23, 5), bool), np.tri(23, dtype=bool)], axis=1)
        wanted = expected(q, np.concatenate([joint_keys, k], 1), np.concatenate([joint_values, v], 1), dout,
                          {"mask": causal[None, None]}, {})
        wanted.update({name: wanted[gradient][:, :5] for name, gradient in (("d_joint_keys", "dk"), ("d_joint_values", "dv"))})
        wanted.update(dk=wanted["dk"][:, 5:], dv=wanted["dv"][:, 5:])
        given = {"joint_keys": joint_keys, "joint_values": joint_values, "causal": True}
        for how in ({}, {"sharding": "zigzag", "rotation": "queries"}, {"schedule": "both_directions"}):
            for ranks in (1, RANKS):
                with self.subTest(how=how, ranks=ranks):
                    found = named(*annulus.ring(ranks, q, k, v, **given, **how),
                                  annulus.ring_gradients(ranks, dout, q, k, v, **given, **how))
                    self.assertIn("d_joint_values", found)
                    self.assertLess(error_of(found, wanted), BOUND)
        with self.assertRaisesRegex(annulus.ShapeError, "joint_keys are given without joint_values"):
            annulus.attention(q, k, v, joint_keys=joint_keys)

    def test_block_mask(self):
        arrays = random_arrays()
        blocks = rng.random((5, 4)) < 0.6
        mask = blocks[np.arange(23) // 5][:, np.arange(23) // 6]
        wanted = expected(*arrays, {"mask": mask[None, None]}, {})
        q, k, v, dout = arrays
        for ranks in (1, RANKS):
            options = {"block_mask": annulus.BlockMask(5, 6, blocks), "sharding": "striped"}
            found = named(*annulus.ring(ranks, q, k, v, **options), annulus.ring_gradients(ranks, dout, q, k, v, **options))
            wanted.pop("dbias", None)
            self.assertLess(error_of(found, wanted), BOUND)
        with self.assertRaisesRegex(annulus.ShapeError, "1 axes; expected 2"):
            annulus.attention(q, k, v, block_mask=annulus.BlockMask(5, 6, [True]))

    def test_wire(self):
        arrays = [array.astype(np.float32) for array in random_arrays()]
        narrow = [array.astype(np.float16).astype(np.float32) for array in arrays]
        def bits(arrays, wire, **schedule):
            q, k, v, dout = arrays
            options = {"causal": True, "sharding": "zigzag", "wire": wire, **schedule}
            ranks = schedule.get("ranks_per_group", RANKS)
            found = named(*annulus.ring(ranks, q, k, v, **options), annulus.ring_gradients(ranks, dout, q, k, v, **options))
            return {name: array.tobytes() for name, array in found.items()}
        for schedule in ({}, {"schedule": "two_levels", "ranks_per_group": 2}, {"schedule": "tiles", "ranks_per_group": RANKS},
                         {"schedule": "all_gather"}, {"schedule": "double_ring", "ranks_per_group": RANKS}):
            with self.subTest(**schedule):
                self.assertEqual(bits(arrays, "half", **schedule), bits(narrow, "as_stored", **schedule))
                self.assertNotEqual(bits(arrays, "half", **schedule), bits(arrays, "as_stored", **schedule))

    def test_rates(self):
        def bytes_sent(**options):
            return annulus.plan(8, 1024, heads=8, head_dim=64, **options).bytes_sent
        ring, fewest = bytes_sent(), bytes_sent(schedule="automatic")
        self.assertLess(fewest, ring)
        # Without limits all schedules take the same time, and the first is taken.
        self.assertEqual(bytes_sent(schedule="automatic", rates=annulus.Rates()), ring)
        self.assertLess(bytes_sent(schedule="automatic", rates=annulus.Rates(near=annulus.Link(bandwidth=1e9))), ring)

    def test_plan_of_a_call(self):
        attention = annulus.Attention(causal=True)
        with self.assertRaisesRegex(annulus.Error, "after the first call"):
            attention.plan("forward")
        q, k, v, _ = random_arrays()
        attention.forward(q, k, v)
        plan = attention.plan("forward")
        self.assertEqual((plan.ranks, plan.steps, plan.rank(0).bytes_sent), (1, 1, 0))
        self.assertEqual(plan.step(0, 0).visible_pairs, 23 * 24 // 2)

    def test_plan(self):
        plan = annulus.plan(8, 131072, heads=32, kv_heads=8, head_dim=128, dtype="bfloat16", causal=True,
                            window=(4095, 0))
        self.assertEqual((plan.ranks, plan.steps, plan.rotation), (8, 2, "keys"))
        self.assertEqual(max(plan.rank(rank).bytes_sent for rank in range(8)), 4095 * 2 * 8 * 128 * 2)
        self.assertEqual(plan.bytes_sent, sum(plan.rank(rank).bytes_sent for rank in range(8)))
        backward = annulus.plan(8, 131072, heads=32, kv_heads=8, head_dim=128, dtype="bfloat16", pass_="backward")
        self.assertEqual(backward.rank(0).bytes_sent, 1472 << 20)
        tiles = annulus.plan(64, 131072, heads=32, head_dim=128, schedule="tiles", ranks_per_group=8)
        self.assertLess(tiles.bytes_sent, 0.3 * annulus.plan(64, 131072, heads=32, head_dim=128).bytes_sent)
        balanced = annulus.plan(4, 4096, heads=1, head_dim=64, causal=True, sharding="zigzag").imbalance
        self.assertLess(balanced, annulus.plan(4, 4096, heads=1, head_dim=64, causal=True).imbalance)

    def test_balanced_sharding(self):
        documents = [700, 0, 50, 250]
        sharding = annulus.balanced_sharding(documents, 4, causal=True)
        self.assertEqual(sorted(sum(sharding.queries, [])), list(range(1000)))
        self.assertEqual({len(rows) for rows in sharding.queries}, {250})
        keys = np.concatenate([np.arange(1, length + 1) for length in documents])
        work = [keys[rows].sum() for rows in sharding.queries]
        self.assertLess(max(work) * 4, 1.02 * sum(work))
        self.assertEqual(annulus.shard_lengths(sharding, 4, 1000), [250] * 4)
        self.assertRaises(annulus.ShapeError, annulus.balanced_sharding, [5, -1], 2)
        self.assertRaises(annulus.UnsupportedError, annulus.balanced_sharding, [5], 2, block=-1)
        self.assertRaises(annulus.ShapeError, annulus.balanced_sharding, [5], 0)

    def test_positions(self):
        for sharding in ("contiguous", "striped", "zigzag", annulus.Striped(4)):
            rows = [annulus.positions(sharding, rank, 3, 25) for rank in range(3)]
            self.assertEqual([len(row) for row in rows], annulus.shard_lengths(sharding, 3, 25))
            self.assertEqual(sorted(np.concatenate(rows)), list(range(25)))
        self.assertEqual(list(annulus.positions("zigzag", 0, 2, 8)), [0, 1, 6, 7])


if __name__ == "__main__":
    unittest.main()
