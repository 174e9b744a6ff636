"""The C part: checksums and frames, one call a batch (wire.h has the layout); states of files.

Built by build.py through cffi. Its users are `wire.frames` and `store.open_file`.
"""

from __future__ import annotations

from mirrorq._native._wire import ffi, lib

__all__ = ["ffi", "lib"]
