"""SIGTERM of the host: a clean hand-over first, then the usual end by SIGTERM.

Active only if SIGTERM has its default disposition when a node is made in the main thread. A handler
that the application sets before or after the node keeps control, and so does an ignored signal. A
second SIGTERM ends the process at once.

The handler only starts the thread that closes the nodes. The handler interrupts the main thread at
any point, and the main thread may hold the locks that closing needs.
"""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import signal
import threading
from types import FrameType
from weakref import WeakSet

from mirrorq.api.exit_flush import flush_all
from mirrorq.api.sharing import Closable
from mirrorq.api.termination import handler_of
from mirrorq.waiting import Latch

log = logging.getLogger("mirrorq")

EXIT_WAIT_S = 15.0
"""The interpreter's end waits no longer for closing nodes, in seconds: each takes 5 s at most.
Earlier puts get as long as `Config.exit_flush_ms`."""


_nodes: WeakSet[Closable] = WeakSet()
_owner_pid = 0
"""The process that has the handler; a child forked from it has copies of nodes, not nodes."""
_closed = Latch()
_is_closing = False


def end_with(node: Closable) -> bool:
    """Have SIGTERM close a node, if no other handler is set; return true if SIGTERM will."""
    global _owner_pid
    if threading.current_thread() is not threading.main_thread():
        return False
    handler = handler_of(signal.SIGTERM)
    if handler is not _on_sigterm:
        if handler is not signal.SIG_DFL:
            return False
        signal.signal(signal.SIGTERM, _on_sigterm)
    if _owner_pid != os.getpid():
        _owner_pid = os.getpid()
        _nodes.clear()
        atexit.register(_wait)
    _nodes.add(node)
    return True


def forget(node: Closable) -> None:
    """Forget a closed node; after the last node, restore SIGTERM's default disposition."""
    _nodes.discard(node)
    is_main = threading.current_thread() is threading.main_thread()
    if not _nodes and is_main and signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    global _is_closing
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if _owner_pid != os.getpid() or not _nodes:
        os.kill(os.getpid(), signal.SIGTERM)
        return
    _is_closing = True
    # Not threading.Thread: starting one takes a lock that the main thread may hold just now.
    _thread.start_new_thread(_close_all, ())


def _close_all() -> None:
    flush_all(is_stopping=True)
    for node in list(_nodes):
        try:
            node.close()
        except BaseException:
            log.exception("at SIGTERM a node could not be closed")
    _closed.set()
    os.kill(os.getpid(), signal.SIGTERM)


def _wait() -> None:
    """Wait at exit for nodes that are being closed."""
    if _is_closing and _owner_pid == os.getpid():
        _closed.wait(EXIT_WAIT_S)
