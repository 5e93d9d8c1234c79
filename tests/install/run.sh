#!/usr/bin/env bash
# run.sh <cmake> <build folder>: the install tree works, also after it was moved, for both ways of finding it.
set -euo pipefail

cmake=$1 build=$2
consumer=$(cd "$(dirname "${BASH_SOURCE[0]}")/consumer" && pwd)
plugin=$(cd "$consumer/../../../examples/plugin" && pwd)/selfcopy.cc
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log" || { cat "$work/install.log"; exit 1; }
mv "$work/first" "$work/moved"
prefix=$work/moved

if grep -rIl --exclude-dir=bin "$work/first\|$build" "$prefix"; then
  echo "the files above name the place they were built or installed at" >&2
  exit 1
fi

"$cmake" -S "$consumer" -B "$work/found" -DCMAKE_PREFIX_PATH="$prefix" -DPLUGIN_SOURCE="$plugin" >"$work/configure.log" ||
  { cat "$work/configure.log"; exit 1; }
"$cmake" --build "$work/found" >"$work/build.log" || { cat "$work/build.log"; exit 1; }
for program in consumer_c consumer_cpp; do
  echo "find_package, $program: $("$work/found/$program")"
done

pc=$(find "$prefix" -name towline.pc -printf '%h')
flags() { PKG_CONFIG_PATH=$pc pkg-config "$@" towline; }
read -ra compile <<<"$(flags --cflags)"
read -ra link <<<"$(flags --libs)"
library=$(flags --variable=libdir)
"$CC" "$consumer/consumer.c" "${compile[@]}" "${link[@]}" -Wl,-rpath,"$library" -o "$work/by_pkg_config"
echo "pkg-config, version $(flags --modversion): $("$work/by_pkg_config")"

if [[ -f $pc/nixl.pc ]]; then
  read -ra nixl <<<"$(PKG_CONFIG_PATH=$pc pkg-config --cflags --libs nixl)"
  libraries=$(PKG_CONFIG_PATH=$pc pkg-config --variable=libdir nixl)
  "$CXX" -std=c++20 "$consumer/nixl.cpp" "${nixl[@]}" -Wl,-rpath,"$libraries" -Wl,-rpath-link,"$library" -o "$work/nixl"
  echo "pkg-config nixl: $("$work/nixl")"
fi

"$CXX" -std=c++20 -shared -fPIC "$plugin" -o "$work/selfcopy.so" "${compile[@]}"

if [[ -x $prefix/bin/towline ]]; then
  echo "the moved tool: $("$prefix/bin/towline" --version)"
  for file in "$work/selfcopy.so" "$work/found/selfcopy.so"; do
    TOWLINE_PLUGINS=$file "$prefix/bin/towline" info >"$work/info" || { cat "$work/info"; exit 1; }
    grep "^selfcopy *yes" "$work/info" || { cat "$work/info"; echo "the plugin $file was not taken" >&2; exit 1; }
  done
fi
