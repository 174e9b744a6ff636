"""The steps of a node's end, in order. Pure: carried out by the driver and by the simulator.

1. The thread that uses the transport, the rail and the store closes them, after its last round. So
   a close that does not wait for a slow disk takes no resource away from the thread.
2. A node that has failed, also during the end, writes nothing more. Its store is left as by
   SIGKILL, and the next start takes in the content of the logs. A rail has promised its written
   ops, even if the node has not taken them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum


class Ending(Enum):
    """One step of a node's end."""

    STOP_RAIL = "stop rail"
    """The rail's thread ends. The node takes the written ops later."""
    WRITE_REST = "write rest"
    """Take the rail's ops. Commit the ops and all deferred writes."""
    TELL_WAITING = "tell waiting"
    """Report the node's end to handles and calls of the process."""
    CLOSE_TRANSPORT = "close transport"
    ABANDON_TRANSPORT = "abandon transport"
    """Other nodes then know the node as dead. Unsent messages are dropped."""
    FREE_RAIL = "free rail"
    """The rail's sockets are closed."""
    CLOSE_STORE = "close store"
    """Close the logs: LMDB has all of their content."""
    ABANDON_STORE = "abandon store"
    """Leave the logs and their marks in place."""


def endings(has_failed: Callable[[], bool]) -> Iterator[Ending]:
    """Yield the steps. `has_failed` is called before each step that depends on the result."""
    yield Ending.STOP_RAIL
    if not has_failed():
        yield Ending.WRITE_REST
    yield Ending.TELL_WAITING
    yield Ending.ABANDON_TRANSPORT if has_failed() else Ending.CLOSE_TRANSPORT
    yield Ending.FREE_RAIL
    yield Ending.ABANDON_STORE if has_failed() else Ending.CLOSE_STORE
