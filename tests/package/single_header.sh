#!/usr/bin/env bash
# single_header.sh <cmake> <build folder> <include folder of Eigen> <compiler> <source>...: makes the single header, and
# builds and runs a program with it in a folder where no other header of the library is.
set -eu
cmake=$1
build=$2
eigen=$3
compiler=$4
shift 4
"$cmake" --build "$build" --target annulus_single_header >/dev/null
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$build/single" "$work/include"
"$compiler" -std=c++20 -I "$work/include" -isystem "${eigen:-/usr/include/eigen3}" "$@" -pthread -o "$work/program"
"$work/program"
