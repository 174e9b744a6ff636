"""How a process of ours begins: by `launched`, as a script of which this file is the first.

It takes nothing from its starter that is not for it: no blocked signal, no working directory. Its
modules are the standard library's first, as in any process; then mirrorq, from where its starter
has it; then whatever its interpreter has installed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path


def launched(module: str, python: str) -> subprocess.Popen[bytes]:
    """A module of this room as a process of its own, with pipes to its input and its output."""
    return subprocess.Popen(
        [python, "-P", __file__, f"mirrorq.node.{module}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Without buffers, whose locks a forked child could inherit taken.
        bufsize=0,
        # Ctrl-C in a terminal is for the application, which then stops this.
        start_new_session=True,
    )


def _place_of_mirrorq() -> int:
    """Where in `sys.path` it goes: behind the standard library, as site-packages would. A package
    that lies beside it and has the name of a standard module hides none."""
    standard = os.path.dirname(os.__file__)
    last = 0
    for index, folder in enumerate(sys.path):
        if folder == standard or os.path.basename(folder) == "lib-dynload":
            last = index + 1
    return last


def _main() -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.chdir("/")
    sys.path.insert(_place_of_mirrorq(), str(Path(__file__).absolute().parents[2]))
    status: int = import_module(sys.argv[1]).main()
    return status


if __name__ == "__main__":
    sys.exit(_main())
