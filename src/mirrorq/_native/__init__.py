"""The C part: checksums and frames, one call a batch (wire.h has the layout).

Built by build.py through cffi. `wire.frames` is the only user; everybody else uses that.
"""

from __future__ import annotations

from mirrorq._native._wire import ffi, lib

__all__ = ["ffi", "lib"]
