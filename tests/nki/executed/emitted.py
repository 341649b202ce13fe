"""A printed kernel with its simulated results, and its execution on the numpy model."""
import pathlib
import re
import subprocess

import numpy as np

import nki_model

from .stream import compare as compare_stream

ARGUMENT = re.compile(r"#   (\w+): (\w+) \[([\d, ]*)\]")


class Emitted:
    """The files that annulus_nki_emit wrote into a folder; arguments and results are named as in the kernel's text."""

    def __init__(self, program, folder, problem, ring):
        order = ",".join(map(str, ring))
        command = [program, folder, *problem.words(), f"ring={order}"]
        finished = subprocess.run(command, capture_output=True, text=True)
        if finished.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, command))}: {finished.stderr}")
        self.problem = problem
        self.folder = pathlib.Path(folder)
        self.text = (self.folder / "kernel.py").read_text()
        head = self.text[:self.text.index("\n\n")]
        arguments, results = re.split(r"# Returns.*:\n", head)
        self.stream = (self.folder / "stream.txt").read_text().splitlines()
        self.arguments = self._described(arguments)
        self.results = self._described(results)
        self.workers = problem.ranks * problem.groups
        workers = range(self.workers)
        self.inputs = [{name: self._load(name, worker, "npy") for name in self.arguments} for worker in workers]
        self.simulated = [{name: self._load(name, worker, "simulated.npy") for name in self.results}
                          for worker in workers]
        self.sinks = np.load(self.folder / "sinks.0.npy")[0] if problem.sinks else None  # [heads, n]

    @staticmethod
    def _described(text):
        return {name: (dtype, tuple(map(int, shape.split(", ")))) for name, dtype, shape in ARGUMENT.findall(text)}

    def _load(self, name, worker, ending):
        values = np.load(self.folder / f"{name}.{worker}.{ending}")
        shape = {**self.arguments, **self.results}[name][1]
        if values.shape != shape:
            raise AssertionError(f"{name} is {values.shape}; the text of the kernel says {shape}")
        return values

    def execute(self, ring):
        """Executes the text alone; returns per worker {name: array}. ring: the group's workers in ring order."""
        problems = nki_model.subset.check(self.text)
        if problems:
            raise AssertionError(f"the text leaves the Python subset: {problems}")
        if self.problem.ranks > 1 and "replica_groups:" not in self.text:
            raise AssertionError("a ring kernel without replica_groups")
        module = {}
        exec(compile(self.text, "kernel.py", "exec"), module)
        (kernel,) = (value for value in module.values() if type(value).__name__ == "Kernel")
        size = self.problem.ranks
        groups = tuple(tuple(range(begin, begin + size)) for begin in range(0, self.workers, size))
        constants = (groups,) if size > 1 else ()
        constants += tuple(re.findall(r'mask_fingerprint: "(\w+)"', self.text))
        shapes = {name: shape for name, (_, shape) in self.arguments.items()}
        compare_stream(self.text, shapes, self.problem.lnc, constants, self.stream)
        per_worker = [tuple(nki_model.HbmArray(given[name], self.arguments[name][0]) for name in self.arguments)
                      + constants for given in self.inputs]
        returned = nki_model.launch(kernel, self.problem.lnc, per_worker, ring_order=list(ring),
                                    target=self.problem.target, group_ids=self.problem.ids)
        return [dict(zip(self.results, result if isinstance(result, tuple) else (result,), strict=True))
                for result in returned]
