from spack.package import *


class Annulus(CMakePackage):
    """Exact ring attention, forward and backward, over sequences that are spread on the ranks of a ring."""

    # The sources are the tree in which `spack dev-build` is called.
    version("main")

    license("Apache-2.0")

    variant("mpi", default=True, description="Rings over MPI")
    variant("c", default=True, description="The C interface")

    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    depends_on("eigen@3.4:")
    depends_on("mpi", when="+mpi")

    conflicts("%gcc@:11", msg="C++20 as of GCC 12 is needed")

    def cmake_args(self):
        return [
            self.define("ANNULUS_BUILD_TESTS", False),
            self.define("ANNULUS_BUILD_EXAMPLES", False),
            self.define("ANNULUS_BUILD_BENCHMARKS", False),
            self.define_from_variant("ANNULUS_WITH_MPI", "mpi"),
            self.define_from_variant("ANNULUS_BUILD_C", "c"),
        ]
