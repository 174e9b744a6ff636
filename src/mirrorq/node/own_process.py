"""Start of the project's own processes: `launched` runs its own file as the script.

The process inherits neither blocked signals nor the working directory of its starter. Modules of
the standard library come first, as in any process. The starter's mirrorq comes next, then the
packages that the interpreter has installed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any


def launched(module: str, python: str, given: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Run a module of the room as a process of its own, with pipes to its input and its output.

    Args:
        given: the first line of its input, as JSON. A process that has ended does not read it.

    Raises:
        OSError: the interpreter cannot be run.
    """
    process = subprocess.Popen(
        [python, "-P", __file__, f"mirrorq.node.{module}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Without buffers, whose locks a forked child could inherit taken.
        bufsize=0,
        # Ctrl-C in a terminal is for the application, which then stops the process.
        start_new_session=True,
    )
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(json.dumps(given).encode() + b"\n")
    return process


def _place_of_mirrorq() -> int:
    """Return the place of mirrorq in `sys.path`: behind the standard library, as site-packages. So
    a neighbouring package with the name of a standard module hides no module."""
    standard = os.path.dirname(os.__file__)
    last = 0
    for index, folder in enumerate(sys.path):
        if folder == standard or os.path.basename(folder) == "lib-dynload":
            last = index + 1
    return last


def _main() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o077)  # The log and all other files are for the user alone.
    os.chdir("/")
    sys.path.insert(_place_of_mirrorq(), str(Path(__file__).absolute().parents[2]))
    status: int = import_module(sys.argv[1]).main()
    return status


if __name__ == "__main__":
    sys.exit(_main())
