#!/bin/sh
# Builds the addon with AddressSanitizer and UndefinedBehaviorSanitizer in a folder of its own, and runs compiled tests
# against it. The ordinary build stays as it is.
#
#   scripts/asan.sh [test.js ...]      default: all compiled system tests
#
# Node itself is not instrumented, so the runtime is preloaded; leaks are not looked for, because V8 never frees all.
# vm.overcommit or a limit on address space can make the runtime fail to start: it reserves terabytes, and uses few.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
build=$(mktemp -d "${TMPDIR:-/tmp}/zerotx-asan.XXXXXX")
trap 'rm -rf "$build"' EXIT INT TERM
# Tests that drop root in a child must be able to load it.
chmod 755 "$build"

cp -R "$root/native" "$root/binding.gyp" "$root/package.json" "$build"
flags='-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g -O1'
(
  cd "$build"
  # npm brings its own node-gyp, which is on PATH inside npm scripts only.
  CFLAGS="$flags" LDFLAGS="$flags" npm run --silent build:native >build.log 2>&1 || {
    cat build.log >&2
    exit 1
  }
)

if [ $# -eq 0 ]; then
  set -- "$root"/out/test/sys/*.sys.test.js
fi
ZEROTX_ADDON="$build/build/Release/zerotx.node" \
  LD_PRELOAD="$(${CC:-cc} -print-file-name=libasan.so)" \
  ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 \
  UBSAN_OPTIONS=print_stacktrace=1 \
  "${NODE:-node}" --test "$@"
