"""Operands and results of annulus attend and annulus nki, in .npy files."""

import os
import shutil

import numpy as np

from support.command import Case, run
from support.dense_attention import relative_error

AXES = {"bshd": (0, 1, 2, 3), "bhsd": (0, 2, 1, 3), "bhds": (0, 2, 3, 1)}


def bfloat16_bits(x):
    """The bits of x as bfloat16, rounded to nearest, ties to even."""
    bits = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def to_bfloat16(x):
    return (bfloat16_bits(x).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def load(folder):
    """The results in a folder by name; the folder holds nothing else."""
    return {name[:-4]: np.load(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}


def save_all(**arrays):
    for name, array in arrays.items():
        np.save(name + ".npy", array)


def save_operands(q, k, v, dout=None, axes="bshd", order="C"):
    """Writes q.npy, k.npy, ...; returns the arguments that name them."""
    arguments = ["--axes", axes] if axes != "bshd" else []
    for name, array in (("q", q), ("k", k), ("v", v), ("dout", dout)):
        if array is not None:
            np.save(name + ".npy", np.asarray(array.transpose(AXES[axes]), order=order))
            arguments += ["--" + name, name + ".npy"]
    return arguments


def aligned(arguments):
    """The arguments of a call whose queries and keys are aligned at the start, unless they say otherwise."""
    decides = {"--causal", "--window", "--chunk"} & set(arguments) and "--query-offset" not in arguments
    return [*arguments, *(["--query-offset", "0"] if decides else [])]


def same(found, expected):
    return all(found[name].tobytes() == expected[name].tobytes() for name in expected)


def natural(results, axes):
    """Results in the order bshd, from the order of --axes."""
    order = np.argsort(AXES[axes])
    return {name: array if name == "lse" else array.transpose(order) for name, array in results.items()}


class ArrayCase(Case):
    def attend(self, *arguments, out="out", launcher=()):
        """A call that must succeed; returns its results."""
        done = run("attend", *aligned(arguments), "--out-dir", out, launcher=launcher)
        self.assertEqual((done.returncode, "" if launcher else done.stderr), (0, ""))
        results = load(out)
        shutil.rmtree(out)
        return results

    def close(self, found, expected, bound):
        """The same results, each within the bound, relative in the Frobenius norm."""
        self.assertEqual(set(found), set(expected))
        for name in expected:
            error = relative_error(found[name], expected[name])
            self.assertLessEqual(error, bound, name)
