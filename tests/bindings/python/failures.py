"""Errors of the Python module: their classes, their texts, and failures of a rank."""

import threading
import time
import unittest
from unittest import mock

import annulus
import numpy as np
from annulus import library
from oracle import random_arrays


class Refusals(unittest.TestCase):
    def setUp(self):
        self.q, self.k, self.v, self.dout = random_arrays()

    def refuse(self, kind, text, **given):
        with self.assertRaisesRegex(kind, text):
            annulus.attention(self.q, self.k, self.v, **given)

    def test_classes(self):
        self.assertTrue(issubclass(annulus.ShapeError, (annulus.Error, ValueError)))
        self.assertTrue(issubclass(annulus.CommunicationError, annulus.Error))

    def test_shapes(self):
        with self.assertRaisesRegex(annulus.ShapeError, "k has head_dim 3, q has 6; they must be equal"):
            annulus.attention(self.q, self.k[..., :3], self.v)
        with self.assertRaisesRegex(annulus.ShapeError, "q has 3 axes; expected 4"):
            annulus.attention(self.q[0], self.k, self.v)
        with self.assertRaisesRegex(annulus.ShapeError, "q has 5 axes"):
            annulus.attention(self.q[None], self.k, self.v)
        with self.assertRaisesRegex(annulus.ShapeError, "v has 2 axes; expected 4"):
            annulus.ring(2, self.q, self.k, self.v[0, :, 0])
        longer = np.concatenate([self.v, self.v], 1)
        with self.assertRaisesRegex(annulus.ShapeError, r"v has shape \(.*\); expected \d+ rows along axis 1, one for each key"):
            annulus.ring(2, self.q, self.k, longer)
        with self.assertRaisesRegex(annulus.ShapeError, r"query_documents has shape \(2,\); expected 23 rows along axis 1"):
            annulus.ring(2, self.q, self.k, self.v, query_documents=np.ones(2, int))
        with self.assertRaisesRegex(annulus.ShapeError, r"dout has shape .* expected 23 rows"):
            annulus.ring_gradients(2, np.concatenate([self.q, self.q], 1), self.q, self.k, self.v)
        self.refuse(annulus.ShapeError, "bias covers 9 keys", bias=np.zeros((1, 1, 23, 9)))
        self.refuse(annulus.ShapeError, "without key_documents", query_documents=np.ones((2, 23), int))
        self.refuse(annulus.ShapeError, "mask has 0 axes", mask=np.array(True))

    def test_options(self):
        self.refuse(annulus.UnsupportedError, "chunk is -1", chunk=-1)
        self.refuse(annulus.UnsupportedError, "window is 63; accepted: a pair", window=63)
        self.refuse(annulus.UnsupportedError, r"window is \(1.5, 0\); accepted: a pair .left, right. of whole", window=(1.5, 0))
        self.refuse(annulus.UnsupportedError, "chunk is 1.5; accepted: a whole number", chunk=1.5)
        self.refuse(annulus.UnsupportedError, "seed is 'x'; accepted: a whole number", seed="x")
        self.refuse(annulus.UnsupportedError, "sink_tokens is None; accepted: a whole number", sink_tokens=None)
        self.refuse(annulus.UnsupportedError, "dropout is '0.1'; accepted: a number", dropout="0.1")
        annulus.attention(self.q, self.k, self.v, chunk=np.int32(4), softmax_scale=np.float32(0.5), window=[np.int64(3), None])
        self.refuse(annulus.UnsupportedError, "reproducible leaf is 0", reproducible=True, reproducible_leaf=0)
        self.refuse(annulus.UnsupportedError, "dropout probability is 1", dropout=1.0)
        self.refuse(annulus.UnsupportedError, "seed is -1", seed=-1)
        self.refuse(annulus.UnsupportedError, "sharding is 'diagonal'; accepted: contiguous", sharding="diagonal")
        self.refuse(annulus.UnsupportedError, "block is 0", sharding=annulus.Striped(0))
        self.refuse(annulus.ShapeError, "the map has 2 ranks", sharding=annulus.ExplicitMap([[0], [1]]))
        self.refuse(annulus.UnsupportedError, "rotation is 'both'", rotation="both")
        self.refuse(annulus.UnsupportedError, "schedule is 'rows'; accepted: ring", schedule="rows")
        self.refuse(annulus.UnsupportedError, "groups of -1 ranks", schedule="tiles", ranks_per_group=-1)
        self.refuse(annulus.UnsupportedError, "wire is 'bf16'", wire="bf16")
        self.refuse(annulus.UnsupportedError, "threads is -1", threads=-1)
        self.refuse(annulus.UnsupportedError, "rates is of type int; accepted: annulus.Rates", rates=3)
        self.refuse(annulus.UnsupportedError, "block_mask is of type ndarray; accepted: annulus.BlockMask", block_mask=np.ones((2, 2)))
        self.refuse(TypeError, "unknown option or operand 'casual'; did you mean 'causal'. accepted: causal, window,.* sinks",
                    casual=True)
        self.refuse(TypeError, "unknown option or operand 'biass'; did you mean 'bias'", biass=np.zeros((1, 1, 23, 23)))
        with self.assertRaisesRegex(TypeError, "unknown option 'shardin'; did you mean 'sharding'"):
            annulus.Attention(shardin="zigzag")
        with self.assertRaisesRegex(TypeError, "unknown option 'xyz'; accepted: causal, window"):
            annulus.plan(2, 8, heads=1, head_dim=8, xyz=1)
        for ring in (annulus.ring, lambda *given, **options: annulus.ring_gradients(given[0], self.dout, *given[1:], **options)):
            with self.assertRaisesRegex(TypeError, "'sheduel'; did you mean 'schedule'"):
                ring(2, self.q, self.k, self.v, sheduel="tiles")
        self.refuse(annulus.UnsupportedError, "mask has elements of float64", mask=np.ones((1, 1, 23, 23)))
        self.q[0, 0, 0, 0] = np.nan
        self.refuse(annulus.Error, "has the value nan in batch 0, row 0", require_finite=True)

    def test_operands(self):
        attention = annulus.Attention()
        with self.assertRaisesRegex(TypeError, "unknown operand 'biass'; did you mean 'bias'. accepted: bias, mask"):
            attention.forward(self.q, self.k, self.v, biass=None)
        forward = attention.forward(self.q, self.k, self.v)
        with self.assertRaisesRegex(annulus.UnsupportedError, "no bias is given"):
            attention.backward(self.dout, forward, self.q, self.k, self.v, bias_gradient=True)
        with self.assertRaisesRegex(annulus.ShapeError, "dout has extents"):
            attention.backward(self.dout[:, :5], forward, self.q, self.k, self.v)

    def test_operands_of_the_forward_pass(self):
        bias, sinks = np.zeros((1, 1, 23, 23)), np.zeros(4)

        def without_bias_on_one_rank(ring):
            attention = annulus.Attention(ring)
            forward = attention.forward(self.q, self.k, self.v, bias=np.zeros((1, 1, 23, 46)))
            try:
                attention.backward(self.dout, forward, self.q, self.k, self.v,
                                   bias=None if ring.rank == 0 else np.zeros((1, 1, 23, 46)))
            except annulus.ShapeError as error:
                return str(error)

        self.assertEqual(annulus.run_ring(2, without_bias_on_one_rank),
                         ["rank 0: optional operands of the backward pass: none; of the forward pass: bias; pass the "
                          "same operands to both"] * 2)
        attention = annulus.Attention()
        forward = attention.forward(self.q, self.k, self.v, bias=bias)
        with self.assertRaisesRegex(annulus.ShapeError, "backward pass: bias, sink logits; of the forward pass: bias;"):
            attention.backward(self.dout, forward, self.q, self.k, self.v, bias=bias, sinks=sinks)
        unknown = annulus.Forward(forward.output, forward.lse, forward.lse_remainder)
        self.assertEqual(attention.backward(self.dout, unknown, self.q, self.k, self.v).dq.shape, self.q.shape)
        with self.assertRaisesRegex(annulus.UnsupportedError, "forward_given is 2; accepted: 0, or a result"):
            attention.backward(self.dout, unknown._replace(given=2), self.q, self.k, self.v)

    def test_plan(self):
        with self.assertRaisesRegex(annulus.ShapeError, "no sequence length"):
            annulus.plan(2, heads=1, head_dim=8)
        with self.assertRaisesRegex(annulus.UnsupportedError, "the plan has elements of int8"):
            annulus.plan(2, 8, heads=1, head_dim=8, dtype="int8")
        with self.assertRaisesRegex(annulus.ShapeError, "bias_batch is 3, batch 2; accepted: 1 or the batch"):
            annulus.plan(2, 8, batch=2, heads=4, head_dim=8, bias=(3, 1))
        with self.assertRaisesRegex(annulus.ShapeError, "bias_heads is 3, query_heads 4; accepted: 1 or query_heads"):
            annulus.plan(2, 8, batch=2, heads=4, head_dim=8, bias=(2, 3))
        with self.assertRaises(annulus.ShapeError):
            annulus.plan(2, 8, heads=1, head_dim=8).rank(2)


    def test_whole_numbers_out_of_range(self):
        for name, value in (("window", (2**64 + 3, 0)), ("sink_tokens", 2**64 + 1), ("chunk", 2**64 + 4),
                            ("query_offset", -2**63 - 1), ("ranks_per_group", 2**32), ("threads", 2**32 + 1),
                            ("reproducible_leaf", 2**64 + 8), ("sharding", annulus.Striped(2**64 + 1)),
                            ("block_mask", annulus.BlockMask(2**64 + 23, 23, [[1]])),
                            ("sharding", annulus.ExplicitMap([[2**64]]))):
            self.refuse(annulus.UnsupportedError, r" is -?\d+; accepted: -\d+ to \d+", **{name: value})
        out_of_range = self.assertRaisesRegex(annulus.UnsupportedError, r" is \d+; accepted: -\d+ to \d+")
        for call in (lambda: annulus.Attention().forward(self.q, self.k, self.v, call=2**64 + 1),
                     lambda: annulus.ring(2**32 + 1, self.q, self.k, self.v),
                     lambda: annulus.run_ring(2**32 + 1, lambda ring: None),
                     lambda: annulus.plan(2**32 + 2, 8, heads=1, head_dim=8),
                     lambda: annulus.plan(2, 2**64 + 8, heads=1, head_dim=8),
                     lambda: annulus.plan(2, 8, heads=2**64 + 1, head_dim=8),
                     lambda: annulus.plan(2, 8, heads=1, head_dim=8).rank(2**32),
                     lambda: annulus.plan(2, 8, heads=1, head_dim=8).step(0, 2**32),
                     lambda: annulus.shard_lengths("zigzag", 2, 2**64 + 8),
                     lambda: annulus.positions("zigzag", 2**32, 2, 8),
                     lambda: annulus.balanced_sharding([2**64 + 8], 2)):
            with out_of_range:
                call()
        with self.assertRaises(TypeError):
            annulus.positions(annulus.ExplicitMap([[0.5], [1]]), 0, 2, 2)

    def test_balanced_sharding(self):
        with self.assertRaisesRegex(annulus.UnsupportedError, "balanced map with a block mask"):
            annulus.balanced_sharding([8], 2, block_mask=annulus.BlockMask(8, 8, [[1]]))


class Rings(unittest.TestCase):
    def test_results_and_ranks(self):
        self.assertEqual(annulus.run_ring(3, lambda ring: (ring.rank, ring.size)), [(0, 3), (1, 3), (2, 3)])
        with annulus.Ring() as ring:
            self.assertEqual((ring.rank, ring.size), (0, 1))
        with self.assertRaisesRegex(annulus.UnsupportedError, "0 ranks"):
            annulus.run_ring(0, lambda ring: None)

    def test_exception_of_a_rank(self):
        q, k, v, _ = random_arrays()

        def fail(ring):
            if ring.rank == 1:
                raise LookupError("no batch")
            try:
                annulus.Attention(ring).forward(q, k, v)
            except annulus.CommunicationError as error:
                caught.append((ring.rank, error.neighbour, str(error)))
                raise

        caught = []
        with self.assertRaisesRegex(LookupError, "no batch"):
            annulus.run_ring(3, fail)
        self.assertEqual(sorted(rank for rank, _, _ in caught), [0, 2])
        for _, neighbour, text in caught:
            self.assertEqual(neighbour, 1)
            self.assertIn("LookupError: no batch", text)

    def test_timeout(self):
        q, k, v, _ = random_arrays()

        def late(ring):
            if ring.rank == 1:
                time.sleep(1)
            annulus.Attention(ring).forward(q, k, v)

        with self.assertRaisesRegex(annulus.CommunicationError, "rank 1"):
            annulus.run_ring(2, late, timeout=0.05)
        with self.assertRaisesRegex(annulus.UnsupportedError, "timeout is 0 ms"):
            annulus.run_ring(2, late, timeout=0)
        with self.assertRaisesRegex(annulus.UnsupportedError, "timeout is inf s"):
            annulus.run_ring(2, late, timeout=float("inf"))

    def test_refusal_of_one_rank_reaches_all(self):
        q, k, v, _ = random_arrays()

        def refused(ring):
            attention = annulus.Attention(ring)
            try:
                attention.forward(q, k.astype(np.float32) if ring.rank == 1 else k, v)
            except annulus.UnsupportedError as error:
                attention.forward(q, k, v)
                return str(error)

        texts = annulus.run_ring(3, refused)
        self.assertEqual(texts, ["rank 1: k has elements of float32; accepted: float64, the type of q"] * 3)

    def test_attention_is_freed_by_the_thread_of_its_ring(self):
        free, threads = library.c.annulus_attention_free, []

        def on_rank(ring):
            held = [annulus.Attention(ring)]
            collector = threading.Thread(target=held.clear)
            collector.start()
            collector.join()
            annulus.Attention(ring)
            return threading.get_ident()

        def recorded(handle):
            threads.append(threading.get_ident())
            free(handle)

        with mock.patch.object(library.c, "annulus_attention_free", recorded):
            ranks = annulus.run_ring(3, on_rank)
        self.assertEqual(sorted(threads), sorted(2 * ranks))

    def test_call_numbers(self):
        q, k, v, _ = random_arrays()
        with self.assertRaisesRegex(annulus.CommunicationError, "different call number"):
            annulus.run_ring(2, lambda ring: annulus.Attention(ring).forward(q, k, v, call=ring.rank))

    def test_objects_that_outlive_their_ring(self):
        q, k, v, _ = random_arrays()
        attentions = annulus.run_ring(2, lambda ring: annulus.Attention(ring))
        with self.assertRaisesRegex(annulus.Error, "has been freed"):
            attentions[0].forward(q, k, v)
        with self.assertRaisesRegex(annulus.Error, "the ring is closed"):
            annulus.Attention(attentions[1].ring)


if __name__ == "__main__":
    unittest.main()
