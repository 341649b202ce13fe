"""annulus nki --simulate and --cost-only: kernels on simulated cores against the oracle, printed tables and files."""

import json
import os
import pathlib
import re
import shutil

import numpy as np

from support.arrays import ArrayCase, load, natural, same, save_all, save_operands, to_bfloat16
from support.command import main, quiet, run
from support.dense_attention import attend as dense
from support.dense_attention import relative_error

# All in float32, with sums in another order.
EXACT = 3e-6
random = np.random.default_rng(12)


def operands(batch, length, heads, kv_heads, dim, value_dim):
    shapes = ((heads, dim), (kv_heads, dim), (kv_heads, value_dim), (heads, value_dim))
    return [random.standard_normal((batch, length, *shape)).astype(np.float32) for shape in shapes]


RING = operands(1, 200, 3, 3, 16, 24)
OPERANDS = operands(2, 66, 4, 2, 8, 8)
SINKS = random.standard_normal((4, 2)).astype(np.float32)
BIASES = [random.standard_normal(extents).astype(np.float32)
          for extents in ((1, 4, 66, 66), (2, 1, 66, 66), (1, 1, 66, 66))]
for _bias in BIASES:
    _bias[random.random(_bias.shape) < 0.2] = -np.inf
# Options, their meaning for dense attention.
MEANINGS = [
    ("--scale -0.7 --ranks 2", {"scale": -0.7}),
    ("--softcap 2 --sharding zigzag --ranks 3", {"softcap": 2.0}),
    ("--window 5,2 --lnc 1 --ranks 2", {"window": (5, 2)}),
    ("--causal --window 9,-1 --sink-tokens 3 --ranks 2", {"causal": True, "window": (9, -1), "sink_tokens": 3}),
    ("--chunk 20 --ranks 3 --backward keys", {"chunk": 20}),
    ("--ranks 1 --target trn3", {}),
    ("--sinks sinks.npy --ranks 2 --tp-q --tp-k --groups 3", {"sinks": SINKS}),
    ("--bias bias0.npy --bias-gradient --causal --sharding striped --ranks 2", {"bias": BIASES[0], "causal": True}),
    ("--bias bias1.npy --bias-gradient --softcap 2 --sharding zigzag --ranks 3 --backward keys",
     {"bias": BIASES[1], "softcap": 2.0}),
    ("--bias bias2.npy --bias-gradient --sharding striped --ranks 2 --groups 2", {"bias": BIASES[2]}),
    ("--causal --query-offset -7 --ranks 2", {"causal": True, "query_offset": -7}),
]
SMALL = "--tokens-per-rank 40 --head-dim 16 --query-heads 2 --causal"
# Results of exactly 0, or with terms that all cancel: options, the results that cancel.
MASKED = "--causal --query-offset -100000"
CANCELLING = [
    (f"--ranks 4 --tokens-per-rank 130 --head-dim 32 {MASKED} --sinks 1", set()),
    (f"--ranks 2 --tokens-per-rank 40 --head-dim 16 {MASKED}", set()),
    ("--ranks 2 --tokens-per-rank 64 --head-dim 16 --chunk 20 --query-offset 1000 --sinks 2", set()),
    ("--ranks 2 --tokens-per-rank 64 --head-dim 16 --chunk 1", {"dq", "dk"}),
    ("--ranks 2 --tokens-per-rank 64 --head-dim 16 --window 0,0", {"dq", "dk"}),
    ("--ranks 2 --tokens-per-rank 24 --head-dim 16 --causal --window 0,3 --chunk 200", {"dq", "dk"}),
    ("--ranks 5 --tokens-per-rank 1 --head-dim 16 --documents 0,1,2,3,4 --seed 1", {"dq", "dk"}),
]


def errors_of(text):
    """{name: (largest relative error, distance, dense, accepted)} from the printed table."""
    number = r"\s+([-+.0-9a-z]+)"
    rows = re.findall(r"^  (out|lse|dq|dk|dv|dsinks|dbias)" + number * 4 + "(?:  of terms)?$", text, re.M)
    return {name: tuple(map(float, numbers)) for name, *numbers in rows}


class SimulatorCase(ArrayCase):
    def nki(self, action, *arguments):
        """A call that must succeed; returns its standard output."""
        done = run("nki", action, *arguments)
        self.assertTrue(quiet(done))
        return done.stdout

    def simulate(self, files, options):
        """Returns the standard output and the results."""
        text, results = self.nki("--simulate", *files, *options.split(), "--out-dir", "out"), load("out")
        shutil.rmtree("out")
        return text, results


class Results(SimulatorCase):
    RING = "--dtype f32 --causal --sharding striped --lnc 2"

    def test_ring_orders(self):
        files, expected = save_operands(*RING), dense(*RING, causal=True)
        text, found = self.simulate(files, self.RING)
        self.assertEqual(set(errors_of(text)), set(expected))
        self.assertEqual({array.dtype for array in found.values()}, {np.dtype("f4")})
        self.close(found, expected, EXACT)
        for seed in (1, 2, 7):
            with self.subTest(seed=seed):
                # The owners arrive in another order, and so do the terms of the sums.
                _, shuffled = self.simulate(files, f"{self.RING} --ring-order {seed}")
                self.close(shuffled, expected, EXACT)
        self.assertFalse(same(shuffled, found))

    def test_axis_orders(self):
        _, expected = self.simulate(save_operands(*RING), self.RING)
        for axes in ("bhsd", "bhds"):
            with self.subTest(axes):
                _, found = self.simulate(save_operands(*RING, axes=axes), self.RING)
                self.assertTrue(same(natural(found, axes), expected))

    def test_options(self):
        files = save_operands(*OPERANDS)
        save_all(sinks=SINKS, bias0=BIASES[0], bias1=BIASES[1], bias2=BIASES[2])
        for options, meaning in MEANINGS:
            with self.subTest(options):
                self.close(self.simulate(files, f"--dtype f32 {options}")[1], dense(*OPERANDS, **meaning), EXACT)

    def test_masked_rows(self):
        """Output and gradients are 0, and lse is what --masked-row selects."""
        for word, value in (("-inf", -np.inf), ("zero", 0)):
            with self.subTest(word):
                _, found = self.simulate(save_operands(*OPERANDS),
                                         f"--dtype f32 --ranks 2 --causal --query-offset -7 --masked-row {word}")
                self.assertTrue(np.all(found["lse"][:, :, :7] == value) and np.all(np.isfinite(found["lse"][:, :, 7:])))
                self.assertTrue(np.all(found["out"][:, :7] == 0) and np.all(found["dq"][:, :7] == 0))

    def test_documents_equal_document_ids(self):
        one = [x[:1] for x in OPERANDS]
        ids = np.broadcast_to(np.searchsorted([0, 10, 47], np.arange(66), side="right"), (1, 66))
        for sharding in ("contiguous", "striped", "zigzag"):
            with self.subTest(sharding):
                _, found = self.simulate(save_operands(*one),
                                         f"--dtype f32 --causal --ranks 2 --sharding {sharding} --documents 0,10,47")
                self.close(found, dense(*one, causal=True, segments=(ids, ids)), EXACT)

    def test_bfloat16_by_default(self):
        """Errors are within the printed bound, and as printed."""
        text, found = self.simulate(save_operands(*OPERANDS), "--causal --ranks 2")
        expected = dense(*map(to_bfloat16, OPERANDS), causal=True)
        for name, (largest, distance, naive, accepted) in errors_of(text).items():
            with self.subTest(name):
                self.assertLessEqual(distance, accepted)
                self.assertTrue(naive > 0 and largest > 0)
                if name == "lse":
                    self.assertLessEqual(np.abs(found[name] - expected[name]).max(), accepted)
                else:
                    self.assertTrue(1e-4 < distance < 2e-2, distance)
                    self.assertLessEqual(abs(relative_error(found[name], expected[name]) - distance), 0.02 * distance)

    def test_without_dout_the_backward_kernel_is_not_simulated(self):
        files = save_operands(*OPERANDS[:3])
        text, found = self.simulate(files, "--ranks 2")
        self.assertEqual((set(found), set(errors_of(text))), ({"out", "lse"}, {"out", "lse"}))
        self.assertIn("ring_attention_bwd: not simulated", text)
        self.assertEqual(set(errors_of(self.nki("--simulate", *files, "--ranks", "2", "--no-training"))), {"out"})

    def test_random_operands_depend_on_the_seed_alone(self):
        results = [self.simulate([], f"{SMALL} --seed {seed}")[1] for seed in (0, 1)]
        self.assertTrue(same(self.simulate([], SMALL)[1], results[0]))
        for name in ("out", "dk"):
            self.assertFalse(np.array_equal(results[0][name], results[1][name]))

    def test_a_backward_kernel_alone(self):
        """It takes output and lse from the reference."""
        text = self.nki("--simulate", *SMALL.split(), "--only", "bwd")
        self.assertEqual(set(errors_of(text)), {"dq", "dk", "dv"})
        self.assertNotIn("ring_attention_fwd", text)

    def test_results_that_are_0_or_whose_terms_cancel(self):
        """Errors are relative to the terms, and bounds are finite."""
        for options, cancel in CANCELLING:
            for dtype in ("bf16", "f32"):
                with self.subTest(options, dtype=dtype):
                    text, found = self.simulate([], f"{options} --dtype {dtype}")
                    self.assertEqual(set(re.findall(r"^  (\w+) .*  of terms$", text, re.M)), cancel)
                    errors = errors_of(text)
                    self.assertEqual(set(errors), set(found))
                    self.assertTrue(np.isfinite(list(errors.values())).all())
                    self.assertLess(max(accepted for *_, accepted in errors.values()), 0.03)
                    self.assertTrue(all(errors[name][1] <= 1e-6 for name in cancel))
                    if MASKED in options:
                        del errors["lse"]
                        self.assertEqual({(distance, naive) for _, distance, naive, _ in errors.values()}, {(0, 0)})
                        self.assertTrue(all(np.all(found[name] == 0) for name in errors))

    def test_bound_of_lse(self):
        """1e-5 for scores of usual size, the rounding of the scores if they are some hundreds."""
        for scale, least, most in (("0.25", 1e-5, 1e-5), ("25", 2e-5, 4e-4)):
            with self.subTest(scale=scale):
                text = self.nki("--simulate", *"--ranks 2 --tokens-per-rank 200 --head-dim 16 --only fwd "
                                               f"--no-keys-stationary --scale {scale}".split())
                _, distance, _, accepted = errors_of(text)["lse"]
                self.assertLessEqual(distance, accepted)
                self.assertTrue(least <= accepted <= most, accepted)

    def test_scores_beyond_float32_have_status_1_and_leave_no_kernel(self):
        """Whatever the error of dense attention is."""
        huge = np.full((1, 4, 1, 8), 1e30)
        files = save_operands(huge, huge, huge)
        done = run("nki", "--simulate", *files, *"--ranks 2 --emit bad --only fwd".split())
        self.assertEqual((done.returncode, done.stderr.count("\n"), os.path.exists("bad")), (1, 1, False))
        self.assertTrue(done.stderr.startswith("annulus: "))


class TablesAndFiles(SimulatorCase):
    def test_of_each_kernel(self):
        text = self.nki("--simulate", *SMALL.split(),
                        *"--emit kernels --trace trace.json --listing programs.txt".split())
        self.contains(os.listdir("kernels"), "README.md", "ring_attention_fwd.py", "ring_attention_bwd.py")
        self.contains(text, "tensor engine utilisation", "estimate")
        for kernel in ("fwd_stationary", "fwd", "bwd"):
            with self.subTest(kernel):
                self.assertEqual(f"ring_attention_{kernel}: 4 ranks simulated" in text, kernel != "fwd")
                self.assertIn(f"ring_attention_{kernel}: one rank of trn2, 2 cores", text)
                events = json.loads(pathlib.Path(f"trace_{kernel}.json").read_text())["traceEvents"]
                spans = [event for event in events if event["ph"] == "X"]
                self.assertEqual({event["pid"] for event in spans}, {0, 1})
                self.assertTrue(all(event["dur"] >= 0 for event in spans))
                self.assertTrue(any("matmul" in event["name"] for event in spans))
                self.assertRegex(pathlib.Path(f"programs_{kernel}.txt").read_text(),
                                 rf"\Aprogram ring_attention_{kernel}: trn2, 2 cores, 4 ranks")

    def test_one_kernel_has_a_trace_of_the_given_name(self):
        self.nki("--simulate", *SMALL.split(), *"--only fwd --no-keys-stationary --trace one.json".split())
        self.assertTrue(json.loads(pathlib.Path("one.json").read_text())["traceEvents"])

    def test_costs_of_a_problem_too_large_to_simulate(self):
        text = self.nki("--cost-only", *"--ranks 64 --tokens-per-rank 4096 --causal --sharding striped --only fwd "
                                        "--no-keys-stationary".split())
        self.assertRegex(text, r"built in [\d.]+ s, validated in [\d.]+ s, costed in [\d.]+ s; memory so far \d+ MiB")
        self.assertNotIn("simulated", text)
        self.assertEqual(errors_of(text), {})
        rows = re.findall(r"^~ (.{36}) +[\d.]+ +([\d.]+) %$", text, re.M)
        of_time = {name.strip(): float(share) for name, share in rows}
        self.assertLessEqual(of_time["DMA takes no time"], 100)
        self.assertGreater(of_time["DMA transposes at half their rate"], 100)
        self.assertGreater(of_time["no DMA transposes, TensorE does all"], 100)

    def test_useful_utilisation(self):
        """Causal attention of one rank and one tile: half of the pairs, and the diagonal, are visible, the rest is
        computed too."""
        for options, part in (("--causal", 129 / 256), ("", 1), ("--window 0,0", 1 / 128)):
            with self.subTest(options):
                text = self.nki("--cost-only", *"--ranks 1 --lnc 1 --tokens-per-rank 128 --tokens 128 --only fwd "
                                                f"--no-keys-stationary {options}".split())
                raw, useful = (float(re.search(name + r"\s+([\d.]+) %", text)[1])
                               for name in ("tensor engine utilisation", "useful utilisation"))
                self.assertLessEqual(abs(useful - raw * part), 0.05 * (1 + part))


main()
