"""Checks the NKI instruction model: instructions, refusals, the Python subset and races. Ring kernels run on it in
executed_kernels_test.py.

    python3 nki_model_test.py [-k PART]    only checks whose name contains PART
"""
import pathlib
import sys
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "examples" / "command" / "nki_folder")]
sys.dont_write_bytecode = True

import model_checks.checking as checking  # noqa: E402  (installs the model before the kernels are imported)
import model_checks.rounding_checks  # noqa: E402, F401
import model_checks.memory_checks  # noqa: E402, F401
import model_checks.instruction_checks  # noqa: E402, F401
import model_checks.refusal_checks  # noqa: E402, F401
import model_checks.subset_checks  # noqa: E402, F401
import model_checks.pair_checks  # noqa: E402, F401


class Model(unittest.TestCase):
    pass


for _name, _check in checking.CHECKS:
    assert not hasattr(Model, f"test {_name}"), f"two checks are called {_name}"
    setattr(Model, f"test {_name}", lambda self, check=_check: check())

if __name__ == "__main__":
    unittest.main(verbosity=2)
