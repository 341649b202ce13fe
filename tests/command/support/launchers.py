"""The launchers of annulus nki --emit, run on the numpy model of NKI behind the frameworks' interfaces."""

import contextlib
import importlib
import io
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "nki"))
from command import run  # noqa: E402
import frameworks  # noqa: E402
import nki_model  # noqa: E402

nki_model.install()
frameworks.install()
FILES = {"README.md", "problem.py", "check.py", "run_torch.py", "run_jax.py", "simulate.py", "requirements.txt", "nki_model"}


def emit(folder, *arguments):
    done = run("nki", "--emit", folder, *arguments)
    assert done.returncode == 0 and done.stderr == "", done
    assert FILES < set(os.listdir(folder)), os.listdir(folder)


@contextlib.contextmanager
def inside(folder, name):
    """Imports a module of the folder; its neighbours are imported anew."""
    for module in ("check", "problem", "run_torch", "run_jax", "simulate", "ring_attention_fwd",
                   "ring_attention_fwd_stationary", "ring_attention_bwd", "ring_attention_spmd_fwd",
                   "ring_attention_spmd_bwd"):
        sys.modules.pop(module, None)
    sys.path.insert(0, os.path.abspath(folder))
    try:
        yield importlib.import_module(name)
    finally:
        sys.path.pop(0)


def succeeds(text, status, what):
    assert status == 0 and "TOO LARGE" not in text, (what, status, text)
    lines = [line.split() for line in text.splitlines() if line[:1] != " " and not line.startswith("result")]
    return {(name, int(rank)): float(error) for name, rank, error, _ in lines}


def run_torch(folder, ranks, ring_order=None, native=False, group_ids="position"):
    opened = frameworks.install_torch(native)
    with inside(folder, "run_torch") as launcher, contextlib.redirect_stdout(io.StringIO()) as told:
        statuses = frameworks.World(ranks, ring_order, group_ids).run(launcher.main)
    assert set(opened) == {"neuron" if native else "xla"}
    return told.getvalue(), max(statuses)


def run_jax(folder, ranks, ring_order=None, experimental=False):
    frameworks.install_jax(ranks, ring_order, experimental)
    with inside(folder, "run_jax") as launcher, contextlib.redirect_stdout(io.StringIO()) as told:
        status = launcher.main()
    return told.getvalue(), status


def simulate(folder):
    with inside(folder, "simulate") as launcher, contextlib.redirect_stdout(io.StringIO()) as told:
        status = launcher.main()
    return told.getvalue(), status


def ends_with(function, *words):
    try:
        function()
    except SystemExit as end:
        assert all(word in str(end) for word in words), end
    else:
        raise AssertionError(f"no refusal that says {words}")
