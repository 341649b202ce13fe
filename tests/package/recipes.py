"""recipes.py <cmake> <generator> <source folder> <version> <scratch folder>: the recipes of cmake/packaging without their
package managers. All name this version and options that exist; and what the Conan recipe exports has every file that its
configuration installs."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import types

CMAKE, GENERATOR, VERSION = sys.argv[1], sys.argv[2], sys.argv[4]
SOURCE, SCRATCH = pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[5])
PACKAGING = SOURCE / "cmake" / "packaging"


def copy(_, pattern, source, destination):
    """As conan.tools.files.copy for a file, or for a folder and *, which stands for all below it."""
    start = pathlib.Path(source) / pattern.removesuffix("*")
    for file in filter(pathlib.Path.is_file, start.rglob("*") if start.is_dir() else [start]):
        target = destination / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, target)


class Toolchain:
    def __init__(self, _):
        self.cache_variables = {}

    def generate(self):
        Toolchain.arguments = [f"-D{name}={value}" for name, value in self.cache_variables.items()]


def conan_recipe():
    """The recipe, with what it needs of Conan."""
    modules = {"conan": {"ConanFile": object}, "conan.tools": {},
               "conan.tools.cmake": {"CMake": None, "CMakeToolchain": Toolchain, "cmake_layout": None},
               "conan.tools.files": {"copy": copy, "load": lambda _, path: pathlib.Path(path).read_text()}}
    for name, contents in modules.items():
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__dict__.update(contents)
    names = {}
    exec(compile((PACKAGING / "conanfile.py").read_text(), "conanfile.py", "exec"), names)
    recipe = names["Annulus"]()
    recipe.recipe_folder, recipe.export_sources_folder = str(PACKAGING), SCRATCH / "exported"
    recipe.options = types.SimpleNamespace(mpi=False, c_interface=True)
    return recipe


def installed_files(build):
    """Files that the installation takes from the sources, as their names there."""
    text = (build / "cmake_install.cmake").read_text()
    paths = re.findall(r'"([^"]+)"', " ".join(re.findall(r"file\(INSTALL .*?\)\n", text, re.DOTALL)))
    for path in filter(lambda path: path.startswith(str(SCRATCH / "exported")), paths):
        name = pathlib.Path(path).relative_to(SCRATCH / "exported")
        folder = SOURCE / name
        yield from (file.relative_to(SOURCE) for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else [name]


shutil.rmtree(SCRATCH, ignore_errors=True)
recipe = conan_recipe()
recipe.set_version()
assert recipe.version == VERSION, recipe.version
recipe.export_sources()
recipe.generate()
subprocess.run([CMAKE, "-S", SCRATCH / "exported", "-B", SCRATCH / "build", "-G", GENERATOR, *Toolchain.arguments],
               check=True, stdout=subprocess.DEVNULL)
installed = list(installed_files(SCRATCH / "build"))
assert len(installed) > 100, installed
missing = [str(name) for name in installed if not (SCRATCH / "exported" / name).exists()]
assert not missing, f"the Conan recipe does not export {missing}"

known = set(re.findall(r"ANNULUS_\w+", (SOURCE / "CMakeLists.txt").read_text()))
port, package = PACKAGING / "vcpkg" / "annulus", PACKAGING / "spack" / "packages" / "annulus" / "package.py"
assert json.loads((port / "vcpkg.json").read_text())["version"] == VERSION
citation = (SOURCE / "CITATION.cff").read_text()
assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == VERSION
assert re.search(rf"^## {re.escape(VERSION)}\b", (SOURCE / "CHANGELOG.md").read_text(), re.MULTILINE)
for recipe_file in (port / "portfile.cmake", package):
    options = set(re.findall(r"ANNULUS_[A-Z_]+", recipe_file.read_text()))
    assert len(options) == 5 and options <= known, (recipe_file, options - known)
for feature in json.loads((port / "vcpkg.json").read_text())["features"]:
    assert f" {feature} ANNULUS_" in (port / "portfile.cmake").read_text(), feature
