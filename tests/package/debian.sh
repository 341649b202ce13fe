#!/usr/bin/env bash
# debian.sh <cpack> <build folder> <version> <compiler> <source>...: makes the Debian package, checks its fields and what it
# holds, unpacks it, and builds and runs a program with it.
set -eu
cpack=$1
build=$2
version=$3
compiler=$4
shift 4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cpack" --config "$build/CPackConfig.cmake" -G DEB -B "$work/package" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
package=$(ls "$work"/package/*.deb)
field() { dpkg-deb --field "$package" "$1"; }
test "$(field Package)" = annulus
test "$(field Version)" = "$version"
case "$(field Depends)" in *"libeigen3-dev (>= 3.4)"*libc6*|*libc6*"libeigen3-dev (>= 3.4)"*) ;; *) field Depends; exit 1 ;; esac
dpkg-deb --extract "$package" "$work/system"
for file in bin/annulus include/annulus/annulus.hpp share/doc/annulus/README.md share/doc/annulus/examples/guide/README.md; do
  test -s "$work/system/usr/$file" || { echo "the package has no $file"; exit 1; }
done
test "$("$work/system/usr/bin/annulus" --version)" = "annulus $version"
modules=$(dirname "$(find "$work/system" -name annulus_cpu.pc)")
read -ra flags <<<"$(PKG_CONFIG_PATH=$modules "$ANNULUS_PKG_CONFIG" --cflags --libs annulus_cpu)"
"$compiler" -std=c++20 "$@" "${flags[@]}" -o "$work/program"
"$work/program"
