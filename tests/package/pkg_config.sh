#!/usr/bin/env bash
# pkg_config.sh <folder of .pc files> <compiler> <tile program> <source>...: builds and runs a program with each C++ module,
# from another place than the one that the package was installed to; with annulus_nki, the one of a single file that uses
# tile programs.
set -eu
modules=$1
compiler=$2
tile_program=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r "$(cd "$modules/../.." && pwd)" "$work/moved"
PKG_CONFIG_PATH=$work/moved/${modules#"$(cd "$modules/../.." && pwd)/"}
export PKG_CONFIG_PATH
for module in annulus annulus_cpu annulus_nki; do
  [ "$module" != annulus_nki ] || set -- "$tile_program"
  read -ra flags <<<"$("$ANNULUS_PKG_CONFIG" --cflags "$module")"
  read -ra libraries <<<"$("$ANNULUS_PKG_CONFIG" --libs "$module")"
  case "${flags[*]}" in *"$work/moved"*) ;; *) echo "$module names another folder: ${flags[*]}"; exit 1 ;; esac
  "$compiler" -std=c++20 "$@" "${flags[@]}" "${libraries[@]}" -o "$work/program"
  "$work/program"
done
test "$("$ANNULUS_PKG_CONFIG" --modversion annulus)" = "$("$ANNULUS_PKG_CONFIG" --modversion annulus_cpu)"
