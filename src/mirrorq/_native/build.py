"""Build mirrorq._native._wire with cffi: `ffibuilder` is what setuptools' cffi_modules names.

The declarations that Python sees are read out of wire.h, so that they stand in one place.
Warnings are errors only where a developer builds (tests/wire/sanitize.sh): a compiler to come
must not keep a user from installing.
"""

from __future__ import annotations

import os
import re
import sysconfig

from cffi import FFI  # type: ignore[import-untyped]

SOURCES = ("mq_crc.c", "mq_frame.c")
WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter")  # cffi's glue has unused parameters
ARGUMENTS = ("-std=c11", "-O3", "-fvisibility=hidden", *WARNINGS)

PREAMBLE = """\
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


def declarations(header: str) -> str:
    """Return what stands between the [cdef] marks of wire.h."""
    found = re.search(r"/\* \[cdef\] \*/(.*)/\* \[end of cdef\] \*/", header, re.DOTALL)
    if found is None:
        raise RuntimeError("wire.h has lost its [cdef] marks")
    return found.group(1)


def make_ffibuilder(directory: str, arguments: tuple[str, ...] = ()) -> FFI:
    """Describe the extension.

    Args:
        directory: where wire.h and the C files are, relative to the project's root as
            setuptools demands.
        arguments: more for the compiler and the linker (a sanitizer).
    """
    ffi = FFI()
    with open(os.path.join(directory, "wire.h"), encoding="ascii") as file:
        ffi.cdef(declarations(file.read()))
    ffi.set_source(
        "mirrorq._native._wire",
        PREAMBLE,
        sources=[os.path.join(directory, name) for name in SOURCES],
        include_dirs=[directory],
        depends=[os.path.join(directory, "wire.h")],
        extra_compile_args=[*ARGUMENTS, *arguments],
        extra_link_args=[*arguments],
        # A build without the GIL has no stable ABI.
        py_limited_api=not sysconfig.get_config_var("Py_GIL_DISABLED"),
    )
    return ffi


ffibuilder = make_ffibuilder(os.path.relpath(os.path.dirname(os.path.abspath(__file__))))
