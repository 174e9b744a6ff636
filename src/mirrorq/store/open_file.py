"""Does an open file still have its name? Asked before each commit.

Python's `os.fstat` and `os.stat` release the GIL. Beside a computing Python thread the GIL returns
only after a switch interval (5 ms). The C function keeps the GIL, and takes about a microsecond.
"""

from __future__ import annotations

import errno

from mirrorq._native import lib


def has_name(descriptor: int, inode: int, directory: int = -1, name: str = "") -> bool:
    """Return true if a file was neither deleted nor replaced since it was opened.

    Args:
        descriptor: of the open file.
        inode: the file's number when it was opened.
        directory: descriptor of the directory with the file's name; -1: any name is enough.
        name: in the directory.

    Raises:
        OSError: the descriptor was closed, or it leads to another file.
    """
    state = lib.mq_file_state(descriptor, inode, directory, name.encode())
    if state == lib.MQ_FILE_CLOSED:
        raise OSError(errno.EBADF, f"descriptor {descriptor} was closed by other code")
    return state == lib.MQ_FILE_THERE
