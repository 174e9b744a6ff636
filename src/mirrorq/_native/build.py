"""Build mirrorq._native with cffi: `wire` and `rail` are what setuptools' cffi_modules names.

The declarations that Python sees are read out of wire.h and rail.h: they stand in one place.
Warnings are errors only where a developer builds (tests/wire/sanitize.sh): a compiler to come
must not keep a user from installing.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig

from cffi import FFI  # type: ignore[import-untyped]

FRAME_SOURCES = ("mq_crc.c", "mq_frame.c")
WIRE_SOURCES = (*FRAME_SOURCES, "mq_file.c")
RAIL_SOURCES = (*FRAME_SOURCES, "mq_rail.c", "mq_rail_thread.c")
WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter")  # cffi's glue has unused parameters
ARGUMENTS = ("-std=c11", "-O3", "-fvisibility=hidden", *WARNINGS)
LIBRARIES = ("dl", "pthread") if sys.platform == "linux" else ()

WIRE_PREAMBLE = """\
#include "wire.h"

/* cffi's glue releases the GIL around every call. Beside a thread that computes in Python each
 * release can cost a switch interval (5 ms), while the call itself takes 0.1 to 10 us, and 3 ms
 * for a frame of 32 MiB. Measured there, for one message packed, stamped, checked and split:
 * 317 us with the release, 6 to 10 without. So these calls, none of which blocks, keep it. */
#undef Py_BEGIN_ALLOW_THREADS
#undef Py_END_ALLOW_THREADS
#define Py_BEGIN_ALLOW_THREADS {
#define Py_END_ALLOW_THREADS }
"""

RAIL_PREAMBLE = """\
#include "rail.h"

/* As in _wire: these calls keep the GIL, but for those that wait for the rail's thread. */
#undef Py_BEGIN_ALLOW_THREADS
#undef Py_END_ALLOW_THREADS
#define Py_BEGIN_ALLOW_THREADS {
#define Py_END_ALLOW_THREADS }

static void released_stop(mq_rail *rail)
{
    PyThreadState *state = PyEval_SaveThread();
    mq_rail_stop(rail);
    PyEval_RestoreThread(state);
}

static int released_remove_socket(mq_rail *rail, uint32_t peer)
{
    PyThreadState *state = PyEval_SaveThread();
    int error = mq_rail_remove_socket(rail, peer);
    PyEval_RestoreThread(state);
    return error;
}

#define mq_rail_stop released_stop
#define mq_rail_remove_socket released_remove_socket
"""


def declarations(header: str) -> str:
    """Return what stands between the [cdef] marks of a header."""
    found = re.search(r"/\* \[cdef\] \*/(.*)/\* \[end of cdef\] \*/", header, re.DOTALL)
    if found is None:
        raise RuntimeError("a header has lost its [cdef] marks")
    return found.group(1)


def make_ffibuilder(
    name: str,
    preamble: str,
    sources: tuple[str, ...],
    directory: str,
    arguments: tuple[str, ...] = (),
    libraries: tuple[str, ...] = (),
) -> FFI:
    """Describe an extension.

    Args:
        name: of the extension, without its underscore: that of its header, too.
        preamble: C before cffi's glue.
        sources: C files.
        directory: where these and the headers are, relative to the project's root as
            setuptools demands.
        arguments: more for the compiler and the linker (a sanitizer).
        libraries: for the linker.
    """
    ffi = FFI()
    with open(os.path.join(directory, f"{name}.h"), encoding="ascii") as file:
        ffi.cdef(declarations(file.read()))
    ffi.set_source(
        f"mirrorq._native._{name}",
        preamble,
        sources=[os.path.join(directory, source) for source in sources],
        include_dirs=[directory],
        depends=[os.path.join(directory, header) for header in ("wire.h", "rail.h")],
        libraries=list(libraries),
        extra_compile_args=[*ARGUMENTS, *arguments],
        extra_link_args=[*arguments],
        # A build without the GIL has no stable ABI.
        py_limited_api=not sysconfig.get_config_var("Py_GIL_DISABLED"),
    )
    return ffi


def make_wire(directory: str, arguments: tuple[str, ...] = ()) -> FFI:
    """Checksums and frames."""
    return make_ffibuilder("wire", WIRE_PREAMBLE, WIRE_SOURCES, directory, arguments)


def make_rail(directory: str, arguments: tuple[str, ...] = ()) -> FFI:
    """The rail, which has a thread."""
    return make_ffibuilder("rail", RAIL_PREAMBLE, RAIL_SOURCES, directory, arguments, LIBRARIES)


_HERE = os.path.relpath(os.path.dirname(os.path.abspath(__file__)))
wire = make_wire(_HERE)
rail = make_rail(_HERE)
