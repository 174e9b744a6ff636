"""A spool whose files are copied, set back, deleted, or find no room; whose clock is set; many
queues. Each by public calls alone."""

from __future__ import annotations

import os
import resource
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.kit import DEADLINE_S, free_endpoint, until

import mirrorq
from mirrorq import clock
from mirrorq.config import Config
from mirrorq.spool.local import Aside, LocalStore, Record

pytestmark = pytest.mark.real


class Site:
    """A cluster of one node that is there when a test says so, and its clients' endpoint."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.endpoint = free_endpoint()
        self.node: mirrorq.Node | None = None
        self.clients: list[Any] = []

    def begin(self) -> mirrorq.Node:
        self.node = mirrorq.Node("n", path=self.path / "n", peers={"n": self.endpoint})
        self.node.wait_ready(DEADLINE_S)
        return self.node

    def spool(self, name: str = "spool", **settings: Any) -> Any:
        client = mirrorq.connect(self.endpoint, spool=self.path / name, config=Config(**settings))
        self.clients.append(client)
        return client

    def close(self) -> None:
        for client in self.clients:
            client.close()
        if self.node is not None:
            self.node.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def bodies_in(node: mirrorq.Node, name: str) -> list[bytes]:
    with node.queue(name) as queue:
        return [message.body for message in queue.browse()]


def put_all(client: Any, name: str, letter: str, count: int) -> None:
    orders = client.queue(name)
    puts = [orders.put(f"{letter}{number}".encode()) for number in range(count)]
    for put in puts:
        put.result(DEADLINE_S)


def test_two_copies_of_a_spool_lose_nothing_and_double_nothing(site: Site) -> None:
    """A golden image: all that the copies confirm is in the queue, once."""
    node = site.begin()
    with site.spool("a") as first:
        put_all(first, "orders", "old", 50)
    shutil.copytree(site.path / "a", site.path / "b")
    put_all(site.spool("a"), "orders", "a", 100)
    put_all(site.spool("b"), "orders", "b", 100)
    bodies = bodies_in(node, "orders")
    assert len(bodies) == len(set(bodies)) == 250


def test_a_spool_that_was_set_back_loses_nothing(site: Site) -> None:
    node = site.begin()
    with site.spool("a") as first:
        put_all(first, "orders", "old", 50)
    shutil.copytree(site.path / "a", site.path / "kept")
    with site.spool("a") as second:
        put_all(second, "orders", "new", 100)
    shutil.rmtree(site.path / "a")
    shutil.copytree(site.path / "kept", site.path / "a")
    put_all(site.spool("a"), "orders", "later", 100)
    assert len(set(bodies_in(node, "orders"))) == 250


def test_a_spool_that_was_set_back_with_messages_in_it_sends_them(site: Site) -> None:
    """The queue has settled their numbers: they may be doubled, and are not lost, nor waited for
    without end."""
    with site.spool("a") as first:
        first.queue("orders").put_many([b"%d" % number for number in range(20)]).accepted(
            DEADLINE_S
        )
    shutil.copytree(site.path / "a", site.path / "kept")
    node = site.begin()
    with site.spool("a") as second:
        second.queue("orders").wait_for_confirms(DEADLINE_S)
        put_all(second, "orders", "new", 5)
    shutil.rmtree(site.path / "a")
    shutil.copytree(site.path / "kept", site.path / "a")
    third = site.spool("a")
    third.queue("orders").wait_for_confirms(DEADLINE_S)
    put_all(third, "orders", "later", 5)
    assert len(set(bodies_in(node, "orders"))) == 30


def test_a_disk_without_room_for_a_moment_is_waited_for(site: Site) -> None:
    orders = site.spool().queue("orders")
    orders.put(b"first").accepted(DEADLINE_S)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    largest = max(path.stat().st_size for path in (site.path / "spool").iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, limits[1]))
    puts = []
    try:
        with suppress(mirrorq.Full, mirrorq.QueueDown):  # no more room in memory
            for _ in range(100 + largest // 1_000_000):
                puts.append(orders.put(b"x" * 1_000_000, timeout=2))
        assert not puts[-1].is_accepted
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    until(lambda: accepts(orders))
    node = site.begin()
    orders.wait_for_confirms(DEADLINE_S)
    assert {b"first", b"again"} <= set(bodies_in(node, "orders"))
    assert node.queue("orders").qsize() == len(puts) + 2


def accepts(orders: Any) -> bool:
    try:
        orders.put(b"again").accepted(DEADLINE_S)
        return True
    except mirrorq.MirrorQError:
        return False


def files_open() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_many_queues_cost_no_threads_and_files(site: Site) -> None:
    files, threads = files_open(), threading.active_count()
    client = site.spool()
    most_files, most_threads = 0, 0
    for number in range(60):
        client.queue(f"q{number}").put(b"1").accepted(DEADLINE_S)
        most_files = max(most_files, files_open() - files)
        most_threads = max(most_threads, threading.active_count() - threads)
    node = site.begin()

    def look() -> bool:
        nonlocal most_files, most_threads
        # The node of the cluster is in this process: 30 files and 5 threads are its own.
        most_files = max(most_files, files_open() - files - 30)
        most_threads = max(most_threads, threading.active_count() - threads - 5)
        return not any(status.messages for status in client.spooled().values())

    until(look)
    assert sum(status.messages for status in node.queues()) == 60
    assert most_files <= 50
    assert most_threads <= 10


@pytest.mark.slow
def test_a_thousand_targets_cost_no_threads_and_files(site: Site) -> None:
    """Neither when they are filled, nor when the spool is opened again. Nobody answers."""
    files, threads = files_open(), threading.active_count()
    with site.spool() as first:
        puts = [first.queue(f"q{number}").put(b"1") for number in range(1000)]
        for put in puts:
            put.accepted(DEADLINE_S)
        assert files_open() - files <= 50
        assert threading.active_count() - threads <= 10
    second = site.spool()
    until(lambda: len(second.spooled()) == 1000)
    assert all(status.messages == 1 for status in second.spooled().values())
    assert files_open() - files <= 50
    assert threading.active_count() - threads <= 10


def test_an_empty_spool_makes_no_queue(site: Site) -> None:
    node = site.begin()
    with site.spool() as first:
        put_all(first, "gone", "x", 1)
        put_all(first, "kept", "x", 1)
    node.queue("gone").delete()
    second = site.spool()
    put_all(second, "kept", "y", 1)
    assert [status.name for status in node.queues()] == ["kept"]


def test_block_drops_nothing(site: Site) -> None:
    """Each queue holds less than its bound, all together more than a queue's."""
    client = site.spool(spool_bytes_max=1 << 20)
    body = b"x" * 900_000
    puts = [client.queue(f"q{number}").put(body) for number in range(85)]
    for put in puts:
        put.accepted(DEADLINE_S)


def test_a_clock_that_is_set_ends_no_message(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = site.spool().queue("orders")
    orders.put(b"late", delay=1800).accepted(DEADLINE_S)
    orders.put(b"kept", ttl=1800).accepted(DEADLINE_S)
    wall, wall_us = time.time, clock.wall_us
    monkeypatch.setattr(time, "time", lambda: wall() + 3600)
    monkeypatch.setattr(clock, "wall_us", lambda: wall_us() + 3_600_000_000)
    node = site.begin()
    orders.wait_for_confirms(DEADLINE_S)
    with node.queue("orders") as queue:
        assert queue.get(timeout=DEADLINE_S).body == b"kept"
        assert queue.status().messages_delayed == 1


def test_nothing_is_accepted_once_its_files_are_gone(site: Site) -> None:
    orders = site.spool().queue("orders")
    orders.put(b"first").accepted(DEADLINE_S)
    shutil.rmtree(site.path / "spool")

    def refuses() -> bool:
        try:
            orders.put(b"later").accepted(1)
            return False
        except (TimeoutError, mirrorq.MirrorQError):
            return True

    until(refuses)


def test_a_nodes_spool_is_beside_its_store(tmp_path: Path) -> None:
    with mirrorq.Node("n", path=tmp_path / "n") as node:
        node.queue("orders", spool=True).put(b"1").accepted(DEADLINE_S)
        assert not (tmp_path / "n" / "spool").exists()
        assert (tmp_path / "n-spool" / "data.mdb").stat().st_mode & 0o077 == 0
        assert (tmp_path / "n-spool").stat().st_mode & 0o077 == 0


def test_targets_beyond_a_page_of_records_are_known(tmp_path: Path) -> None:
    names = {f"q{number}" for number in range(1100)}
    store = LocalStore(tmp_path / "spool", Config())
    for name in names:
        store.store_record(Record(name, True, False))
    store.put_aside([Aside("q1", "refused", b"", b"") for _ in range(1100)])
    store.close()
    store = LocalStore(tmp_path / "spool", Config())
    assert store.records.keys() == names
    assert store.aside_counts == {"q1": 1100}
    store.close()
