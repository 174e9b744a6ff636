"""Signs of life of a client whose thread is late, on a clock and a socket of the test."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from mirrorq import clock
from mirrorq.client import driver as client_driver
from mirrorq.client.driver import Call, ClientDriver
from mirrorq.client.keepalive import Keepalive
from mirrorq.config import Config
from mirrorq.protocol.clients import (
    ClientAnswer,
    ClientCall,
    ClientHello,
    ClientLook,
    ClientPing,
    ClientPong,
    ClientWelcome,
)
from mirrorq.transport.inbound import CONTROL, DATA, ClientInbound, Connected, ServerMessage
from mirrorq.transport.patience import Patience
from mirrorq.wire.messages import WireMessage, decode, encode

CONFIG = Config()
EXPIRY_MS = CONFIG.session_expiry_ms
SERVED = ClientWelcome(1, "a", EXPIRY_MS)
ANSWER = ClientPong(False, False)


class FakeSocket:
    """What lies in it is read by the next poll; a poll with nothing there sleeps."""

    def __init__(self) -> None:
        self.endpoint = "tcp://test:1"
        self.now_ms = 1_000
        self.inbound: deque[ClientInbound] = deque()
        self.sent: list[tuple[int, WireMessage]] = []
        """When each left."""
        self.left = 0
        """How often the node was."""
        self._outbox: list[WireMessage] = []

    def poll(self, timeout_ms: int) -> list[ClientInbound]:
        self.flush()
        if not self.inbound:
            self.now_ms += timeout_ms
        found = list(self.inbound)
        self.inbound.clear()
        return found

    def send(self, parts: Sequence[bytes], channel: int = DATA) -> bool:
        self._outbox.append(decode([bytes(part) for part in parts]))
        return True

    def flush(self) -> None:
        self.sent += [(self.now_ms, message) for message in self._outbox]
        self._outbox.clear()

    def leave(self, *, is_refused: bool = False) -> None:
        self.left += 1

    def wake(self) -> None:
        """Nobody sleeps here."""

    def hears(self, message: WireMessage, channel: int = CONTROL) -> None:
        parts = [bytes(part) for part in encode(message)]
        self.inbound.append(ServerMessage(parts, channel))

    def signs(self) -> list[int]:
        """When signs of life have left."""
        return [at_ms for at_ms, message in self.sent if isinstance(message, ClientPing)]


@pytest.fixture
def socket(monkeypatch: pytest.MonkeyPatch) -> FakeSocket:
    made = FakeSocket()
    monkeypatch.setattr(client_driver, "ClientSocket", lambda *_, **__: made)
    monkeypatch.setattr(clock, "now_ms", lambda: made.now_ms)
    return made


@pytest.fixture
def driver(socket: FakeSocket) -> ClientDriver:
    """Its thread does not run: the test makes its rounds. A node serves it."""
    made = ClientDriver("test", [socket.endpoint], CONFIG)
    socket.inbound.append(Connected(socket.endpoint))
    made._round()
    assert isinstance(socket._outbox[0], ClientHello)
    socket.hears(SERVED, DATA)
    made._round()
    assert made.welcomed.is_set()
    return made


def stand_still(driver: ClientDriver, socket: FakeSocket, for_ms: int) -> None:
    """The thread gets no time for so long, in the middle of a round."""

    def pass_time() -> None:
        socket.now_ms += for_ms

    driver.call(pass_time)
    driver._round()


def test_a_client_that_stood_still_reads_before_it_judges(
    driver: ClientDriver, socket: FakeSocket
) -> None:
    """It was late by many times its patience, and the node's answer lies in its socket."""
    socket.hears(ANSWER)
    stand_still(driver, socket, 10_000)
    socket.hears(ANSWER)
    driver._round()
    assert (socket.left, driver.welcomed.is_set()) == (0, True)


def test_a_node_that_was_not_asked_is_not_silent(driver: ClientDriver, socket: FakeSocket) -> None:
    """Nothing has come, because nothing was asked: the sign of life goes at once, and the node
    has its time to answer it."""
    stand_still(driver, socket, 10_000)
    woke_ms = socket.now_ms
    for _ in range(3):
        driver._round()
    assert socket.left == 0
    assert woke_ms in socket.signs()
    socket.hears(ANSWER)
    driver._round()
    assert driver.welcomed.is_set()


def test_a_node_that_is_silent_is_left_all_the_same(
    driver: ClientDriver, socket: FakeSocket
) -> None:
    """However late the client was before: within its patience and one pause."""
    stand_still(driver, socket, 10_000)
    woke_ms = socket.now_ms
    while not socket.left:
        driver._round()
        assert socket.now_ms - woke_ms <= CONFIG.failure_ms + CONFIG.heartbeat_ms
    assert not driver.welcomed.is_set()


def test_signs_of_life_do_not_wait_for_a_backlog(driver: ClientDriver, socket: FakeSocket) -> None:
    """So much has come that the client is busy with it for longer than a node waits for it."""
    calls = 100

    def works(_: ClientAnswer) -> None:
        socket.now_ms += 50

    for number in range(1, calls + 1):
        call = Call(ClientCall(number, ClientLook("nodes", 0)), threading.Event(), on_answer=works)
        driver.start_call(call)
        socket.hears(ClientAnswer(number, 0, "", "", b""), DATA)
    began_ms = socket.now_ms
    driver._round()
    assert socket.now_ms - began_ms == 50 * calls
    times = [began_ms, *(at for at in socket.signs() if at >= began_ms), socket.now_ms]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert max(gaps) < EXPIRY_MS // 2


@pytest.mark.parametrize("late_ms", [0, 200, 400])
def test_a_client_that_is_always_late_stays(late_ms: int) -> None:
    """Each of its rounds is late; each finds the answer to the sign of life of the one before."""
    keepalive, now_ms = Keepalive(CONFIG), 5_000
    keepalive.on_connected(now_ms)
    keepalive.on_welcome(now_ms, EXPIRY_MS)
    for _ in range(100):
        waited_ms = max(keepalive.wake_at_ms - now_ms, 0)
        now_ms += waited_ms + late_ms
        keepalive.on_read(now_ms, waited_ms)
        keepalive.on_heard(now_ms)
        assert not keepalive.is_silent
        if keepalive.is_due(now_ms):
            keepalive.on_given(now_ms)


def later(keepalive: Keepalive, now_ms: int, steps: Sequence[int], then: Callable[[], None]) -> int:
    """Rounds that wait for so long each, on time."""
    for step in steps:
        now_ms += step
        keepalive.on_read(now_ms, step)
        then()
    return now_ms


def test_patience_is_the_nodes_word() -> None:
    """As much as it says, within bounds; a node without a word is left after `failure_ms`."""
    keepalive = Keepalive(CONFIG)
    assert (keepalive.is_silent, keepalive.silence_ms) == (False, 0)
    keepalive.on_connected(0)
    now_ms = later(keepalive, 0, [250] * 3, lambda: None)
    assert not keepalive.is_silent
    keepalive.on_welcome(now_ms, EXPIRY_MS)
    for told, held in ((0, 100), (300, 300), (10**9, 1000)):
        keepalive.on_pong(now_ms, False, told)
        found = (keepalive.patience, keepalive.patience_ms, keepalive.pause_ms)
        assert found == (held, 10 * held, 5 * held // 2)
    keepalive.on_pong(now_ms, False, 200)
    now_ms = later(keepalive, now_ms, [250] * 7, lambda: None)
    assert not keepalive.is_silent
    later(keepalive, now_ms, [250], lambda: None)
    assert keepalive.is_silent


def welcome(keepalive: Keepalive, now_ms: int) -> None:
    keepalive.on_connected(now_ms)
    keepalive.on_welcome(now_ms, EXPIRY_MS)


def test_a_node_that_is_cut_off_is_left_when_that_lasts() -> None:
    """Not for a moment without a majority; and not for one that this client slept through."""
    keepalive = Keepalive(CONFIG)
    welcome(keepalive, 0)
    keepalive.on_pong(0, True, 100)
    now_ms = later(keepalive, 0, [300] * 2, lambda: None)
    assert not keepalive.is_cut_off
    keepalive.on_read(now_ms + 60_000, 0)
    assert not keepalive.is_cut_off
    keepalive.on_pong(now_ms + 60_000, False, 100)
    keepalive.on_pong(now_ms + 60_000, True, 100)
    now_ms = later(keepalive, now_ms + 60_000, [300] * 4, lambda: None)
    assert keepalive.is_cut_off


def test_who_gives_nodes_up_in_vain_waits_longer_for_each() -> None:
    """Twice as long, up to ten times; and as at first when one has served for a while."""
    keepalive = Keepalive(CONFIG)
    waited, now_ms = [], 0
    for _ in range(6):
        welcome(keepalive, now_ms)
        keepalive.on_pong(now_ms, False, 100)
        waited.append(keepalive.patience_ms // CONFIG.failure_ms)
        keepalive.on_given_up()
        keepalive.on_left()
        now_ms += 10
    assert waited == [1, 2, 4, 8, 10, 10]
    welcome(keepalive, now_ms)
    keepalive.on_pong(now_ms + 9 * CONFIG.failure_ms, False, 100)
    assert keepalive.patience_ms == 10 * CONFIG.failure_ms
    keepalive.on_pong(now_ms + 10 * CONFIG.failure_ms, False, 100)
    assert keepalive.patience_ms == CONFIG.failure_ms


def test_a_crowd_does_not_leave_at_once() -> None:
    """Each waits up to twice as long, by a share of its own; a few clients all leave in time."""
    crowd = [Keepalive(CONFIG, spread / 10) for spread in range(10)]
    for keepalive in crowd:
        welcome(keepalive, 0)
        assert keepalive.patience_ms == CONFIG.failure_ms
        keepalive.on_pong(0, False, 200)
    assert [keepalive.patience_ms for keepalive in crowd] == list(range(2_000, 4_000, 200))


def test_nodes_are_patient_with_a_crowd() -> None:
    """Up to a hundred clients nothing changes, and no crowd is waited for without bound."""
    asked = [0, 1, 100, 101, 250, 500, 1000, 4096]
    found = [Patience().percent(0, clients) for clients in asked]
    assert found == [100, 100, 100, 101, 250, 500, 1000, 1000]


def test_nodes_learn_from_clients_that_come_late() -> None:
    """The next one may be late by twice as much; it is forgotten when they come in time."""
    patience = Patience()
    patience.on_heard(1_000, 250, EXPIRY_MS)
    assert patience.percent(1_000, 3) == 100
    patience.on_heard(2_000, 900, EXPIRY_MS)
    assert patience.percent(2_000, 3) == 180
    patience.on_heard(2_000, 10**6, EXPIRY_MS)
    assert patience.percent(2_000, 3) == 1000
    for second in range(3, 12):
        patience.on_heard(1_000 * second, 250, EXPIRY_MS)
    assert patience.percent(11_999, 3) == 1000
    times = (12_000, 22_000, 32_000, 42_000)
    assert [patience.percent(ms, 3) for ms in times] == [500, 250, 125, 100]
    assert patience.percent(10**9, 3) == 100
