"""How other threads end a node's `poll`."""

from __future__ import annotations

import ctypes
import os
import socket

_library = ctypes.PyDLL(None)
"""Calls which keep the GIL. `socket` releases the GIL, and beside a computing Python thread gets
the GIL back after a switch interval; no call here waits."""
_send, _recv = _library.send, _library.recv
for _function in (_send, _recv):
    _function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int)
_BYTES = 64
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)


class _Descriptor:
    """Open as long as a reference exists."""

    def __init__(self, taken: socket.socket) -> None:
        self.number = taken.detach()

    def __del__(self) -> None:
        os.close(self.number)


class Waker:
    """Makes a sleeping poller return; costs nothing while the poller is awake.

    Each side first writes its own flag and then reads the other's, and the GIL puts all four
    accesses in one order. So at least one side sees the other. Either the waker finds the poller
    asleep and sends a byte, or the poller finds the flag and does not sleep.
    """

    def __init__(self) -> None:
        self._receiver, sender = socket.socketpair()
        self._receiver.setblocking(False)
        sender.setblocking(False)
        self._sender: _Descriptor | None = _Descriptor(sender)
        self._bytes = ctypes.create_string_buffer(_BYTES)
        self._woken = False
        self._sleep: list[bool] | None = None
        """The poller's present sleep; filled when a byte was sent for the sleep."""

    @property
    def fd(self) -> int:
        return self._receiver.fileno()

    def wake(self) -> None:
        """Thread-safe. Many wakes before the poller runs send one byte, as a rule."""
        self._woken = True
        sleep = self._sleep
        if sleep is not None and not sleep:
            # The reference keeps the descriptor open: its number must not become another file's.
            sender = self._sender
            # Full: a byte is there already. Closed: no poller is left to wake.
            if sender is None or _send(sender.number, b"\0", 1, _NO_SIGNAL) != 1:
                return
            # After the send: an interrupted caller has sent a byte, or the next caller does. The
            # byte marks this sleep only, as the poller may be in another sleep already.
            sleep.append(True)

    def fall_asleep(self) -> bool:
        """Called by the poller before a block. False: woken, the poller must not block."""
        self._sleep = []
        if self._woken:
            self._sleep = None
        return not self._woken

    def awake(self, *, is_readable: bool) -> None:
        """Called by the poller after a block, or after a false `fall_asleep`."""
        self._sleep = None
        self._woken = False
        if is_readable:
            _recv(self.fd, self._bytes, _BYTES, 0)

    def close(self) -> None:
        self._receiver.close()
        self._sender = None
