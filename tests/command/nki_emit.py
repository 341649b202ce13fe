"""The files of annulus nki --emit: reproducible, valid Python for NKI, as the README says. nki_folder.py runs them."""

import pathlib
import re

import numpy as np

from support.command import main, run
from support.launchers import FILES, FolderCase, command_of, contents
from support.nki_tests import nki_model

STATIONARY, FORWARD, BACKWARD = "ring_attention_fwd_stationary.py", "ring_attention_fwd.py", "ring_attention_bwd.py"
SMALL = "--tokens-per-rank 64 --head-dim 16 --causal"
CASES = [
    "--ranks 4 --tokens-per-rank 40 --query-heads 2 --head-dim 16 --causal --sharding striped --dtype f32",
    "--ranks 2 --tokens-per-rank 130 --query-heads 3 --kv-heads 3 --head-dim 24 --value-dim 8 --causal "
    "--backward keys --tp-q --tp-k",
    "--ranks 3 --tokens-per-rank 20 --batch 2 --query-heads 2 --head-dim 8 --sharding zigzag --lnc 1 "
    "--window 9,4 --softcap 3",
    "--ranks 2 --tokens-per-rank 64 --query-heads 2 --head-dim 16 --sharding striped --causal --documents 0,30,96",
    "--ranks 1 --tokens-per-rank 50 --head-dim 8 --lnc 1 --dtype f32",
    # Where queries and keys differ in number, the command line in the README states the offset.
    "--ranks 2 --tokens-per-rank 64 --keys-per-rank 96 --head-dim 16 --causal --query-offset 0",
    "--ranks 2 --tokens-per-rank 64 --keys-per-rank 96 --head-dim 16 --causal --query-offset 64",
    "--ranks 4 --tokens-per-rank 40 --batch 2 --query-heads 2 --head-dim 16 --causal "
    "--bias heads,queries,keys --bias-dtype bf16 --bias-gradient",
    "--ranks 2 --tokens-per-rank 32 --head-dim 8 --query-heads 2 --bias keys --bias-gradient --backward keys --sinks 2",
    "--ranks 2 --groups 2 --tokens-per-rank 32 --head-dim 8 --bias queries,heads --bias-gradient --documents 0,40",
    # The longest lines.
    "--ranks 16 --tokens-per-rank 300 --query-heads 2 --kv-heads 1 --head-dim 256 --window 300,-1 --sink-tokens 4 "
    "--sharding zigzag --nki-version 0.4 --target trn3 --output-dtype bf16 --groups 4 --only fwd",
]
AXES_OF_BIAS = "[ranks of all rings, batch * query heads or 1, queries or 1, keys or 1]: added to the logits"
# Options of the forward kernels; whether there are two of them, because the second is for bfloat16 without key pieces
# inside a block of 128 keys.
FORWARD_KERNELS = [("", True), ("--dtype f32", False), ("--no-keys-stationary", False),
                   ("--window 9,0 --sink-tokens 3", False)]
VERSIONS = [("0.3", "2.29"), ("0.4", "2.30"), ("0.5", "2.31"), ("0.6", "2.32"), ("0.7", "2.33")]


class Emitted(FolderCase):
    def readme(self, folder, options):
        return self.emit(folder, options)["README.md"].decode()

    def check_kernel(self, name, text, readme):
        """In the Python subset of NKI, and called in the README with what it takes, in that order."""
        self.assertEqual(nki_model.subset.check(text), [])
        self.assertLessEqual(max(map(len, text.splitlines())), 120)
        function = name.removesuffix(".py")
        taken = re.search(rf"^def {function}\((.*)\):", text, re.M)[1]
        fingerprints = re.findall(r'^    assert mask_fingerprint == ("\w+")', text, re.M)
        for fingerprint in fingerprints:
            taken = taken.replace("mask_fingerprint", fingerprint)
        self.assertIn(taken, re.findall(rf"^.* = {function}(?:\[2\])?\((.*)\)$", readme, re.M))

    def test_files(self):
        for number, options in enumerate(CASES):
            with self.subTest(options):
                files = self.emit(f"first{number}", options)
                readme = files["README.md"].decode()
                self.assertEqual(self.emit(f"again{number}", options), files)
                self.assertEqual(run(*command_of(f"first{number}"), "--emit", f"told{number}").returncode, 0)
                self.assertEqual(contents(f"told{number}"), files)
                # Permutes of such rings are not documented.
                self.assertEqual("--ranks 3" in options, "physical link" in readme)
                self.assertEqual("--query-offset" in options, "--query-offset" in readme)
                self.assertEqual("--bias" in options, AXES_OF_BIAS in readme)
                for name in files:
                    if re.fullmatch(r"ring_attention_\w+\.py", name):
                        self.check_kernel(name, files[name].decode(), readme)

    def test_readme_has_the_cores_of_a_call_the_ranks_of_each_ring_and_the_necessary_conversions(self):
        self.contains(self.readme("groups", SMALL + " --ranks 2 --groups 2 --lse-dtype bf16"), "ring_attention_fwd[2](",
                      "replica_groups = ((0, 1), (2, 3))", "NEURON_LOGICAL_NC_CONFIG=2", "returns bfloat16: convert it",
                      "NEURON_PLATFORM_TARGET_OVERRIDE=trn2", "[rank % 2]")
        (table,) = pathlib.Path("groups").glob("ring_attention_fwd.mask_offsets.*.npy")
        self.assertEqual(np.load(table).shape, (2, 4, 2))
        text = self.readme("single", "--ranks 1 --tokens-per-rank 64 --lnc 1 --target trn3 --no-training")
        self.contains(text, "output = ring_attention_fwd(q, k, v)", "trn3")
        self.assertNotIn("replica_groups", text)

    def test_files_of_each_choice_of_kernels(self):
        for options, kernels in (("--no-training", {FORWARD, STATIONARY}), ("--only bwd", {BACKWARD}),
                                 ("--backward none", {FORWARD, STATIONARY})):
            with self.subTest(options):
                files = self.emit("kernels" + options.replace(" ", ""), f"--tokens-per-rank 64 {options}")
                self.assertEqual(set(files), FILES | kernels)

    def test_two_forward_kernels(self):
        for options, two in FORWARD_KERNELS:
            with self.subTest(options):
                text = self.readme("forward" + options.replace(" ", ""),
                                   f"--ranks 1 --tokens-per-rank 64 {options} --only fwd")
                self.assertEqual(("all ranks call `ring_attention_fwd`" in text, f"`{STATIONARY}`" in text), (two, two))
                self.assertEqual("keys-stationary" in text, "--no-keys-stationary" in options)

    def test_a_used_folder_keeps_other_files_and_no_kernel_or_table(self):
        self.emit("used", SMALL + " --ranks 2")
        others = {"notes.txt", "ring_attention_notes.py", "my.mask_offsets.npy"}
        for name in others:
            pathlib.Path("used", name).touch()
        done = run("nki", "--emit", "used", *f"{SMALL} --ranks 2 --dtype f32 --documents 0,9 --only fwd".split())
        written = {pathlib.Path(line.split()[0]).name for line in done.stdout.splitlines()}
        self.assertEqual(set(contents("used")) - written, others)

    def test_the_version_of_nki_is_named_in_every_file(self):
        for version, sdk in VERSIONS:
            with self.subTest(version):
                files = self.emit(version, f"{SMALL} --nki-version {version}")
                files = {name: content.decode()
                         for name, content in files.items() if name.endswith((".py", ".md", ".txt"))}
                newest = version == "0.7"
                named = f"NKI {version} (Neuron SDK {sdk}) and later{'' if newest else ', before 0.7'}."
                for name in ("README.md", BACKWARD, FORWARD, STATIONARY):
                    self.assertIn(named, files[name], name)
                self.assertIn(f" --nki-version {version} ", files["README.md"])
                self.contains(files["requirements.txt"], f"nki>={version}{'' if newest else ',<0.7'}\n",
                              "--extra-index-url", "setup-env.html\n")
                # From 0.7 on the environment alone says how many cores a kernel has.
                for name, grid in (("README.md", "ring_attention_fwd[2]("), ("problem.py", "LAUNCH_GRID = True"),
                                   (FORWARD, "# Launch: ring_attention_fwd[2](...)")):
                    self.assertEqual(grid in files[name], not newest, name)
        self.assertEqual(self.emit("oldest", SMALL), contents("0.3"))

    def test_the_command_line_in_the_readme_has_no_options_of_a_kernel_that_is_left_out(self):
        text = self.readme("forward", SMALL + " --only fwd --no-training")
        self.assertNotRegex(text, "--backward|--lse-dtype")
        self.assertIn("--only fwd --emit .", text)

    def test_tables_that_would_fill_the_disk_are_not_written(self):
        """The README says how to make them."""
        files = self.emit("large",
                          "--ranks 32 --groups 64 --tokens-per-rank 600 --head-dim 16 --documents 0,1000 --only fwd")
        self.assertEqual(set(files), FILES | {FORWARD, STATIONARY})
        self.contains(files["README.md"].decode(), "sharded_mask(", ".ranges(rank % 32, 64)",
                      ".key_ranges(rank % 32, 64)")


main()
