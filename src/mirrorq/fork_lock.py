"""The lock under which a forked child makes its own of what it has from its parent.

Held over each fork, so that no child is born with it taken by a thread that it does not have.
"""

from __future__ import annotations

import os
import threading

__all__ = ["FORK_LOCK"]

FORK_LOCK = threading.RLock()
os.register_at_fork(
    before=FORK_LOCK.acquire,
    after_in_parent=FORK_LOCK.release,
    after_in_child=FORK_LOCK.release,
)
