#!/usr/bin/env bash
# Installation, build and run of annulus on a bare Debian 12 or 13, or Ubuntu 24.04. See usage below.
set -eu

usage() {
  cat <<'TEXT'
usage: cmake/bootstrap.sh demo [arguments of `annulus demo`]
       cmake/bootstrap.sh test [arguments of ctest]
       cmake/bootstrap.sh build
       cmake/bootstrap.sh mpich [arguments of ctest]

Each installs with apt-get what is missing (with sudo where the user is not root) and configures build/release (mpich:
build/mpich).
  demo   builds and runs `annulus demo` alone, for this machine's processor
  test   builds and runs the quick tests, for this machine's processor; what is not a kernel is compiled with -O1
  build  builds all targets, with the kernels of all instruction sets; `ctest --preset release` then runs all tests
  mpich  builds tests over MPI in build/mpich, with MPICH instead of the default MPI, and runs these

ANNULUS_CMAKE_ARGUMENTS adds arguments to the configuration, such as -DCMAKE_CXX_COMPILER=clang++.
TEXT
}

say() { printf '== %s\n' "$*" >&2; }
fail() { printf 'bootstrap: %s\n' "$*" >&2; exit 1; }

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$root/build/release

# Whether a part of a package is on this machine, however it was installed.
has_header() {
  local folder
  for folder in /usr/include /usr/local/include /usr/include/eigen3 /usr/local/include/eigen3; do
    [ -e "$folder/$1" ] && return 0
  done
  return 1
}
has_command() { command -v "$1" >/dev/null 2>&1; }
has_numpy() {
  local python
  for python in python3 /usr/bin/python3; do
    "$python" -c 'import numpy' >/dev/null 2>&1 && return 0
  done
  return 1
}
has_catch2() { has_header catch2/catch.hpp || has_header catch2/catch_test_macros.hpp; }
has_mpi() { has_command mpicxx && has_command mpirun; }
has_mpich() { has_command mpicxx.mpich && has_command mpiexec.mpich; }
has_benchmark() { has_header benchmark/benchmark.h; }

missing_packages() {
  has_command g++ || echo g++
  has_command cmake || echo cmake
  has_command ninja || echo ninja-build
  has_header unsupported/Eigen/CXX11/Tensor || echo libeigen3-dev
  has_header CLI/CLI.hpp || echo libcli11-dev
  has_header nlohmann/json.hpp || echo nlohmann-json3-dev
  [ "$mode" != mpich ] || has_mpich || echo libmpich-dev mpich
  [ "$mode" = demo ] || has_catch2 || echo catch2
  if [ "$mode" != demo ] && [ "$mode" != mpich ]; then
    has_mpi || echo libopenmpi-dev openmpi-bin
    has_benchmark || echo libbenchmark-dev
    has_command python3 || echo python3
    has_numpy || echo python3-numpy
  fi
}

# Runs a command and shows its output only if it fails.
quietly() {
  local log status=0
  log=$(mktemp)
  "$@" >"$log" 2>&1 </dev/null || status=$?
  [ "$status" -eq 0 ] || cat "$log" >&2
  rm -f "$log"
  return "$status"
}

install_missing() {
  local packages as_root=()
  packages=$(missing_packages | tr '\n' ' ')
  packages=${packages% }
  [ -n "$packages" ] || return 0
  has_command apt-get ||
    fail "needed but not found: $packages (names of Debian packages); there is no apt-get to install them with"
  if [ "$(id -u)" -ne 0 ]; then
    has_command sudo || fail "not root, and no sudo; as root: apt-get install --no-install-recommends $packages"
    as_root=(sudo)
    sudo -v || fail "sudo was refused; as root: apt-get install --no-install-recommends $packages"
  fi
  say "installing $packages"
  quietly "${as_root[@]}" apt-get update -q || fail "apt-get update failed"
  # shellcheck disable=SC2086  # one argument a package
  quietly "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $packages ||
    fail "apt-get could not install: $packages"
}

# One job per core, and 1.5 GiB of memory per job.
job_count() {
  local cores memory
  cores=$(nproc)
  memory=$(awk '/^MemAvailable:/ { print int($2 / 1572864) }' /proc/meminfo)
  [ "${memory:-0}" -ge 1 ] || memory=1
  echo $((cores < memory ? cores : memory))
}

on_if() { if "$@"; then echo ON; else echo OFF; fi; }

# configure_with ARGUMENTS
configure_with() {
  say "configuring $build"
  # shellcheck disable=SC2086  # several arguments
  quietly cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release "$@" ${ANNULUS_CMAKE_ARGUMENTS:-} ||
    fail "the configuration failed"
}

# Configures what the installed packages allow, so that `demo` after `test` does not switch the tests off again. `demo`
# and `test` change nothing that `build` has configured.
configure() {
  local extent=()
  if [ "$mode" = build ]; then
    extent=(-DANNULUS_CPU_LEVELS=ON -DANNULUS_SHORT_BUILD=OFF)
  elif ! grep -q '^ANNULUS_CPU_LEVELS:.*=ON$' "$build/CMakeCache.txt" 2>/dev/null; then
    extent=(-DANNULUS_CPU_LEVELS=native -DANNULUS_SHORT_BUILD="$([ "$mode" = test ] && echo ON || echo OFF)")
  fi
  configure_with ${extent[@]+"${extent[@]}"} \
    -DANNULUS_BUILD_EXAMPLES=ON \
    -DANNULUS_BUILD_TESTS="$(on_if has_catch2)" \
    -DANNULUS_BUILD_BENCHMARKS="$(on_if has_benchmark)" \
    -DANNULUS_WITH_MPI="$(on_if has_mpi)"
}

# What the tests over MPI need, with the kernels of one instruction set alone, compiled as in a short build.
configure_mpich() {
  configure_with \
    -DANNULUS_SHORT_BUILD=ON \
    -DANNULUS_CPU_LEVELS=OFF -DANNULUS_BUILD_C=OFF -DANNULUS_BUILD_EXAMPLES=OFF -DANNULUS_BUILD_BENCHMARKS=OFF \
    -DANNULUS_WITH_MPI=ON \
    -DMPI_CXX_COMPILER="$(command -v mpicxx.mpich)" -DMPIEXEC_EXECUTABLE="$(command -v mpiexec.mpich)"
}

build() {
  say "building with $(job_count) jobs"
  cmake --build "$build" --parallel "$(job_count)" "$@" >&2 || fail "the build failed"
}

mode=${1:-}
[ $# -eq 0 ] || shift
case $mode in
  demo)
    install_missing
    configure
    build --target annulus_demo
    exec "$build/bin/annulus_demo" "$@"
    ;;
  test)
    install_missing
    configure
    build --target annulus_quick_tests
    say "testing"
    exec ctest --test-dir "$build" --output-on-failure --no-tests=error --label-regex '^quick$' --parallel "$(nproc)" "$@"
    ;;
  build)
    [ $# -eq 0 ] || { usage >&2; exit 2; }
    install_missing
    configure
    build
    say "built: $build/bin/annulus"
    ;;
  mpich)
    build=$root/build/mpich
    install_missing
    configure_mpich
    build --target annulus_mpi_comm_tests annulus_mpi_attention_tests annulus_mpi_soak
    say "testing"
    exec ctest --test-dir "$build" --output-on-failure --no-tests=error --tests-regex '^(mpi\.(comm|attention)\.[23]|soak\.mpi\.3)$' "$@"
    ;;
  -h | --help) usage ;;
  *)
    usage >&2
    exit 2
    ;;
esac
