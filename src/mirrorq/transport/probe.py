"""A plain connect which tells a dead process (refused) from a silent process.

zmq's monitor reports a failed connection attempt, but not the cause. A successful attempt proves
nothing yet: the kernel accepts connections for a stopped process or during a kill. So a probe waits
for the first byte, which every living node sends at once from a thread of libzmq. The probe tries
again when the connection ends without a byte.
"""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable

import zmq

from mirrorq.transport.endpoint import Endpoint

ATTEMPT_COUNT_MAX = 5
"""A dying process ends an accepted connection and then refuses the next; a process which goes on
accepting and closing is alive, though no node."""

_REFUSED = (errno.ECONNREFUSED, errno.ENOENT)
"""ENOENT: an ipc endpoint without its path."""


class Probe:
    """A probe of an endpoint. Poll `fd` for `events`, then ask `result`.

    A host name is looked up in a thread, since a resolver may take seconds; the thread calls
    `on_resolved`.
    """

    def __init__(
        self, endpoint: Endpoint, deadline_ms: int, on_resolved: Callable[[], None]
    ) -> None:
        self.deadline_ms = deadline_ms
        self.events = int(zmq.POLLOUT)
        self._endpoint = endpoint
        self._attempt_count = 0
        self._socket: socket.socket | None = None
        self._refused: bool | None = None
        self._family = socket.AF_INET
        self._address: str | tuple[object, ...] | None = None
        self._is_resolved = True
        if endpoint.is_ipc:
            self._family, self._address = socket.AF_UNIX, endpoint.path
        elif endpoint.address is not None:
            if endpoint.address.version == 6:
                self._family = socket.AF_INET6
            self._address = (endpoint.host, endpoint.port)
        else:
            self._is_resolved = False
            threading.Thread(
                target=self._resolve, args=(on_resolved,), name="mirrorq-resolver", daemon=True
            ).start()
            return
        self._connect()

    @property
    def fd(self) -> int | None:
        """None: there is nothing to poll for."""
        return None if self._socket is None else self._socket.fileno()

    def result(self, now_ms: int) -> bool | None:
        """True: refused. False: alive, or no answer in time. None: not known yet."""
        if self._is_resolved and self._socket is None and self._refused is None:
            self._connect()
        if self._socket is not None and self._refused is None:
            self._look(self._socket)
        if self._refused is None and now_ms >= self.deadline_ms:
            self._refused = False
        return self._refused

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _resolve(self, on_resolved: Callable[[], None]) -> None:
        try:
            found = socket.getaddrinfo(
                self._endpoint.host,
                self._endpoint.port,
                family=socket.AF_INET,
                type=socket.SOCK_STREAM,
            )
            self._address = found[0][4]
        except (OSError, UnicodeError):
            self._address = None
        # Set last: the node thread reads the address after this flag.
        self._is_resolved = True
        on_resolved()

    def _connect(self) -> None:
        """Begin an attempt. An impossible attempt is no proof of death."""
        self.close()
        self._attempt_count += 1
        if self._address is None or self._attempt_count > ATTEMPT_COUNT_MAX:
            self._refused = False
            return
        try:
            self._socket = socket.socket(self._family, socket.SOCK_STREAM)
            self._socket.setblocking(False)
            code = self._socket.connect_ex(self._address)
        except OSError:
            self._refused = False
            return
        self.events = int(zmq.POLLOUT)
        if code not in (errno.EINPROGRESS, 0):
            self._refused = code in _REFUSED

    def _look(self, attempt: socket.socket) -> None:
        code = attempt.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code in _REFUSED:
            self._refused = True
            return
        try:
            # TCP may connect a free port of the ephemeral range to itself.
            if attempt.getpeername() == attempt.getsockname():
                self._refused = True
            elif attempt.recv(1):
                self._refused = False
            else:
                self._connect()
        except BlockingIOError:
            self.events = int(zmq.POLLIN)
        except OSError as error:
            if error.errno != errno.ENOTCONN or code:
                self._connect()
