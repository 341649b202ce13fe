"""annulus nki --like nkilib: functions with nkilib's names, parameters, layouts and results, run on the numpy model."""

import inspect
import pathlib
import re
import sys

import numpy as np

from support.command import main, run
from support.dense_attention import attend as dense
from support.dense_attention import relative_error
from support.launchers import (ALL, EXACT, FolderCase, command_of, contents, cores, run_jax, run_native, run_torch,
                               simulate)
from support.nki_tests import function, nki_model

# Parameters with their defaults, from the vendor's API reference and nki-library.
FORWARD, BACKWARD = "ring_attention_spmd_fwd", "ring_attention_spmd_bwd"
PARAMETERS = {
    FORWARD: "q, k, v, replica_groups=None, num_workers=1, softmax_scale=None, use_causal_mask=False, "
             "striped_input=False, training=False, lse_dtype=float32, tp_q=False, tp_k=False, bound_min=None, "
             "bound_max=None",
    BACKWARD: "q_ref, k_ref, v_ref, o_ref, dy_ref, lse_ref, use_causal_mask=False, mixed_precision=True, "
              "softmax_scale=None, num_workers=1, lnc_size=1, replica_groups=None, striped_attention=False, "
              "bound_min=None, bound_max=None, segment_cu_seqlens=None",
}
STRIPED = "--causal --sharding striped"
# Launcher, ranks, ring order, options.
CASES = [
    (run_torch, 4, [2, 0, 3, 1],
     f"--ranks 4 --tokens-per-rank 40 --query-heads 2 --kv-heads 1 --head-dim 16 {STRIPED} --dtype f32"),
    (run_jax, 2, None, "--ranks 2 --tokens-per-rank 140 --query-heads 2 --head-dim 136 --value-dim 24 --causal --tp-q "
                       "--tp-k --lse-dtype f32 --scale -0.2"),
    (run_native, 2, [1, 0], "--ranks 2 --tokens-per-rank 40 --head-dim 16 --dtype f16 --nki-version 0.7"),
    (run_torch, 2, [1, 0],
     f"--ranks 2 --tokens-per-rank 140 --query-heads 2 --head-dim 16 {STRIPED} --documents 0,30,96 "
     "--target trn3 --dtype f32"),
    (run_jax, 2, None, "--ranks 2 --tokens-per-rank 130 --query-heads 2 --head-dim 16 --sharding striped "
                       "--documents 0,30,96 --run-time-documents --backward keys --dtype f32"),
]
# The problem of the calls below.
RANKS, ROWS, BATCH, HEADS, DIM = 2, 140, 2, 2, 16
LENGTH = RANKS * ROWS
WHOLE = [[(0, 30), (30, 96), (96, LENGTH)]] * BATCH
NARROW = [[(0, 30), (30, 96), (96, 200)], [(0, 20), (40, 96), (96, LENGTH)]]  # of each batch item, in the sequence
# Name, causal, documents are an argument, documents of each batch item.
BOUNDS = [("causal", True, True, NARROW), ("all", False, True, NARROW), ("narrowed", True, False, NARROW),
          ("narrowed_all", False, False, NARROW), ("built", True, False, WHOLE)]
random = np.random.default_rng(5)
Q, DY = (random.standard_normal((BATCH, LENGTH, HEADS, DIM)).astype(np.float32) for _ in range(2))
K, V = (random.standard_normal((BATCH, LENGTH, 1, DIM)).astype(np.float32) for _ in range(2))


def by_dim(x, rank):
    return np.ascontiguousarray(x[:, rank::RANKS].transpose(0, 2, 3, 1))


def by_token(x, rank):
    return np.ascontiguousarray(x[:, rank::RANKS].transpose(0, 2, 1, 3))


def tiles(lse):
    """[batch, heads, 128, columns] of [batch, heads, rows]."""
    columns = -(-lse.shape[2] // 128)
    padded = np.zeros((*lse.shape[:2], columns * 128), np.float32)
    padded[:, :, :lse.shape[2]] = lse
    return np.ascontiguousarray(padded.reshape(*lse.shape[:2], columns, 128).swapaxes(2, 3))


def ids_and_bounds(items):
    """Document ids [batch, length], and the first and last key of each row's document [2, batch, rows]."""
    ids, bounds = np.zeros((BATCH, LENGTH), int), np.zeros((2, BATCH, ROWS), np.float32)
    for item, documents in enumerate(items):
        for number, (begin, end) in enumerate(documents):
            ids[item, begin:end] = number + 1
            bounds[:, item, begin // RANKS:end // RANKS] = [[begin // RANKS], [end // RANKS]]
    return ids, bounds


def forward_calls(causal, bounds):
    minimum, maximum = (np.ascontiguousarray(side.repeat(HEADS, axis=0)[:, :, None]) for side in bounds)
    return [dict(q=by_dim(Q, r), k=by_dim(K, r), v=by_token(V, r), num_workers=RANKS, use_causal_mask=causal,
                 striped_input=True, training=True, bound_min=minimum, bound_max=maximum) for r in range(RANKS)]


def backward_calls(causal, forward, **documents):
    return [dict(q_ref=by_dim(Q, r), k_ref=by_dim(K, r), v_ref=by_dim(V, r), dy_ref=by_dim(DY, r),
                 o_ref=np.ascontiguousarray(forward[r][0].swapaxes(2, 3)), lse_ref=forward[r][1],
                 use_causal_mask=causal, num_workers=RANKS, lnc_size=2, striped_attention=True,
                 softmax_scale=1 / np.sqrt(DIM).item(), **documents)
            for r in range(RANKS)]


def regroup(folder, groups):
    path = pathlib.Path(folder, "problem.py")
    path.write_text(re.sub("REPLICA_GROUPS = .*", f"REPLICA_GROUPS = {groups}", path.read_text()))


class LikeCase(FolderCase):
    def like(self, folder, options):
        """Writes a folder and checks its kernels' text; returns the functions and the text of each one's module."""
        texts = self.kernels(folder, f"--like nkilib {options}")
        return {name: function(text, name) for name, text in texts.items()}, texts

    def bounded(self, name, causal, run_time):
        options = "--documents 0,30,96 --sharding striped" + " --run-time-documents" * run_time + " --causal" * causal
        return self.like(name, f"--ranks {RANKS} --tokens-per-rank {ROWS} --batch {BATCH} --query-heads {HEADS} "
                               f"--kv-heads 1 --head-dim {DIM} --dtype f32 {options}")


class Launched(LikeCase):
    def test_on_rings_in_any_order(self):
        for number, (launcher, ranks, order, options) in enumerate(CASES):
            with self.subTest(options):
                functions, _ = self.like(f"kernels{number}", options)
                for name, parameters in PARAMETERS.items():
                    written = re.sub("nl.", "", str(inspect.signature(functions[name].function)))
                    self.assertEqual(re.sub(r"<.*?>|\w+\.float32", "float32", written), f"({parameters})")
                self.errors(launcher(f"kernels{number}", ranks, order), ranks=ranks,
                            exact=options.endswith("--dtype f32"))

    def test_the_command_line_in_the_readme(self):
        self.like("documents", CASES[3][3])
        told = command_of("documents")
        self.contains(told, "--like", "nkilib")
        self.assertEqual(run(*told, "--emit", "again").returncode, 0)
        self.assertEqual(contents("again"), contents("documents"))

    def test_groups_at_equal_distances(self):
        """Whether an id is counted in the world or in the group; a ring of any order in each."""
        for sharding, travels in (("contiguous", "queries"), ("striped", "keys")):
            self.like(sharding, "--ranks 2 --groups 4 --tokens-per-rank 20 --head-dim 8 --causal "
                                f"--sharding {sharding} --backward {travels} --dtype f32")
            for stride in (1, 2, 4):
                regroup(sharding, tuple((first, first + stride)
                                        for begin in range(0, 8, 2 * stride) for first in range(begin, begin + stride)))
                for ids in ("position", "global"):
                    with self.subTest(sharding, stride=stride, ids=ids):
                        self.errors(run_torch(sharding, 8, [1, 0], group_ids=ids), exact=True)
            for groups in (((0, 1), (2, 4), (3, 5), (6, 7)), ((0, 3), (1, 4), (2, 5), (6, 7)),
                           ((1, 0), (3, 2), (5, 4), (7, 6)), ((2, 3), (0, 1), (4, 5), (6, 7))):
                with self.subTest(sharding, groups=groups):
                    regroup(sharding, groups)
                    self.fails(lambda: run_torch(sharding, 8), "replica_groups")

    def test_any_groups_without_a_mask(self):
        """The position of a rank does not matter then."""
        self.like("any_groups", "--ranks 2 --groups 2 --tokens-per-rank 20 --head-dim 8 --dtype f32 --lnc 1")
        with cores(1):
            for groups in (((0, 3), (1, 2)), ((0, 2), (1, 3))):
                with self.subTest(groups):
                    regroup("any_groups", groups)
                    self.errors(run_torch("any_groups", 4, group_ids="global"), exact=True)

    def test_one_rank_in_the_vendors_simulator(self):
        for number, options in enumerate(("--causal", f"{STRIPED} --documents 0,37", "--no-training --causal --lnc 1")):
            with self.subTest(options), cores(1 if "--lnc 1" in options else 2):
                self.like(f"one{number}", f"--ranks 1 --tokens-per-rank 132 --head-dim 8 --dtype f32 {options}")
                results = ALL[:1] if "--no-training" in options else ALL
                self.errors(simulate(f"one{number}"), results=results, exact=True)

    def test_a_ring_of_64_ranks(self):
        self.like("long_groups", "--ranks 64 --tokens-per-rank 16 --head-dim 16")


class Called(LikeCase):
    """The functions, called with bounds and documents."""

    def near(self, found, expected):
        self.assertLess(relative_error(found, expected), EXACT)

    def test_bounds_of_each_batch_item(self):
        """Queries that see nothing have output, lse and gradients 0. With documents that are known when the kernel is
        built, bounds may also narrow them."""
        for name, causal, run_time, items in BOUNDS:
            with self.subTest(name):
                ids, bounds = ids_and_bounds(items)
                expected = dense(Q, K, V, DY, causal=causal, segments=(ids, ids))
                unseen = np.isneginf(expected["lse"])
                self.assertEqual(unseen.any(), items is NARROW)
                expected["lse"][unseen] = 0
                functions, _ = self.bounded(name, causal, run_time)
                forward = nki_model.launch(functions[FORWARD], 2, forward_calls(causal, bounds))
                given = {} if run_time else {"segment_cu_seqlens": (0, 30, 96, LENGTH)}
                given |= {"bound_min": bounds[0], "bound_max": bounds[1]} if items is NARROW else {}
                backward = nki_model.launch(functions[BACKWARD], 2, backward_calls(causal, forward, **given))
                for rank in range(RANKS):
                    self.check(rank, expected, *forward[rank], backward[rank])

    def check(self, rank, expected, output, lse, gradients):
        self.near(output, by_token(expected["out"], rank))
        self.near(lse, tiles(expected["lse"][:, :, rank::RANKS]))
        rows = lse.swapaxes(2, 3).reshape(BATCH, HEADS, -1)[:, :, :ROWS]
        self.assertTrue(np.array_equal(lse, tiles(rows)), "padding is 0")
        for result, gradient in zip(("dq", "dk", "dv"), gradients):
            self.near(gradient, by_dim(expected[result], rank))

    def test_values_that_a_kernel_was_not_made_for(self):
        """Refused, by name; and the cores share the transposes: without any one of the barriers around the kernel the
        model finds a race."""
        functions, texts = self.bounded("built", causal=True, run_time=False)
        _, bounds = ids_and_bounds(WHOLE)
        given = forward_calls(True, bounds)
        forward = nki_model.launch(functions[FORWARD], 2, given)
        self.refuse_each(functions[FORWARD], given, [
            {"use_causal_mask": False}, {"num_workers": 1}, {"striped_input": False}, {"training": False},
            {"tp_q": True}, {"tp_k": True}, {"softmax_scale": 1.0}, {"bound_min": None},
            {"lse_dtype": sys.modules["nki.language"].bfloat16}])
        given = backward_calls(True, forward, segment_cu_seqlens=(0, 30, 96, LENGTH))
        self.refuse_each(functions[BACKWARD], given, [
            {"use_causal_mask": False}, {"mixed_precision": False}, {"num_workers": 4}, {"lnc_size": 1},
            {"striped_attention": False}, {"softmax_scale": 1.0}, {"segment_cu_seqlens": (0, 30, 98, LENGTH)},
            {"segment_cu_seqlens": None}, {"replica_groups": ((0, 1), (2, 3))}, {"replica_groups": ((0, 1, 2, 3),)},
            {"replica_groups": ((1, 0),)}, {"bound_min": bounds[0]}])
        for tensor in ("v_by_token", "o_by_token", "dy_by_token", "dq", "dk", "dv"):
            with self.subTest(tensor):
                barrier = f"    nisa.core_barrier(data={tensor}, cores=(0, 1))\n"
                self.assertIn(barrier, texts[BACKWARD])
                broken = function(texts[BACKWARD].replace(barrier, ""), BACKWARD)
                self.fails(lambda: nki_model.launch(broken, 2, given), "race")

    def refuse_each(self, called, given, changes):
        for changed in changes:
            with self.subTest(called.__name__, changed=changed):
                word = "documents" if "segment_cu_seqlens" in changed else next(iter(changed))
                self.fails(lambda: nki_model.launch(called, 2, [{**one, **changed} for one in given]), word)


main()
