"""When a node takes a client for gone, on a clock and a transport of the test."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorq import clock
from mirrorq.config import Config
from mirrorq.engine.consensus import Consensus
from mirrorq.engine.engine import Engine
from mirrorq.node.gateway.gateway import Gateway
from mirrorq.protocol.clients import ClientHello, ClientPing
from mirrorq.transport.inbound import CONTROL, DATA, ClientMessage
from mirrorq.wire.messages import WireMessage, encode

CONFIG = Config()
EXPIRY_MS = CONFIG.session_expiry_ms
PAUSE_MS = 50


class FakeTransport:
    """Takes replies, and says whether everybody was read."""

    def __init__(self) -> None:
        self.has_read = True
        self.clients = 0

    def takes_turns(self, clients: int) -> bool:
        self.clients = clients
        return self.has_read

    def takes(self, parts: Sequence[bytes]) -> bool:
        return True

    def reply(self, identity: bytes, parts: Sequence[bytes], channel: int = DATA) -> bool:
        return True

    def address_of(self, message: ClientMessage) -> str:
        return ""


class Stage:
    """An entry that serves some clients; its thread makes a round when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ms = 1_000
        monkeypatch.setattr(clock, "now_ms", lambda: self.now_ms)
        self.transport = FakeTransport()
        catalog = SimpleNamespace(applied_index=0, cluster=0, name_of=lambda _: "")
        engine = SimpleNamespace(
            me=SimpleNamespace(node="a", incarnation=1),
            catalog=catalog,
            is_paused=lambda _: False,
            waiting_text=lambda: "",
        )
        warn = SimpleNamespace(warn=lambda *_: None)
        driver: Any = SimpleNamespace(
            engine=engine, complaints=warn, post=lambda _: None, stuck_text=""
        )
        transport: Any = self.transport
        overview: Any = None
        self.entry = Gateway(driver, transport, CONFIG, overview)

    def says(self, client: bytes, message: WireMessage, channel: int = CONTROL) -> None:
        parts = [bytes(part) for part in encode(message)]
        self.entry.on_message(ClientMessage(client, parts, channel))

    def come(self, client: bytes) -> None:
        self.says(client, ClientHello(1, client.decode()), DATA)

    def rounds(self, for_ms: int, *, pinged_by: Sequence[bytes] = ()) -> None:
        """Short rounds, in each of which these clients are heard."""
        end_ms = self.now_ms + for_ms
        while self.now_ms < end_ms:
            self.now_ms += PAUSE_MS
            for client in pinged_by:
                self.says(client, ClientPing())
            self.entry.end_stale_clients(self.now_ms)

    def names(self) -> list[str]:
        return [served.name for served in self.entry.served()]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    made = Stage(monkeypatch)
    made.come(b"one")
    made.come(b"two")
    return made


def test_a_client_that_is_silent_is_gone_in_time(stage: Stage) -> None:
    """After its expiry, and not before; who gives signs of life stays."""
    stage.rounds(EXPIRY_MS - 2 * PAUSE_MS, pinged_by=[b"one"])
    assert stage.names() == ["one", "two"]
    stage.rounds(3 * PAUSE_MS, pinged_by=[b"one"])
    assert stage.names() == ["one"]
    assert stage.transport.clients == 1


def test_a_client_that_was_not_read_is_not_silent(stage: Stage) -> None:
    """So much lies in the sockets that not everybody had a turn: nobody is judged, and the time
    is not counted when it is over. From then on it is as always."""
    stage.rounds(EXPIRY_MS // 2)
    stage.transport.has_read = False
    stage.rounds(20 * EXPIRY_MS)
    assert stage.names() == ["one", "two"]
    stage.transport.has_read = True
    stage.rounds(PAUSE_MS, pinged_by=[b"one"])
    assert stage.names() == ["one", "two"]
    stage.rounds(EXPIRY_MS, pinged_by=[b"one"])
    assert stage.names() == ["one"]


def test_a_node_that_stood_still_gives_its_clients_time(stage: Stage) -> None:
    """One round took many times what clients are waited for."""
    stage.now_ms += 20 * EXPIRY_MS
    stage.entry.end_stale_clients(stage.now_ms)
    assert stage.names() == ["one", "two"]
    stage.rounds(EXPIRY_MS, pinged_by=[b"one"])
    assert stage.names() == ["one"]


def test_who_was_only_late_is_waited_for_longer(stage: Stage) -> None:
    """A client that was taken for gone and speaks again: the others get twice the time, and one
    that is dead is gone within that."""
    stage.rounds(EXPIRY_MS + PAUSE_MS, pinged_by=[b"one"])
    assert stage.names() == ["one"]
    stage.says(b"two", ClientPing())
    stage.come(b"two")
    stage.rounds(2 * EXPIRY_MS - PAUSE_MS, pinged_by=[b"one"])
    assert stage.names() == ["one", "two"]
    stage.rounds(3 * PAUSE_MS, pinged_by=[b"one"])
    assert stage.names() == ["one"]


@pytest.mark.parametrize(
    ("voters", "leader", "paused"),
    [
        ("abc", "b", [False, False, True]),
        ("abc", "a", [False, False, True]),
        ("a", "a", [False, False, False]),
        ("b", "b", [False, False, True]),
        ("a", None, [False, False, True]),
    ],
)
def test_a_node_that_was_late_has_not_lost_its_majority(
    voters: str, leader: str | None, paused: list[bool]
) -> None:
    """It answers a client before its first step after a pause: what it knew of its leader holds for
    as long as it would have without one. Who votes alone hears nobody, and loses nobody."""
    raft = SimpleNamespace(voters=tuple(voters), leader=leader, store="a")
    consensus: Any = SimpleNamespace(raft=raft, led_ms=1_000, _led_until_ms=2_000)
    consensus.led_at = partial(Consensus.led_at, consensus)
    engine: Any = SimpleNamespace(_consensus=consensus, config=CONFIG)
    assert [Engine.is_paused(engine, ms) for ms in (1_000, 1_999, 2_000)] == paused


def test_a_stranger_teaches_nothing(stage: Stage) -> None:
    """Only who was served here and went silent can have been late."""
    for number in range(10):
        stage.says(b"stranger%d" % number, ClientPing())
    stage.rounds(EXPIRY_MS + PAUSE_MS, pinged_by=[b"one"])
    assert stage.names() == ["one"]
