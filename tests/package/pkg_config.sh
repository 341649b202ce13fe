#!/usr/bin/env bash
# pkg_config.sh <folder of .pc files> <compiler> <tile program> <MPI program> <source>...: builds and runs a program with
# each module that the package has, from another place than the one that it was installed to; with annulus_nki, the one
# of a single file that uses tile programs. The MPI program is built, not run. ANNULUS_PKG_CONFIG and ANNULUS_MPICXX: the
# programs to use.
set -eu
modules=$1
compiler=$2
tile_program=$3
mpi_program=$4
shift 4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$(cd "$modules/../.." && pwd)" "$work/moved"
PKG_CONFIG_PATH=$work/moved/${modules#"$(cd "$modules/../.." && pwd)/"}
export PKG_CONFIG_PATH

# build MODULE COMPILER ARGUMENT...
build() {
  local module=$1 flags libraries
  shift
  read -ra flags <<<"$("$ANNULUS_PKG_CONFIG" --cflags "$module")"
  read -ra libraries <<<"$("$ANNULUS_PKG_CONFIG" --libs "$module")"
  case "${flags[*]}" in *"$work/moved"*) ;; *) echo "$module names another folder: ${flags[*]}"; exit 1 ;; esac
  "$@" "${flags[@]}" "${libraries[@]}" -o "$work/program"
}

# Warnings that Eigen's own headers have must not reach its users.
strict=(-Wall -Wextra -Wold-style-cast -Werror)
for module in annulus annulus_cpu; do
  build $module "$compiler" -std=c++20 "${strict[@]}" "$@"
  "$work/program"
done
build annulus_nki "$compiler" -std=c++20 "$tile_program"
"$work/program"
if [ -f "$PKG_CONFIG_PATH/annulus_mpi.pc" ]; then
  build annulus_mpi env OMPI_CXX="$compiler" MPICH_CXX="$compiler" "$ANNULUS_MPICXX" -std=c++20 "$mpi_program"
fi

# use_in_c MODULE FUNCTION
use_in_c() {
  printf '#include <annulus/annulus.h>\nint main(void) { return &%s == 0; }\n' "$2" >"$work/program.c"
  build "$1" "$compiler" -x c "$work/program.c" -x none
  LD_LIBRARY_PATH=$("$ANNULUS_PKG_CONFIG" --variable=libdir "$1") "$work/program"
}
[ ! -f "$PKG_CONFIG_PATH/annulus_c.pc" ] || use_in_c annulus_c annulus_forward
[ ! -f "$PKG_CONFIG_PATH/annulus_c_mpi.pc" ] || use_in_c annulus_c_mpi annulus_ring_from_mpi
test "$("$ANNULUS_PKG_CONFIG" --modversion annulus)" = "$("$ANNULUS_PKG_CONFIG" --modversion annulus_cpu)"
