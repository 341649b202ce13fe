#!/usr/bin/env bash
# Cost of compiling a program with one forward and one backward call: seconds and peak memory, medians of three; with the
# reference backend, the CPU backend of annulus::cpu, and the header-only one.
# usage: benchmarks/compile_time.sh [compiler [flag...]]      requires GNU time
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -gt 0 ] || set -- g++ -march=native
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cat > "$folder/program.cpp" <<'CPP'
#include <annulus/annulus.hpp>
int main() {
  annulus::run_ring(4, [](annulus::SimulatedRing& ring) {
    Eigen::Tensor<float, 4, Eigen::RowMajor> q(1, 16, 2, 8), k(1, 16, 2, 8), v(1, 16, 2, 8);
    annulus::BACKEND backend;
    annulus::RingAttention attention(ring, backend, {.mask = annulus::causal()});
    auto const forward = attention.forward(q, k, v);
    attention.backward(forward.output, forward, q, k, v);
  });
}
CPP

measure() {
  local name=$1
  shift
  printf '%-40s' "$name"
  for _ in 1 2 3; do
    command time -f '%e s elapsed, %U s of CPU, %M KiB' "$@" -std=c++20 -O2 -I "$root/include" -isystem /usr/include/eigen3 \
      -c "$folder/program.cpp" -o "$folder/program.o" 2>&1
  done | sort -n | sed -n 2p
}
measure 'reference backend' "$@" -DBACKEND=ReferenceBackend
measure 'CPU backend, annulus::cpu' "$@" -DBACKEND=CpuBackend -DANNULUS_CPU_COMPILED
measure 'CPU backend, header-only' "$@" -DBACKEND=CpuBackend
