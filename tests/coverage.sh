#!/usr/bin/env bash
# Line coverage of include/annulus by the unit tests and the corpora of the fuzz targets, with g++ and gcovr: builds
# them in build/coverage for the baseline instruction set, runs them, prints the coverage of each header and writes
# build/coverage/html.
# Fails under ANNULUS_COVERAGE_LEAST percent (default 95). coverage.cfg lists what does not count, and why.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v gcovr >/dev/null || { printf 'gcovr is not installed; on Debian: apt-get install gcovr\n' >&2; exit 2; }

cmake --preset coverage >/dev/null
cmake --build --preset coverage --parallel "$(nproc)"
find build/coverage -name '*.gcda' -delete
mkdir -p build/coverage/html
ctest --test-dir build/coverage --tests-regex '^(unit|fuzz)\.' --label-exclude '^hosted$' --output-on-failure --parallel "$(nproc)"
gcovr --config tests/coverage.cfg -j "$(nproc)" --object-directory build/coverage --txt \
  --html-details build/coverage/html/index.html --fail-under-line "${ANNULUS_COVERAGE_LEAST:-95}" build/coverage
