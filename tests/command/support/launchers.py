"""The folders of annulus nki --emit, and their launchers run on the numpy model behind the frameworks' interfaces."""

import contextlib
import importlib
import io
import os
import pathlib
import re
import shlex
import sys

from support.command import Case, environment, quiet, run
from support.nki_tests import frameworks, nki_model, signatures

frameworks.install()
FILES = {"README.md", "problem.py", "check.py", "run_torch.py", "run_jax.py", "simulate.py", "requirements.txt",
         "nki_model"}
MODULES = ("check", "problem", "run_torch", "run_jax", "simulate", "ring_attention_fwd",
           "ring_attention_fwd_stationary", "ring_attention_bwd", "ring_attention_spmd_fwd", "ring_attention_spmd_bwd")
ALL = ["output", "lse", "dq", "dk", "dv"]
EXACT = 3e-6  # float32, with sums in another order


def cores(count):
    return environment(NEURON_LOGICAL_NC_CONFIG=str(count))


def command_of(folder):
    """The command line in the README, without the folder."""
    (told,) = re.findall(r"^annulus (nki .*) --emit \.$", pathlib.Path(folder, "README.md").read_text(), re.M)
    return shlex.split(told)


def contents(folder):
    """By name, the bytes of each file and the contents of each folder."""
    return {path.name: path.read_bytes() if path.is_file() else contents(path)
            for path in pathlib.Path(folder).iterdir()}


def edit(path, pattern, replacement):
    path = pathlib.Path(path)
    changed = re.sub(pattern, replacement, path.read_text())
    assert changed != path.read_text(), pattern
    path.write_text(changed)


@contextlib.contextmanager
def inside(folder, name):
    """Imports a module of the folder; its neighbours are imported anew."""
    for module in MODULES:
        sys.modules.pop(module, None)
    sys.path.insert(0, os.path.abspath(folder))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.pop(0)


def run_torch(folder, ranks, ring_order=None, native=False, group_ids="position"):
    """Returns the launcher's output and status, as the others do."""
    opened = frameworks.install_torch(native)
    with inside(folder, "run_torch") as launcher, contextlib.redirect_stdout(io.StringIO()) as told:
        statuses = frameworks.World(ranks, ring_order, group_ids).run(launcher.main)
    assert set(opened) == {"neuron" if native else "xla"}
    return told.getvalue(), max(statuses)


def run_native(folder, ranks, ring_order=None):
    return run_torch(folder, ranks, ring_order, native=True)


def run_jax(folder, ranks, ring_order=None):
    frameworks.install_jax(ranks, ring_order, experimental=False)
    return run_main(folder, "run_jax")


def run_experimental_jax(folder, ranks, ring_order=None):
    frameworks.install_jax(ranks, ring_order, experimental=True)
    return run_main(folder, "run_jax")


def simulate(folder):
    frameworks.install_simulator()
    return run_main(folder, "simulate")


def run_on_model(folder):
    return run_main(folder, "simulate", ["--model"])


def run_main(folder, name, *arguments):
    with inside(folder, name) as launcher, contextlib.redirect_stdout(io.StringIO()) as told:
        status = launcher.main(*arguments)
    return told.getvalue(), status


class FolderCase(Case):
    def setUp(self):
        super().setUp()
        of_trn2 = cores(2)
        of_trn2.__enter__()
        self.addCleanup(of_trn2.__exit__, None, None, None)

    def emit(self, folder, options):
        """Writes a folder; returns the content of its files, each of which is listed."""
        done = run("nki", "--emit", folder, *options.split())
        self.assertTrue(quiet(done))
        files = contents(folder)
        self.assertEqual(sorted(os.path.basename(line.split()[0]) for line in done.stdout.splitlines()), sorted(files))
        return files

    def kernels(self, folder, options):
        """Writes a folder; returns the texts of its kernels, in NKI's subset of Python and of calls, by name."""
        self.emit(folder, options)
        version = (re.search(r"--nki-version (\S+)", options) or ["", "0.3"])[1]
        target = "trn3" if "trn3" in options else "trn2"
        texts = {path.stem: path.read_text() for path in pathlib.Path(folder).glob("ring_attention_*.py")}
        for name, text in texts.items():
            found, _ = signatures.problems(text, version, target)
            self.assertEqual((nki_model.subset.check(text), found[:5]), ([], []), name)
            self.assertLessEqual(max(map(len, text.splitlines())), 120, name)
        return texts

    def errors(self, outcome, *, results=ALL, ranks=None, exact=False):
        """{(result, rank): error} of a launch, which must succeed with these results, on each of the ranks."""
        text, status = outcome
        self.assertEqual(status, 0, text)
        self.assertNotIn("TOO LARGE", text)
        lines = [line.split() for line in text.splitlines() if line[:1] != " " and not line.startswith("result")]
        found = {(name, int(rank)): float(error) for name, rank, error, _ in lines}
        self.assertEqual({name for name, _ in found}, set(results))
        if ranks:
            self.assertEqual(len(found), len(results) * ranks)
        if exact:
            self.assertLess(max(found.values()), EXACT, found)
        return found

    def fails(self, call, *words):
        """The kernel refuses the call, or the model finds an error in it, with all of the words."""
        with self.assertRaises(nki_model.KernelFailed) as raised:
            call()
        self.contains(str(raised.exception), *words)

    def ends_with(self, call, *words):
        with self.assertRaises(SystemExit) as raised:
            call()
        self.contains(str(raised.exception), *words)
