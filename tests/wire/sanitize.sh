#!/usr/bin/env bash
# Builds the C part with AddressSanitizer and UndefinedBehaviorSanitizer, warnings as errors, and
# runs the tests of frames with it. Any stray read, write, shift or overflow ends the run.
set -euo pipefail

cd "$(dirname "$0")/../.."
root=$PWD
python=${PYTHON:-.venv/bin/python}
case $python in
    /* | "") ;;
    */*) python=$root/$python ;;
esac
tree=$root/.native/sanitize

# A copy of the package, so that the one in use keeps its extension.
rm -rf "$tree"
mkdir -p "$tree"
cp -R "$root/src/mirrorq" "$tree/mirrorq"
rm -f "$tree"/mirrorq/_native/*.so

cd "$tree"
"$python" - <<'BUILD'
import os
import runpy

build = runpy.run_path("mirrorq/_native/build.py")
flags = ("-Werror", "-g", "-O1", "-fno-omit-frame-pointer", "-fsanitize=address,undefined",
         "-fno-sanitize-recover=all")
build["make_ffibuilder"](os.path.abspath("mirrorq/_native"), flags).compile(tmpdir=".")
BUILD

export PYTHONPATH=$tree
# Each bytes object becomes an allocation of its own, so that a read past its end is seen.
export PYTHONMALLOC=malloc
# CPython keeps objects to its end; only errors of access are looked for.
export ASAN_OPTIONS=detect_leaks=0
# Python itself is not instrumented: the run-time library has to be there before it.
LD_PRELOAD=$(${CC:-cc} -print-file-name=libasan.so)
export LD_PRELOAD
"$python" -c "
from mirrorq._native import _wire
assert _wire.__file__.startswith('$tree'), f'not the sanitized build: {_wire.__file__}'
"
"$python" -m pytest -q -p no:cacheprovider -c /dev/null --rootdir "$root" \
    "$root"/tests/wire/test_crc32c.py "$root"/tests/wire/test_frames.py \
    "$root"/tests/wire/test_frames_hostile.py "$root"/tests/wire/test_golden_frames.py
