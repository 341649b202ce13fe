"""Executes printed attention kernels on the numpy model; compares with the simulator and with dense attention.

    python3 executed_kernels_test.py EMIT [-k PART]    EMIT: annulus_nki_emit; only cases whose name contains PART
"""
import pathlib
import random
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "examples" / "command" / "nki_folder")]
sys.dont_write_bytecode = True

import nki_model  # noqa: E402  (found through the line above)

nki_model.install()

from executed.cases import CASES  # noqa: E402  (imports the model)
from executed.emitted import Emitted  # noqa: E402
from executed.judge import compare  # noqa: E402
from executed.problem import Problem  # noqa: E402

EMIT = sys.argv.pop(1)


def ring_orders(ranks, seed):
    """Two orders of a ring that differ by more than a rotation, if there are at least 3 ranks."""
    shuffle = random.Random(seed)
    orders = [list(range(ranks)), list(range(ranks))]
    while True:
        for order in orders:
            shuffle.shuffle(order)
        first, second = (order[order.index(0):] + order[:order.index(0)] for order in orders)
        if ranks < 3 or first != second:
            return orders


def run(name, case):
    problem = Problem(case)
    simulated, executed = ring_orders(problem.ranks, name)
    if problem.type != "float32":
        # A weight is relative to the maximum so far, so its rounding depends on the order in which keys arrive.
        executed = simulated
    with tempfile.TemporaryDirectory() as folder:
        emitted = Emitted(EMIT, folder, problem, simulated)
    print(compare(emitted, emitted.execute(executed)), end=" ... ", flush=True)


class ExecutedKernels(unittest.TestCase):
    """Each prints the fractions of the error bounds that it uses."""


for _name, _case in CASES.items():
    setattr(ExecutedKernels, f"test {_name}", lambda self, name=_name, case=_case: run(name, case))

if __name__ == "__main__":
    unittest.main(verbosity=2)
