"""SIGTERM of the host: a clean hand-over first, then the end that SIGTERM has anyway.

Only where nobody else has a say: the disposition is the default one when a node is made in the
main thread. A handler that the application sets before or after that stays in charge, and so does
an ignored signal. A second SIGTERM ends the process at once.

The handler does nothing but start the thread that closes the nodes: it runs in the middle of
whatever the main thread does, which may hold the locks that closing needs.
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
"""The interpreter's end waits no longer for nodes that are being closed: each takes 5 s at most,
and what was put before gets as long as `Config.exit_flush_ms` says."""


_nodes: WeakSet[Closable] = WeakSet()
_owner_pid = 0
"""The process that has the handler; a child forked from it has copies of nodes, not nodes."""
_closed = Latch()
_is_closing = False


def end_with(node: Closable) -> bool:
    """Have SIGTERM close this node, if that is nobody else's matter; say whether it will."""
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
    """The node is closed: when it was the last one, SIGTERM is again what it was."""
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
    """The main thread may end while nodes are being closed: they come first."""
    if _is_closing and _owner_pid == os.getpid():
        _closed.wait(EXIT_WAIT_S)
