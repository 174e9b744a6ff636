#!/usr/bin/env bash
# Builds the C part with sanitizers, warnings as errors, and runs its tests with it: once with
# AddressSanitizer and UndefinedBehaviorSanitizer, and what has threads with ThreadSanitizer. Any
# stray read, write, shift or overflow, and any race, ends the run.
set -euo pipefail

cd "$(dirname "$0")/../.."
root=$PWD
python=${PYTHON:-.venv/bin/python}
case $python in
    /* | "") ;;
    */*) python=$root/$python ;;
esac
# Each bytes object becomes an allocation of its own, so that a read past its end is seen.
export PYTHONMALLOC=malloc
# CPython keeps objects to its end: leaks are looked for by the tests.
export ASAN_OPTIONS=detect_leaks=0
export TSAN_OPTIONS="halt_on_error=1 suppressions=$root/tests/wire/tsan.supp"

# Builds into a copy of the package, so that the one in use keeps its extensions.
build() { # $1: which sanitizers
    tree=$root/.native/$1
    rm -rf "$tree"
    mkdir -p "$tree"
    cp -R "$root/src/mirrorq" "$tree/mirrorq"
    rm -f "$tree"/mirrorq/_native/*.so
    (
        cd "$tree"
        "$python" - "$1" <<'BUILD'
import os
import runpy
import sys

build = runpy.run_path("mirrorq/_native/build.py")
flags = ("-Werror", "-g", "-O1", "-fno-omit-frame-pointer", f"-fsanitize={sys.argv[1]}",
         "-fno-sanitize-recover=all")
for make in ("make_wire", "make_rail"):
    build[make](os.path.abspath("mirrorq/_native"), flags).compile(tmpdir=".")
BUILD
    )
}

run() { # $1: the run-time library, then the tests
    # Python itself is not instrumented: the run-time library has to be there before it.
    library=$(${CC:-cc} -print-file-name="$1")
    shift
    PYTHONPATH=$tree LD_PRELOAD=$library "$python" -c "
from mirrorq._native import _rail, _wire
for one in _rail, _wire:
    assert one.__file__.startswith('$tree'), f'not the sanitized build: {one.__file__}'
"
    PYTHONPATH=$tree LD_PRELOAD=$library "$python" -m pytest -q -p no:cacheprovider -c /dev/null \
        --rootdir "$root" "${@/#/$root/tests/wire/}"
}

build address,undefined
run libasan.so test_crc32c.py test_file_state.py test_frames.py test_frames_hostile.py \
    test_golden_frames.py test_rail.py test_rail_thread.py
build thread
run libtsan.so test_rail_thread.py
