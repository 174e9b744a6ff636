"""What all tests share."""

from __future__ import annotations

import signal

from hypothesis import settings

# A loaded machine is no bug: no test depends on how long an example takes.
settings.register_profile("mirrorq", deadline=None)
settings.load_profile("mirrorq")

# A shell that runs the tests in the background has them, and all that they start, ignore SIGINT.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
