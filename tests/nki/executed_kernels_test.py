"""Executes printed attention kernels on the numpy model; compares with the simulator and with dense attention.

    python3 executed_kernels_test.py EMIT [PART]    EMIT: annulus_nki_emit; only cases whose name holds PART

One line per case; exit status 1 if one failed.
"""
import pathlib
import random
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True

import nki_model  # noqa: E402  (found through the line above)

nki_model.install()

from executed.cases import CASES  # noqa: E402  (imports the model)
from executed.emitted import Emitted  # noqa: E402
from executed.judge import compare  # noqa: E402
from executed.problem import Problem  # noqa: E402


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


def run(emit, name, case):
    problem = Problem(case)
    simulated_ring, executed_ring = ring_orders(problem.ranks, name)
    with tempfile.TemporaryDirectory() as folder:
        emitted = Emitted(emit, folder, problem, simulated_ring)
    executed = alike = emitted.execute(executed_ring)
    if problem.ranks > 2 and problem.type != "float32":
        # A weight is relative to the maximum so far, so its rounding depends on the order in which keys arrive.
        alike = emitted.execute(simulated_ring)
    return compare(emitted, executed, alike)


def main():
    emit, part = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    chosen = {name: case for name, case in CASES.items() if part in name}
    failed = 0
    for name, case in chosen.items():
        begin = time.monotonic()
        try:
            text = run(emit, name, case)
        except Exception:
            failed += 1
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
        else:
            print(f"ok     {name}: {text} ({time.monotonic() - begin:.1f} s)", flush=True)
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main())
