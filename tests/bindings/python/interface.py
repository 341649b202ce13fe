"""The modules for Python and Fortran declare what annulus.h declares, which has a counterpart of every sharding,
schedule, rotation, wire type, option and operand of C++; and the libraries export its functions.

usage: interface.py HEADER FORTRAN_MODULE [LIBRARY_WITH_MPI]
"""

import ctypes
import dataclasses
import pathlib
import re
import sys
import unittest

import annulus
from annulus import arrays, library

header = re.sub(r"/\*.*?\*/", "", open(sys.argv[1], encoding="utf-8").read(), flags=re.S)
fortran = re.sub(r"!.*", "", open(sys.argv[2], encoding="utf-8").read().replace("&\n", ""))
over_mpi = sys.argv[3:4]

C_TYPES = {"int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64, "double": ctypes.c_double, "int": ctypes.c_int}
#: The Fortran type of each kind of field; Fortran has no unsigned integers.
FORTRAN_TYPES = {ctypes.c_int64: "integer(c_int64_t)", ctypes.c_uint64: "integer(c_int64_t)",
                 ctypes.c_double: "real(c_double)", ctypes.c_int: "integer(c_int)"}


def structures():
    """(name, [(field, type as C writes it, pointer or extent)]) of each structure of the header."""
    for body, name in re.findall(r"typedef struct \w+ \{(.*?)\} annulus_(\w+);", header, flags=re.S):
        fields = []
        for declaration in filter(None, (line.strip() for line in body.split(";"))):
            kind, names = re.match(r"((?:char|u?int\w+_t) const\*|void\*|\w+) (.*)", declaration, flags=re.S).groups()
            for field in names.split(","):
                field, _, extent = field.strip().partition("[")
                fields.append((field, kind, int(extent.rstrip("]")) if extent else 1))
        yield name, fields


def is_enumeration(kind):
    return f"typedef enum {kind} ANNULUS_INT {{" in header


def enumerators():
    return {name: int(value) for name, value in re.findall(r"ANNULUS_(\w+) = (\d+)", header)}


class Structures(unittest.TestCase):
    def test_python(self):
        found = dict(structures())
        self.assertGreaterEqual(len(found), 10)
        for name, fields in found.items():
            mirror = getattr(library, "".join(word.title() for word in name.split("_")))
            with self.subTest(structure=name):
                self.assertEqual([field.rstrip("_") for field, _ in mirror._fields_], [field for field, _, _ in fields])
                for (_, mirrored), (field, kind, extent) in zip(mirror._fields_, fields):
                    if kind.endswith("*"):
                        self.assertEqual(ctypes.sizeof(mirrored), ctypes.sizeof(ctypes.c_void_p), field)
                    elif kind in C_TYPES:
                        expected = C_TYPES[kind] if extent == 1 else C_TYPES[kind] * extent
                        self.assertIs(mirrored, expected, field)
                    elif is_enumeration(kind):
                        self.assertIs(mirrored, ctypes.c_int, field)
                    else:
                        self.assertEqual(mirrored.__name__.lower(), kind.replace("annulus_", "").replace("_", ""))

    def test_fortran(self):
        found = dict(structures())
        mirrors = re.findall(r"type, bind\(C\) :: annulus_(\w+)\n(.*?)end type", fortran, flags=re.S)
        self.assertGreaterEqual(len(mirrors), 6)
        for name, body in mirrors:
            declared = []
            for kind, names in re.findall(r"^\s*(\S+) :: (.*)$", body, flags=re.M):
                names = re.sub(r"= *[-\w]+", "", re.sub(r"\(\d+\)", "", names))
                declared += [(field.strip(), kind) for field in names.split(",")]
            expected = []
            for field, kind, _ in found[name]:
                if kind.endswith("*"):
                    expected.append((field, "type(c_ptr)"))
                elif kind in C_TYPES:
                    expected.append((field, FORTRAN_TYPES[C_TYPES[kind]]))
                else:
                    expected.append((field, "integer(c_int)" if is_enumeration(kind) else f"type({kind})"))
            with self.subTest(structure=name):
                self.assertEqual(declared, expected)

    def test_enumerators(self):
        values = enumerators()
        for place, name in enumerate(library.DTYPES):
            self.assertEqual(values[name.upper()], place)
        for prefix, words in (("ROTATION_", library.ROTATIONS), ("ZERO_COPY_", library.ZERO_COPY),
                              ("PASS_", library.PASSES)):
            self.assertEqual([values[prefix + word.upper()] for word in words], list(range(len(words))))
        constants = re.findall(r"annulus_(\w+) = (\d+)", re.search(r"public\n(.*?)\n\s*type, bind", fortran, re.S)[1])
        self.assertGreater(len(constants), 20)
        for name, value in constants:
            c_name = "ERROR" if name == "failure" else name.upper()  # annulus_error is a type, and case is ignored
            self.assertEqual(values[c_name], int(value), name)


class Counterparts(unittest.TestCase):
    """Lists of C++ against those of C, Fortran and Python."""

    #: Names in C and in Python of options whose names differ; none: an option that bindings do not have.
    C_NAMES = {"window": ["window_left", "window_right"], "block_mask": ["blocks"], "near": ["near_link"],
               "far": ["far_link"], "dropout": ["dropout_probability", "dropout_seed"], "observer": []}
    PYTHON_NAMES = {"dropout": ["dropout", "seed"], "observer": []}

    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(sys.argv[1]).parent
        texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.hpp") if "nki" not in path.parts]
        cls.cpp = re.sub(r"//.*", "", "\n".join(texts))

    def enumerators(self, name):
        body = re.search(rf"enum class {name}\b[^{{;]*\{{(.*?)\}}", self.cpp, re.S)[1]
        return re.findall(r"\w+", body)

    def members(self, name):
        """Data members of a structure, without those that are deprecated."""
        body = re.search(rf"\nstruct {name} \{{(.*?)\n\}};", self.cpp, re.S)[1]
        found = re.findall(r"^  (\w[\w:<>, ]*) (\w+)(?: = [^;(]*|\{\})?;", body, re.M)
        self.assertGreater(len(found), 3, name)
        return [member for kind, member in found if "OldName" not in kind]

    def expect(self, words, prefix, mirrored):
        values = enumerators()
        prefixed = [name for name in values if name.startswith(prefix)] if prefix else [word.upper() for word in words]
        self.assertEqual([prefix + word.upper() for word in words], prefixed)
        self.assertEqual([values[name] for name in prefixed], list(range(len(words))))
        self.assertEqual(list(mirrored), words)
        for word in words:
            self.assertRegex(fortran, rf"\bannulus_{(prefix + word).lower()} = \d")

    def test_enumerations(self):
        for name, mirrored in (("Schedule", library.SCHEDULES), ("Rotation", library.ROTATIONS), ("Wire", library.WIRES),
                               ("ZeroCopy", library.ZERO_COPY)):
            with self.subTest(enumeration=name):
                self.expect(self.enumerators(name), re.sub(r"(?<!^)([A-Z])", r"_\1", name).upper() + "_", mirrored)

    def test_shardings(self):
        kinds = re.search(r"std::variant<([\w, ]+)> kind_;", self.cpp)[1].split(", ")
        self.expect([re.sub(r"(?<!^)([A-Z])", r"_\1", kind).lower() for kind in kinds], "", library.SHARDINGS)

    def test_options(self):
        found = dict(structures())
        mask = self.members("Mask")
        options = [name for option in self.members("Options") for name in (mask if option == "mask" else [option])]
        for given, structure, mirror in ((options, "options", annulus.Options),
                                         (self.members("Rates"), "rates", annulus.Rates)):
            of_python = [field.name for field in dataclasses.fields(mirror)]
            for option in given:
                for name in self.C_NAMES.get(option, [option]):
                    self.assertIn(name, [field for field, _, _ in found[structure]])
                for name in self.PYTHON_NAMES.get(option, [option]):
                    self.assertIn(name, of_python)

    def test_operands(self):
        operands = [name for name in self.members("Operands") if name not in ("bias_gradient", "call")]
        self.assertEqual([field for field, kind, _ in dict(structures())["operands"] if kind == "annulus_tensor"],
                         operands)
        self.assertEqual(list(arrays.OPERANDS), operands)


class Functions(unittest.TestCase):
    def test_exported(self):
        names = re.findall(r"ANNULUS_API [^;(]*?(annulus_\w+)\(", header)
        self.assertGreater(len(names), 25)
        for name in names:
            if not name.endswith("_mpi"):
                self.assertTrue(hasattr(library.c, name), name)
            elif over_mpi:
                self.assertTrue(hasattr(ctypes.CDLL(over_mpi[0]), name), name)
        for name in re.findall(r"function (annulus_\w+)\(.*\) *bind\(C\)", fortran):
            self.assertIn(name, names)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
