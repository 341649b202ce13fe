#!/usr/bin/env python3
"""Makes a Python wheel of an installation of annulus, with the standard library alone.

usage: make_wheel.py LIBDIR LICENSE VERSION OUTPUT_DIR

LIBDIR is the library folder of the installation: it has annulus/python/annulus, libannulus_c.so and, if the library was
built with MPI, libannulus_c_mpi.so. Prints the path of the wheel.
"""

import base64
import hashlib
import pathlib
import sys
import sysconfig
import zipfile

METADATA = """Metadata-Version: 2.1
Name: annulus
Version: {version}
Summary: Exact ring attention, forward and backward
License: Apache-2.0
Requires-Python: >=3.8
Requires-Dist: numpy

{description}
"""

WHEEL = """Wheel-Version: 1.0
Generator: annulus
Root-Is-Purelib: false
Tag: {tag}
"""


def record_line(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    return f"{name},sha256={digest},{len(content)}\n"


def contents_of(libraries, license, version, tag):
    """The files of the wheel by name."""
    package = libraries / "annulus" / "python" / "annulus"
    files = {f"annulus/{path.name}": path.read_bytes() for path in sorted(package.glob("*.py"))}
    for name in ("libannulus_c.so", "libannulus_c_mpi.so"):
        if (libraries / name).exists():
            files[f"annulus/{name}"] = (libraries / name).read_bytes()
    if "annulus/__init__.py" not in files or "annulus/libannulus_c.so" not in files:
        sys.exit(f"make_wheel: {libraries} has no annulus/python/annulus or no libannulus_c.so; accepted: the library "
                 "folder of an installation of annulus")
    info = f"annulus-{version}.dist-info"
    description = files["annulus/__init__.py"].decode().split('"""')[1]
    files[f"{info}/LICENSE"] = license.read_bytes()
    files[f"{info}/METADATA"] = METADATA.format(version=version, description=description).encode()
    files[f"{info}/WHEEL"] = WHEEL.format(tag=tag).encode()
    record = "".join(record_line(name, content) for name, content in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    return files


def main():
    if len(sys.argv) != 5:
        sys.stderr.write(__doc__.split("\n\n")[1] + "\n")
        sys.exit(2)
    libraries, license, folder = (pathlib.Path(sys.argv[place]) for place in (1, 2, 4))
    version = sys.argv[3]
    tag = "py3-none-" + sysconfig.get_platform().replace("-", "_").replace(".", "_")
    files = contents_of(libraries, license, version, tag)
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"annulus-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    print(wheel)


if __name__ == "__main__":
    main()
