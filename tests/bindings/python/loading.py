"""Where the package looks for its library."""

import os
import subprocess
import sys
import tempfile
import unittest


class Loading(unittest.TestCase):
    def test_folder_without_the_library(self):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([sys.executable, "-c", "import annulus"], stderr=subprocess.PIPE,
                                 universal_newlines=True, env={**os.environ, "ANNULUS_LIBRARY_DIR": folder})
        self.assertEqual(run.returncode, 1)
        self.assertRegex(run.stderr, "OSError: annulus cannot load libannulus_c.so: .*accepted: the library in one of")


if __name__ == "__main__":
    unittest.main()
