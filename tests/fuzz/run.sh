#!/usr/bin/env bash
# Builds the fuzz targets and runs each for some seconds, one for each core at a time. New inputs are kept in
# build/fuzz/corpus, so that a later run goes on from there; findings are written to build/fuzz/findings.
#
# usage: tests/fuzz/run.sh [SECONDS [TARGET...]]   default: 60 seconds, every target
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

seconds=${1:-60}
case $seconds in '' | 0 | *[!0-9]*) printf 'seconds: seen "%s", accepted: a whole number above 0\n' "$seconds" >&2; exit 2 ;; esac
shift $(($# > 0 ? 1 : 0))
[ $# -gt 0 ] || set -- tests/fuzz/corpus/*/
for target; do
  [ -d "tests/fuzz/corpus/$(basename "$target")" ] || {
    printf 'target: seen "%s", accepted: %s\n' "$target" "$(ls tests/fuzz/corpus | tr '\n' ' ')" >&2
    exit 2
  }
done
command -v clang++ >/dev/null || { printf 'clang++ is not installed; libFuzzer requires it\n' >&2; exit 2; }

cmake --preset fuzz >/dev/null
cmake --build --preset fuzz --parallel "$(nproc)" --target annulus_fuzzers
mkdir -p build/fuzz/findings

# run_target NAME SECONDS
run_target() {
  local log=build/fuzz/$1.log
  mkdir -p "build/fuzz/corpus/$1"
  if "build/fuzz/fuzz/annulus_fuzz_$1" -max_total_time="$2" -max_len=2048 -timeout=30 -rss_limit_mb=4096 \
    -artifact_prefix="build/fuzz/findings/$1-" "build/fuzz/corpus/$1" "tests/fuzz/corpus/$1" >"$log" 2>&1; then
    printf '%-14s %s\n' "$1" "$(tail -n 1 "$log")"
  else
    printf '%-14s FINDING, its input in build/fuzz/findings:\n' "$1"
    grep -E 'property violated|runtime error|ERROR|what\(\)|Test unit written' "$log" || tail -n 20 "$log"
    return 1
  fi
}
export -f run_target
printf '%s\n' "$@" | xargs -n 1 basename | xargs -P "$(nproc)" -I NAME bash -c 'run_target NAME "$0"' "$seconds"
