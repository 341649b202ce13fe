"""Conan 2 recipe: conan create cmake/packaging"""

import os
import re

from conan import ConanFile
from conan.tools.cmake import CMake, CMakeToolchain, cmake_layout
from conan.tools.files import copy, load


class Annulus(ConanFile):
    name = "annulus"
    description = "Exact ring attention, forward and backward"
    license = "Apache-2.0"
    topics = ("attention", "ring-attention", "mpi", "header-only")
    settings = "os", "arch", "compiler", "build_type"
    options = {"mpi": [True, False], "c_interface": [True, False]}
    default_options = {"mpi": False, "c_interface": False}
    generators = "CMakeDeps"

    @property
    def _sources(self):
        return os.path.normpath(os.path.join(self.recipe_folder, "..", ".."))

    def set_version(self):
        header = load(self, os.path.join(self._sources, "include", "annulus", "core", "version.hpp"))
        self.version = ".".join(re.findall(r"#define ANNULUS_VERSION_[A-Z]+ (\d+)", header))

    def export_sources(self):
        for pattern in ("include/*", "cmake/*", "tests/conformance/*", "tests/support/*", "examples/*", "CMakeLists.txt", "LICENSE",
                        "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md", "tests/README.md"):
            copy(self, pattern, self._sources, self.export_sources_folder)

    def requirements(self):
        self.requires("eigen/3.4.0", transitive_headers=True)
        if self.options.mpi:
            self.requires("openmpi/4.1.0", transitive_headers=True)

    def layout(self):
        cmake_layout(self)

    def generate(self):
        toolchain = CMakeToolchain(self)
        for name in ("TESTS", "EXAMPLES", "BENCHMARKS"):
            toolchain.cache_variables[f"ANNULUS_BUILD_{name}"] = False
        toolchain.cache_variables["ANNULUS_WITH_MPI"] = bool(self.options.mpi)
        toolchain.cache_variables["ANNULUS_BUILD_C"] = bool(self.options.c_interface)
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # The installed annulusConfig.cmake defines the targets.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "annulus")]
