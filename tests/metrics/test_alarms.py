"""Alarms: raised and cleared by measurements alone, and by real nodes."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attrs import evolve
from click.testing import CliRunner
from prometheus_client import CollectorRegistry
from tests.kit import DEADLINE_S, peers_of, until

from mirrorq import Node
from mirrorq.cli import main
from mirrorq.config import Config
from mirrorq.demo.ports import free_ports
from mirrorq.metrics import Collector
from mirrorq.monitoring.alarms import (
    ADVICE,
    COPY_MS,
    DAMAGE_WELL_MS,
    GIB,
    QUIET_MS,
    SPOOLED_S,
    Alarms,
    Measures,
)
from mirrorq.node import watch
from mirrorq.node.watch import Watch
from mirrorq.protocol.raft import InstallSnapshot
from mirrorq.protocol.ring import TransferState

WELL = Measures(
    damaged=(),
    damage_count=0,
    unsendable=(),
    now_ms=0,
    wall_ms=1_000_000,
    store_used=0,
    store_max=1000,
    disk_free=100 * GIB,
    disk_total=200 * GIB,
    is_paused=False,
    last_copies=(),
    commit_ms=5,
    spooled=0,
    spooled_s=0,
    spooled_why="",
    set_aside=0,
    late_ms=0,
    failure_ms=1000,
)
STEP_MS = 1000


class World:
    """Steps alarms once a second."""

    def __init__(self) -> None:
        self.alarms = Alarms()
        self.now_ms = 0
        self.set_ms = 0
        self.told: list[str] = []

    def step(self, **measured: object) -> list[str]:
        """One second later these were measured; what was told of it."""
        self.now_ms += STEP_MS
        wall_ms = WELL.wall_ms + self.now_ms + self.set_ms
        measures = evolve(WELL, now_ms=self.now_ms, wall_ms=wall_ms, **measured)
        raised, over = self.alarms.judge(measures)
        told = [f"+{alarm.name}" for alarm in raised] + [f"-{alarm.name}" for alarm in over]
        self.told += told
        return told

    @property
    def names(self) -> list[str]:
        return [alarm.name for alarm in self.alarms.raised]


@pytest.mark.parametrize(
    ("name", "bad", "between", "well", "wait_ms"),
    [
        ("store_full", {"store_used": 850}, {"store_used": 800}, {"store_used": 749}, 0),
        ("disk_low", {"disk_free": GIB - 1}, {"disk_free": GIB + 1}, {"disk_free": 2 * GIB}, 0),
        ("slow_disk", {"commit_ms": 500}, {"commit_ms": 200}, {"commit_ms": 99}, QUIET_MS),
        ("starved", {"late_ms": 500}, {"late_ms": 200}, {"late_ms": 99}, QUIET_MS),
    ],
)
def test_a_gap_lies_between_bad_and_well(
    name: str,
    bad: dict[str, object],
    between: dict[str, object],
    well: dict[str, object],
    wait_ms: int,
) -> None:
    """Raised once however long it is bad, kept in the gap, over once and not before its time."""
    world = World()
    assert world.step(**between) == []
    assert world.step(**bad) == [f"+{name}"]
    for _ in range(5):
        assert world.step(**between) == world.step(**bad) == []
    waited_ms = 0
    while not world.step(**well):
        waited_ms += STEP_MS
        assert world.names == [name]
        assert waited_ms <= wait_ms
    assert waited_ms == wait_ms
    assert world.told == [f"+{name}", f"-{name}"]
    assert world.step(**between) == []


def test_a_short_pause_and_a_mirror_that_restarts_raise_nothing() -> None:
    """An election is no alarm, and what comes back begins its time anew."""
    world = World()
    assert world.step(is_paused=True) == []
    assert world.step() == []
    assert world.step(is_paused=True) == []
    assert world.step(is_paused=True) == ["+no_quorum"]
    assert world.step() == ["-no_quorum"]
    for _ in range(COPY_MS // STEP_MS):
        assert world.step(last_copies=("orders",)) == []
    assert world.step() == []
    for _ in range(COPY_MS // STEP_MS):
        assert world.step(last_copies=("orders",)) == []
    assert world.step(last_copies=("orders",)) == ["+last_copy"]
    assert world.step() == ["-last_copy"]


def test_damage_that_was_mended_at_once_is_told() -> None:
    """A frame was found and fetched between two looks: a disk that does so should be looked at.
    Over some seconds after the last one, and not while something is damaged."""
    world = World()
    assert world.step(damage_count=1) == ["+damaged"]
    assert world.step(damaged=("q",)) == []
    for _ in range(DAMAGE_WELL_MS // STEP_MS):
        assert world.step() == []
    assert world.step() == ["-damaged"]


@pytest.mark.parametrize("jump_ms", [5000, -5000])
def test_a_clock_that_is_set(jump_ms: int) -> None:
    """Forwards or back: told once, over after a quiet minute; a drift is no jump."""
    world = World()
    world.step()
    world.set_ms += 900
    assert world.step() == []
    world.set_ms += jump_ms
    assert world.step() == ["+clock_jump"]
    (alarm,) = world.alarms.raised
    assert f"set by {jump_ms} ms" in alarm.text
    for _ in range(QUIET_MS // STEP_MS):
        assert world.step() == []
    assert world.step() == ["-clock_jump"]


def test_texts_have_values_and_what_to_do() -> None:
    """Whoever reads the line needs nothing else to begin."""
    world = World()
    for _ in range(6):
        world.step(
            store_used=900,
            disk_free=7,
            disk_total=1000,
            is_paused=True,
            last_copies=("a", "b", "c", "d", "e"),
            damaged=("orders",),
            unsendable=("a State for node b", "another"),
            commit_ms=700,
            spooled=5,
            spooled_s=SPOOLED_S,
            set_aside=1,
            late_ms=800,
        )
    assert world.names == [name for name in ADVICE if name != "clock_jump"]
    texts = {alarm.name: alarm.text for alarm in world.alarms.raised}
    assert "900 bytes in use, 90 % of store_bytes_max 1000" in texts["store_full"]
    assert "7 bytes free, fewer than 50" in texts["disk_low"]
    assert "of 'a', 'b', 'c' and 2 more" in texts["last_copy"]
    assert "held of queue 'orders'" in texts["damaged"]
    assert "too large to be sent: a State for node b and 1 more" in texts["unsendable"]
    assert "took 700 ms" in texts["slow_disk"]
    assert "800 ms late" in texts["starved"]
    for name, text in texts.items():
        assert text.endswith(ADVICE[name])


def test_an_unknown_disk_is_not_low() -> None:
    """A file system that does not answer raises nothing."""
    assert World().step(disk_free=-1, disk_total=0) == []


def test_the_page_has_every_alarm() -> None:
    """docs/monitoring.md says of each what to do."""
    page = (Path(__file__).parents[2] / "docs" / "monitoring.md").read_text("utf-8")
    section = page.partition("## Alarms\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(ADVICE)


@pytest.mark.real
def test_a_start_that_the_cluster_knows_is_noted(tmp_path: Path) -> None:
    """The store's next start goes on from it, and not by one as after a start that nobody knows."""
    with Node("a", path=tmp_path / "a") as node:
        first = node._store.incarnation
        until(lambda: node._store.get_meta("known incarnation"))
    with Node("a", path=tmp_path / "a") as node:
        assert node._store.incarnation >> 20 == (first >> 20) + 1


@pytest.mark.real
def test_what_is_too_large_to_be_sent_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A queue's state and a page of a snapshot that no node would take: an error in the log with
    the sizes, once for each though they are tried on and on; an alarm; the queue's warnings."""
    (port,) = free_ports(1)
    config = Config(message_bytes_max=4096, frame_bytes_max=64 * 1024)
    own = f"tcp://127.0.0.1:{port}"
    given = {"path": tmp_path / "a", "listen": own, "config": config}
    with caplog.at_level(logging.INFO, "mirrorq"), Node("a", **given) as node:  # type: ignore[arg-type]
        orders = node.queue("orders")
        driver = node._driver
        queue_id = orders._handle.queue_id
        state = bytes(5_000_000)
        snapshot = InstallSnapshot(1, 1, 1, (), 1, 0, state, 0)

        def send() -> None:
            driver._send(
                [("b", TransferState(queue_id, 1, 1, 1, state, 1, True, 0)), ("b", snapshot)]
            )

        def is_told() -> bool:
            driver.call(send)
            return driver.oversize.count > 2 and "unsendable" in node.nodes()[0].alarms

        until(is_told)
        (alarm,) = (alarm for alarm in node.alarms() if alarm.name == "unsendable")
        assert "message TransferState of queue 'orders' for node b has 5000000 bytes" in alarm.text
        told = "cannot send: message TransferState of queue 'orders'"
        assert any(told in text for text in orders.status().warnings)
        orders.close()
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert len([text for text in errors if "message TransferState of queue 'orders'" in text]) == 1
    assert len([text for text in errors if "message InstallSnapshot for node b" in text]) == 1


def test_who_votes_alone_has_not_lost_the_majority() -> None:
    """A queue in one process on a slow disk is told of the disk, not to start more nodes."""
    watch = Watch.__new__(Watch)
    for voters, is_lost in (((1,), False), ((1, 2), True)):
        engine = SimpleNamespace(is_founded=True, voters=voters, is_paused=lambda _: True)
        watch._engine = cast(Any, engine)
        assert watch._has_lost_majority(0) is is_lost


@pytest.mark.real
def test_each_of_them_is_told_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Status, log, metrics, command line and dashboard: each by its name, with what to do."""
    jump_ms = [0]

    def all_bad(watch: Watch, now_ms: int) -> Measures:
        jump_ms[0] += 5000
        return evolve(
            WELL,
            now_ms=now_ms,
            wall_ms=now_ms + jump_ms[0],
            store_used=900,
            disk_free=1,
            is_paused=True,
            last_copies=("orders",),
            damaged=("orders",),
            unsendable=("a State for node b", "another"),
            commit_ms=700,
            late_ms=900,
            spooled=5,
            spooled_s=SPOOLED_S,
            set_aside=1,
        )

    monkeypatch.setattr(Watch, "_measures", all_bad)
    listen, registry = "tcp://127.0.0.1:0", CollectorRegistry()
    with (
        caplog.at_level(logging.INFO, "mirrorq"),
        Node("a", path=tmp_path / "a", listen=listen, dashboard="127.0.0.1:0") as node,
    ):
        registry.register(Collector(node))
        until(lambda: len(node.alarms()) == len(ADVICE))
        until(lambda: node.nodes()[0].alarms == tuple(ADVICE))

        def told() -> str:
            return CliRunner().invoke(main, ["status", "--connect", node.listening]).output

        until(lambda: all(name in told() for name in ADVICE))
        dashboard = node._dashboard
        assert dashboard is not None

        def shown() -> Any:
            return json.loads(dashboard._observer.state())

        until(lambda: shown()["nodes"] and shown()["nodes"][0]["alarms"] == list(ADVICE))
        until(lambda: registry.get_sample_value("mirrorq_alarm", {"node": "a", "name": "starved"}))
        for alarm, (name, advice) in zip(node.alarms(), ADVICE.items(), strict=True):
            assert alarm.name == name
            assert advice in alarm.text
            assert registry.get_sample_value("mirrorq_alarm", {"node": "a", "name": name}) == 1
            lines = [r for r in caplog.records if f"alarm {name}: {alarm.text}" in r.getMessage()]
            # Once, but for a machine so slow that one has cleared and come again.
            assert {line.levelname for line in lines} == {"WARNING"}
            assert shown()["advice"][name] == advice


def test_messages_that_wait_long_in_the_spool_raise_an_alarm_that_says_why() -> None:
    world = World()
    why = "no contact with a majority"
    assert not world.step(spooled=7, spooled_s=SPOOLED_S - 1, spooled_why=why)
    assert world.step(spooled=9, spooled_s=SPOOLED_S, spooled_why=why) == ["+spooled"]
    (alarm,) = world.alarms.raised
    assert alarm.text.startswith(
        f"9 messages wait in the spool, the oldest for {SPOOLED_S} s ({why})"
    )
    assert not world.step(spooled=2, spooled_s=1), "it is over when all have gone"
    assert world.step() == ["-spooled"]


def test_messages_that_were_set_aside_raise_an_alarm_until_they_are_gone() -> None:
    world = World()
    assert world.step(set_aside=3) == ["+set_aside"]
    (alarm,) = world.alarms.raised
    assert alarm.text.startswith("3 spooled messages were refused or are damaged")
    assert world.step() == ["-set_aside"]


@pytest.mark.soak
@pytest.mark.real
def test_a_copy_that_is_synchronised_says_how_far_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "mirrorq")
    peers = peers_of("abw")
    with (
        Node("w", path=tmp_path / "w", peers=peers, witness=True),
        Node("a", path=tmp_path / "a", peers=peers) as a,
    ):
        with Node("b", path=tmp_path / "b", peers=peers):
            a.set_policy("manual", "", {"ha-sync-mode": "manual"})
            orders = a.queue("orders", timeout=DEADLINE_S)
            until(lambda: orders.status().synchronised_mirrors)
        orders.put_many([bytes(1000)] * 5000).result(DEADLINE_S)
        monkeypatch.setattr(watch, "LOOK_MS", 0)
        monkeypatch.setattr(watch, "COPIES_MS", 0)
        with Node("b", path=tmp_path / "b", peers=peers):
            until(lambda: "b" in orders.status().mirrors)
            said = "copies are being synchronised to this node: 'orders' has "
            assert not any(said in one for one in caplog.messages), "nobody has told it to"
            a.sync_queue("orders", timeout=DEADLINE_S)
            until(lambda: any(said in one for one in caplog.messages))
