"""The proxies: what is let through, held, delayed and cut."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from tests.kit import DEADLINE_S

from harness.chaos.proxy import Proxies

pytestmark = pytest.mark.real


class Echo:
    """Sends back what it gets."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                made, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(made,), daemon=True).start()

    def _serve(self, made: socket.socket) -> None:
        with made:
            try:
                while data := made.recv(1 << 16):
                    made.sendall(data)
            except OSError:
                return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    echoes = {name: Echo() for name in "ab"}
    made = Proxies({name: echo.endpoint for name, echo in echoes.items()})
    yield made
    made.close()
    for echo in echoes.values():
        echo.close()


def connected(proxies: Proxies) -> socket.socket:
    host, port = proxies.seen_by["a"]["b"].removeprefix("tcp://").split(":")
    made = socket.create_connection((host, int(port)), DEADLINE_S)
    made.settimeout(DEADLINE_S)
    return made


def comes_back(made: socket.socket, data: bytes) -> bool:
    made.sendall(data)
    found = b""
    while len(found) < len(data):
        piece = made.recv(1 << 16)
        if not piece:
            return False
        found += piece
    return found == data


def comes_in(made: socket.socket, seconds: float) -> bool:
    made.settimeout(seconds)
    try:
        return bool(made.recv(1))
    except TimeoutError:
        return False
    finally:
        made.settimeout(DEADLINE_S)


def test_bytes_pass_in_order(proxies: Proxies) -> None:
    with connected(proxies) as made:
        assert comes_back(made, bytes(range(256)) * 4000)


@pytest.mark.parametrize("how", ["hold", "lose"])
def test_what_is_held_comes_later(proxies: Proxies, how: str) -> None:
    with connected(proxies) as made:
        assert comes_back(made, b"1")
        getattr(proxies, how)("a", "b")
        made.sendall(b"2")
        assert not comes_in(made, 0.1)
        proxies.heal()
        assert comes_in(made, DEADLINE_S)
        assert comes_back(made, b"3")


def test_a_cut_ends_connections_and_refuses_new_ones(proxies: Proxies) -> None:
    with connected(proxies) as made:
        assert comes_back(made, b"1")
        proxies.cut("b", "a")
        assert not _lives(made)
    with connected(proxies) as made:
        assert not _lives(made)
    proxies.mend("a", "b")
    with connected(proxies) as made:
        assert comes_back(made, b"4")


def _lives(made: socket.socket) -> bool:
    try:
        return comes_back(made, b"3")
    except OSError:
        return False


def test_a_delay_is_at_least_that(proxies: Proxies) -> None:
    with connected(proxies) as made:
        assert comes_back(made, b"1")
        proxies.delay("a", "b", 60)
        began_s = time.monotonic()
        assert comes_back(made, b"2")
        assert time.monotonic() - began_s >= 0.12
