"""The numpy model of NKI and the tables of ../../nki, for tests of the kernels that annulus nki prints."""

import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "nki"
GOLDEN = FOLDER / "print" / "golden"
MODEL = FOLDER.parents[1] / "examples" / "command" / "nki_folder" / "nki_model"
sys.path[:0] = [str(FOLDER), str(MODEL.parent)]
sys.dont_write_bytecode = True

import frameworks  # noqa: E402, F401  (found through the lines above)
import nki_model  # noqa: E402
import signatures  # noqa: E402, F401

nki_model.install()


def function(text, name):
    """The function of that name in the text of a module."""
    module = {}
    exec(compile(text, name + ".py", "exec"), module)
    return module[name]
