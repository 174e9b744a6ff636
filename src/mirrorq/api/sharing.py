"""Hosts that several handles of a process use, each closed with its last handle.

*Interrupts*: the garbage collector or a signal handler may close a queue at any point of the code
here, even a queue on the host in work. So the end of a use never waits for the lock: the use is
noted, and removed later by a thread that has, or can get, the lock.
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
    """One handle's use of a shared host: its identity."""


@define(eq=False)
class _Shared(Generic[Host]):
    """One host, under the lock of `Sharing`."""

    host: Host
    arguments: object
    """Arguments with which the host was made."""
    uses: set[Use] = field(factory=set)


class Sharing(Generic[Host]):
    """The shared hosts of a process by their keys, each with the uses that keep it open. From any
    thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._is_busy = False
        """True: the lock's owner looks for a host, or makes a host."""
        self._known: dict[Hashable, _Shared[Host]] = {}
        self._ended: deque[Use] = deque()
        """Ended uses that were not removed yet."""

    def add_use(
        self,
        use: Use,
        key: Hashable,
        arguments: object,
        make: Callable[[], Host],
        is_fit: Callable[[Host, object], bool],
    ) -> Host:
        """Use the host with a key: the existing host, if it is fit, or a new host.

        Args:
            arguments: arguments of a new host.
            make: makes a host; if it raises, it has closed its parts.
            is_fit: called with the existing host and its arguments; may raise.
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

    def end_use(self, use: Use) -> None:
        """End a use: the handle is closed, or was never made. The last use closes the host."""
        self._ended.append(use)
        Once(self._take_off).run()

    def _take_off(self) -> None:
        """Remove ended uses, unless the busy owner of the lock does so later. On a thread without
        interrupts."""
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
                # In this order: an interrupted removal is repeated.
                shared.host.close()
                self._known.pop(key, None)
            shared.uses.discard(use)
        take_back(self._ended, use)
