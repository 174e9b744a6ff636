"""What a node does at its end, in order. Pure: its driver carries it out, and the simulator's.

1. The thread that uses the transport, the rail and the store closes them, after its last round. A
   close that does not wait for a slow disk takes nothing from under that thread.
2. A node that has failed, also in one of these steps, writes nothing more: its store is left as by
   SIGKILL, and the next start takes in what the logs hold. A rail has promised what it has
   written, whether or not the node has taken it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum


class Ending(Enum):
    """One step of it."""

    STOP_RAIL = "stop rail"
    """Its thread ends. What it has written is still to be taken."""
    WRITE_REST = "write rest"
    """Take what the rail has, and commit that and all that is written behind."""
    TELL_WAITING = "tell waiting"
    """Handles and calls of this process learn that the node is gone."""
    CLOSE_TRANSPORT = "close transport"
    ABANDON_TRANSPORT = "abandon transport"
    """With it others know this node for dead. What has not left is dropped."""
    FREE_RAIL = "free rail"
    """Its sockets are closed."""
    CLOSE_STORE = "close store"
    """The logs end: LMDB has all that they hold."""
    ABANDON_STORE = "abandon store"
    """The logs and their marks stay."""


def endings(has_failed: Callable[[], bool]) -> Iterator[Ending]:
    """Yield the steps; `has_failed` is asked before each that depends on it."""
    yield Ending.STOP_RAIL
    if not has_failed():
        yield Ending.WRITE_REST
    yield Ending.TELL_WAITING
    yield Ending.ABANDON_TRANSPORT if has_failed() else Ending.CLOSE_TRANSPORT
    yield Ending.FREE_RAIL
    yield Ending.ABANDON_STORE if has_failed() else Ending.CLOSE_STORE
