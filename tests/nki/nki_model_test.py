"""Checks the NKI instruction model: instructions, refusals, the Python subset, races, and ring kernels run on it.

    python3 nki_model_test.py [PART]    one line per check whose name contains PART; exit status 1 if one failed
"""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "fixtures")]
sys.dont_write_bytecode = True

import model_checks.checking as checking  # noqa: E402  (installs the model before the kernels are imported)
import model_checks.rounding_checks  # noqa: E402, F401
import model_checks.memory_checks  # noqa: E402, F401
import model_checks.instruction_checks  # noqa: E402, F401
import model_checks.refusal_checks  # noqa: E402, F401
import model_checks.subset_checks  # noqa: E402, F401
import model_checks.pair_checks  # noqa: E402, F401
import model_checks.ring_checks  # noqa: E402, F401


def main():
    if len(sys.argv) > 1:
        checking.CHECKS[:] = [entry for entry in checking.CHECKS if sys.argv[1] in entry[0]]
    passed, failed = checking.run_all()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
