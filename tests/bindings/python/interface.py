"""The modules for Python and Fortran declare what annulus.h declares, and the libraries export its functions.

usage: interface.py HEADER FORTRAN_MODULE [LIBRARY_WITH_MPI]
"""

import ctypes
import re
import sys
import unittest

from annulus import library

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
