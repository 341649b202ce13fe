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
import zipfile

make_wheel, libraries, license, version, folder = sys.argv[1:]
shutil.rmtree(folder, ignore_errors=True)
printed = subprocess.run([sys.executable, make_wheel, libraries, license, version, folder], check=True,
                         stdout=subprocess.PIPE, universal_newlines=True).stdout
wheel = printed.strip()
assert os.path.basename(wheel).startswith(f"annulus-{version}-py3-none-"), wheel

with zipfile.ZipFile(wheel) as archive:
    names = archive.namelist()
    record = list(csv.reader(archive.read(f"annulus-{version}.dist-info/RECORD").decode().splitlines()))
    assert [line[0] for line in record] == names, (record, names)
    for name, digest, size in record[:-1]:
        content = archive.read(name)
        assert int(size) == len(content), name
        expected = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        assert digest == f"sha256={expected}", name
    site = os.path.join(folder, "site")
    archive.extractall(site)

environment = {name: value for name, value in os.environ.items() if name != "ANNULUS_LIBRARY_DIR"}
program = f"""
import annulus, numpy as np
assert annulus.__file__.startswith({site!r}), annulus.__file__
assert annulus.__version__ == {version!r}, annulus.__version__
q = np.ones((1, 8, 2, 4))
output, lse = annulus.ring(2, q, q, q, causal=True)
assert np.allclose(output, 1) and np.allclose(lse, 2 + np.log(np.arange(1, 9)))
"""
for path in (site, os.path.join(libraries, "annulus", "python")):
    subprocess.run([sys.executable, "-c", program.replace(repr(site), repr(path))], check=True,
                   env={**environment, "PYTHONPATH": path})

refused = subprocess.run([sys.executable, make_wheel, folder, license, version, folder], stderr=subprocess.PIPE,
                         universal_newlines=True)
assert refused.returncode == 1 and "accepted: the library folder of an installation" in refused.stderr, refused
print("the wheel and the installation compute", os.path.basename(wheel))
