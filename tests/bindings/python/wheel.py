"""The wheel of an installation: its record, and a call of the module that it installs.

usage: wheel.py MAKE_WHEEL LIBDIR LICENSE VERSION FOLDER
"""

import base64
import csv
import hashlib
import os
import shutil
import subprocess
import sys
import unittest
import zipfile

MAKE_WHEEL, LIBRARIES, LICENSE, VERSION, FOLDER = sys.argv[1:]
SITE = os.path.join(FOLDER, "site")
PROGRAM = """
import annulus, numpy as np
assert annulus.__file__.startswith({path!r}), annulus.__file__
assert annulus.__version__ == {version!r}, annulus.__version__
q = np.ones((1, 8, 2, 4))
output, lse = annulus.ring(2, q, q, q, causal=True)
assert np.allclose(output, 1) and np.allclose(lse, 2 + np.log(np.arange(1, 9)))
"""


def make_wheel(libraries):
    return subprocess.run([sys.executable, MAKE_WHEEL, libraries, LICENSE, VERSION, FOLDER], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)


class Wheel(unittest.TestCase):
    def setUp(self):
        shutil.rmtree(FOLDER, ignore_errors=True)
        done = make_wheel(LIBRARIES)
        self.assertEqual(done.returncode, 0, done)
        self.wheel = done.stdout.strip()

    def test_record(self):
        self.assertTrue(os.path.basename(self.wheel).startswith(f"annulus-{VERSION}-py3-none-"), self.wheel)
        with zipfile.ZipFile(self.wheel) as archive:
            record = list(csv.reader(archive.read(f"annulus-{VERSION}.dist-info/RECORD").decode().splitlines()))
            self.assertEqual([line[0] for line in record], archive.namelist())
            for name, digest, size in record[:-1]:
                content = archive.read(name)
                found = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
                self.assertEqual((digest, int(size)), (f"sha256={found}", len(content)), name)

    def test_wheel_and_installation_compute(self):
        with zipfile.ZipFile(self.wheel) as archive:
            archive.extractall(SITE)
        environment = {name: value for name, value in os.environ.items() if name != "ANNULUS_LIBRARY_DIR"}
        for path in (SITE, os.path.join(LIBRARIES, "annulus", "python")):
            with self.subTest(path):
                subprocess.run([sys.executable, "-c", PROGRAM.format(path=path, version=VERSION)], check=True,
                               env={**environment, "PYTHONPATH": path})

    def test_another_folder_is_refused(self):
        done = make_wheel(FOLDER)
        self.assertEqual(done.returncode, 1)
        self.assertIn("accepted: the library folder of an installation", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
