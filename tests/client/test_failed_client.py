"""A client whose thread fails lets nobody wait."""

from __future__ import annotations

import logging
import socket

import pytest

from mirrorq.client.driver import Call, ClientDriver
from mirrorq.config import Config
from mirrorq.protocol.clients import ClientCall, ClientDelete


@pytest.mark.parametrize("handler_raises", [False, True])
def test_who_waits_is_told_whatever_the_hosts_log_does(
    monkeypatch: pytest.MonkeyPatch, handler_raises: bool
) -> None:
    class Raising(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if handler_raises:
                raise KeyboardInterrupt

    def failing_round() -> None:
        raise RuntimeError

    handler = Raising()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        driver = ClientDriver("c", [f"tcp://127.0.0.1:{unused.getsockname()[1]}"], Config())
        monkeypatch.setattr(driver, "_round", failing_round)
        call = Call(ClientCall(1, ClientDelete(1, False)))
        driver.start_call(call)
        logging.getLogger("mirrorq").addHandler(handler)
        try:
            driver._take_turn()
        finally:
            logging.getLogger("mirrorq").removeHandler(handler)
    assert isinstance(driver.failure, RuntimeError)
    assert not driver.is_running
    assert call.done.is_set()
    assert driver._home.socket._is_closed
