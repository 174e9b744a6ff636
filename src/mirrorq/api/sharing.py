"""Hosts that several handles of a process use, each closed with its last handle.

*Interrupts*: a collection, or a signal handler, may close a queue in the middle of whatever this
thread does here, and it may be this very host that a handle gives up then. So giving up never
waits for the lock: it is noted, and done by who can have the lock, or has it, afterwards.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

from attrs import define, field

from mirrorq.waiting import Once, take_back


class Closable(Protocol):
    """A host that can be shared: a node, a client."""

    def close(self) -> None: ...


Host = TypeVar("Host", bound=Closable)


class Use:
    """One handle's use of a shared host: what tells it from the others."""


@define(eq=False)
class _Shared(Generic[Host]):
    """One host, under the lock of `Sharing`."""

    host: Host
    arguments: object
    """With which it was made."""
    uses: set[Use] = field(factory=set)


class Sharing(Generic[Host]):
    """The shared hosts of a process by their keys, each with the uses that keep it open. From any
    thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_busy = False
        """The lock's owner is looking for a host, or making one."""
        self._known: dict[Hashable, _Shared[Host]] = {}
        self._ended: deque[Use] = deque()
        """Uses that are over, and were not taken off yet."""

    def begin(
        self,
        use: Use,
        key: Hashable,
        arguments: object,
        make: Callable[[], Host],
        is_fit: Callable[[Host, object], bool],
    ) -> Host:
        """Use the host with this key: the one that there is, if it is fit, or a new one.

        Args:
            arguments: of the host that is made now.
            make: makes it; what it has made it closes when it raises.
            is_fit: given the host that there is and its arguments; may raise.
        """
        try:
            with self._lock:
                was_busy = self._is_busy
                try:
                    self._is_busy = True
                    shared = self._known.get(key)
                    if shared is None or not is_fit(shared.host, shared.arguments):
                        shared = self._known[key] = _Shared(make(), arguments)
                    shared.uses.add(use)
                    return shared.host
                finally:
                    self._is_busy = was_busy
        finally:
            if self._ended:
                Once(self._take_off).run()

    def end(self, use: Use) -> None:
        """The handle is closed, or was never made; the last one closes the host."""
        self._ended.append(use)
        Once(self._take_off).run()

    def _take_off(self) -> None:
        """Take off uses that are over, unless the lock's owner does so when he is done. On a
        thread that nothing interrupts."""
        while self._ended and self._lock.acquire(blocking=False):
            try:
                if self._is_busy:
                    return
                self._take_off_first()
            finally:
                self._lock.release()

    def _take_off_first(self) -> None:
        try:
            use = self._ended[0]
        except IndexError:
            return
        for key, shared in list(self._known.items()):
            if shared.uses == {use}:
                # In this order: who is interrupted in it does it once more.
                shared.host.close()
                self._known.pop(key, None)
            shared.uses.discard(use)
        take_back(self._ended, use)
