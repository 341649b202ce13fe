"""Input and output files of attend: element types, memory orders, axis orders, and NumPy's storage formats."""

import os
import pathlib
import shutil

import numpy as np

from support.arrays import AXES, ArrayCase, bfloat16_bits, natural, save_all, save_operands, to_bfloat16
from support.command import main, run
from support.dense_attention import attend as dense
from support.dense_attention import relative_error

random = np.random.default_rng(8)
Q, K = random.standard_normal((2, 13, 4, 6)), random.standard_normal((2, 17, 2, 6))
V, DOUT = random.standard_normal((2, 17, 2, 3)), random.standard_normal((2, 13, 4, 3))
OPERANDS = (Q, K, V, DOUT)


ROUNDED = {
    "f64": lambda x: np.asarray(x, np.float64),
    "f32": lambda x: np.asarray(x, np.float32).astype(np.float64),
    "f16": lambda x: np.asarray(x, np.float32).astype(np.float16).astype(np.float64),
    "bf16": to_bfloat16,
}
EXACT = {"f64": 1e-12, "f32": 2e-6}
# Element type of the files, --dtype, type of the results' values.
TYPES = [("f8", None, "f64"), ("f4", None, "f32"), ("f2", None, "f16"), ("f8", "f32", "f32"), ("f8", "f16", "f16"),
         ("f8", "bf16", "bf16"), ("f4", "bf16", "bf16"), (">f8", None, "f64"), (">f4", "f32", "f32")]


class Files(ArrayCase):
    def check(self, found, dtype, axes="bshd"):
        """Checks the results of causal attention over the operands, rounded to dtype."""
        rounded = ROUNDED[dtype]
        inputs = [rounded(x) for x in OPERANDS]
        exact, naive = dense(*inputs, causal=True), dense(*inputs, causal=True, rounded=rounded)
        self.assertTrue(all(array.flags.c_contiguous for array in found.values()))
        self.assertEqual({array.dtype for array in found.values()}, {np.dtype("f8" if dtype == "f64" else "f4")})
        found = natural(found, axes)
        self.assertEqual(set(found), set(exact))
        for name, expected in exact.items():
            # Narrow types: at most twice the error of dense attention that rounds its results alike.
            bound = EXACT.get(dtype, EXACT["f32"] + 2 * relative_error(naive[name], expected))
            self.assertLessEqual(relative_error(found[name], expected), bound, name)

    def test_element_types_axis_orders_and_memory_orders(self):
        for stored, chosen, dtype in TYPES:
            for axes in AXES:
                for order in "CF":
                    with self.subTest(stored=stored, chosen=chosen, axes=axes, order=order):
                        files = save_operands(*(x.astype(stored) for x in OPERANDS), axes=axes, order=order)
                        choice = ["--dtype", chosen] if chosen else []
                        found = self.attend(*files, "--causal", *choice, "--sharding", "zigzag", "--ranks", "3")
                        self.check(found, dtype, axes)

    def test_f4_becomes_f64_without_another_rounding(self):
        found = self.attend(*save_operands(*(x.astype("f4") for x in OPERANDS)), "--causal", "--dtype", "f64")
        self.close(found, dense(*(ROUNDED["f32"](x) for x in OPERANDS), causal=True), EXACT["f64"])

    def test_bfloat16_is_two_opaque_bytes_or_u2_with_dtype(self):
        for bits in ("V2", "u2"):
            with self.subTest(bits):
                files = save_operands(*(bfloat16_bits(x).view(bits) for x in OPERANDS))
                self.check(self.attend(*files, "--causal", "--dtype", "bf16"), "bf16")
        self.refuses(["attend", *files, "--out-dir", "out"], "bfloat16 as V2")

    def test_versions_of_the_format(self):
        files = save_operands(*OPERANDS)
        for version in ((2, 0), (3, 0)):
            with self.subTest(version=version):
                with open("q.npy", "wb") as file:
                    np.lib.format.write_array(file, Q, version=version)
                self.check(self.attend(*files, "--causal"), "f64")

    def test_integer_mask_equals_boolean_mask(self):
        files, truth = save_operands(Q, K, V), random.random((1, 1, 13, 17)) < 0.5
        for stored in ("?", "i1", "u1", "i8", ">i4"):
            with self.subTest(stored):
                save_all(mask=np.asarray(truth.astype(stored), order="F"))
                self.close(self.attend(*files, "--mask", "mask.npy"), dense(Q, K, V, mask=truth), EXACT["f64"])

    def test_document_ids_of_any_integer_type(self):
        files, ids = save_operands(Q, K, V), (random.integers(0, 3, (2, 13)), random.integers(0, 3, (2, 17)))
        for stored in ("u1", "i2", "i8", ">u4"):
            with self.subTest(stored):
                save_all(q_ids=ids[0].astype(stored), k_ids=np.asarray(ids[1].astype(stored), order="F"))
                found = self.attend(*files, "--q-segments", "q_ids.npy", "--kv-segments", "k_ids.npy")
                self.close(found, dense(Q, K, V, segments=ids), EXACT["f64"])

    def test_masked_rows_have_output_and_gradients_0_and_lse_minus_infinity(self):
        save_all(mask=np.zeros((1, 1, 13, 17), bool))
        found = self.attend(*save_operands(*OPERANDS), "--mask", "mask.npy")
        self.assertTrue(np.all(found.pop("lse") == -np.inf))
        self.assertEqual({name for name in found if np.all(found[name] == 0)}, {"out", "dq", "dk", "dv"})

    def test_output_folder_with_missing_parents_or_older_files(self):
        files = save_operands(Q, K, V)
        first = self.attend(*files, out=os.path.join("a", "b", "c"))
        os.mkdir("kept")
        for name in ("out.npy", "dq.npy", "dbias.npy", "stranger.txt"):
            pathlib.Path("kept", name).write_text("before")
        self.assertEqual(run("attend", *files, "--out-dir", "kept").returncode, 0)
        self.assertEqual(sorted(os.listdir("kept")), ["lse.npy", "out.npy", "stranger.txt"])
        self.assertTrue(np.array_equal(np.load("kept/out.npy"), first["out"]))
        self.assertEqual(pathlib.Path("kept/stranger.txt").read_text(), "before")

    def test_input_in_the_output_folder_stays_under_the_name_of_another_result(self):
        files = save_operands(Q, K, V)
        os.mkdir("kept")
        shutil.move("q.npy", os.path.join("kept", "dv.npy"))
        done = run("attend", "--q", os.path.join("kept", "dv.npy"), *files[2:], "--out-dir", "kept")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(sorted(os.listdir("kept")), ["dv.npy", "lse.npy", "out.npy"])


main()
