"""A store that is full, and is drained while producers go on: every put is confirmed in the end."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests import kit
from tests.kit import DEADLINE_S, until

from mirrorq import (
    Config,
    Confirmation,
    Full,
    MirroredQueue,
    Node,
    NoQuorum,
    NotConfirmed,
    QueueDown,
    StoreFull,
    connect,
)

pytestmark = pytest.mark.soak

MIB = 1 << 20
WAITING_BYTES = 33 * MIB
"""More than a handle may have unconfirmed: some wait in `put`."""
WAITING_COUNT = 8000
DISK_MIB = 32


class Producer:
    """Puts `count` messages of one size, each once, from a thread of its own."""

    def __init__(self, queue: MirroredQueue, size: int, count: int) -> None:
        self.confirmations: list[Confirmation] = []
        self._queue, self._body, self._count = queue, b"x" * size, count
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for _ in range(self._count):
            self.confirmations.append(self._queue.put(self._body, timeout=DEADLINE_S))

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive() and all(one.done() for one in self.confirmations)

    def unconfirmed(self) -> int:
        return self._count - sum(
            one.done() and one.exception(0) is None for one in self.confirmations
        )


@contextmanager
def nodes(path: Path, names: str, **config: int) -> Iterator[list[Node]]:
    with kit.nodes(path, names, Config(**config)) as started:
        yield [*started.values()]


@pytest.fixture
def disk_of(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Small file systems in memory, one for a name."""
    with ExitStack() as ending:
        yield lambda name: kit.mount_tmpfs(ending, tmp_path / name, DISK_MIB * MIB)


def fill_up(disk: Path) -> None:
    """Leave not one block to anybody."""
    with (disk / "ballast").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 9):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    free = os.statvfs(disk)
    assert free.f_bavail == 0


def drain(queue: MirroredQueue, producer: Producer, wanted: int) -> int:
    """Take and ack until every put has its outcome and so many came, and then what is still there;
    return how many came. (That none is ready for a moment says little: after a failover some are
    on their way back.)"""
    count, looked_at = 0, time.monotonic()
    while not (producer.is_done and count >= wanted and queue.qsize() == 0):
        if messages := queue.get_many(500, timeout=0.1):
            queue.ack_many(messages).result(DEADLINE_S)
            count += len(messages)
            looked_at = time.monotonic()
        assert time.monotonic() - looked_at < DEADLINE_S, queue.status()
    return count


@pytest.mark.parametrize(
    ("names", "store_mib", "size"),
    [
        ("a", 1, 100),
        ("a", 4, 2000),
        ("a", 16, 30_000),
        ("a", 16, 100_000),
        ("a", 8, 5_000_000),
        ("abc", 8, 2000),
        ("abc", 8, 100_000),
    ],
)
def test_a_store_is_drained_while_producers_go_on(
    tmp_path: Path, names: str, store_mib: int, size: int
) -> None:
    """Puts until the store is full and more wait; everything is taken and acked: no put stays
    unconfirmed, whatever the size of messages and however often freed pages are used again."""
    with nodes(tmp_path, names, store_bytes_max=store_mib * MIB) as started:
        handles = [node.queue("jobs", timeout=DEADLINE_S) for node in started]
        until(lambda: len(handles[0].status().synchronised_mirrors) == len(names) - 1)
        waiting = min(WAITING_BYTES // (size + 88), WAITING_COUNT)
        count = store_mib * MIB // (size + 88) + waiting
        producer = Producer(handles[-1], size, count)
        until(lambda: "is full" in handles[0].status().blocked_by or producer.is_done)
        assert not producer.is_done, "the store was never full"
        assert drain(handles[0], producer, count) == count
        assert producer.unconfirmed() == 0
        until(lambda: handles[0].status().blocked_by == "")


def test_what_no_store_ever_takes_is_refused(tmp_path: Path) -> None:
    """A message larger than the whole store does not wait for ever, nor hold others up."""
    with nodes(tmp_path, "a", store_bytes_max=MIB) as (node,), node.queue("jobs") as queue:
        large = queue.put(b"x" * (2 * MIB))
        small = queue.put(b"x")
        error = large.exception(DEADLINE_S)
        assert isinstance(error, NotConfirmed)
        assert "raise store_bytes_max" in str(error)
        assert small.result(DEADLINE_S) == 1


@pytest.mark.parametrize("is_taken", [False, True], ids=["by its messages", "by others"])
@pytest.mark.parametrize(
    ("names", "full", "size"),
    [("a", "a", 2000), ("abc", "a", 2000), ("abc", "b", 100_000), ("abc", "abc", 30_000)],
)
def test_a_full_disk_is_drained_while_producers_go_on(
    tmp_path: Path,
    disk_of: Callable[[str], Path],
    names: str,
    full: str,
    size: int,
    is_taken: bool,
) -> None:
    """Of one node, a master or a mirror, or of all: gets and acks go on, every put is confirmed in
    the end, and every copy is in sync again although nobody has given space back."""
    disks = [disk_of(name) for name in full]
    with nodes(tmp_path, names) as started:
        handles = [node.queue("jobs", timeout=DEADLINE_S) for node in started]
        until(lambda: len(handles[0].status().synchronised_mirrors) == len(names) - 1)
        for confirmation in [handles[0].put(b"x" * size) for _ in range(20)]:
            confirmation.result(DEADLINE_S)
        if is_taken:
            for disk in disks:
                fill_up(disk)
        count = min(DISK_MIB * MIB * 3 // 2 // (size + 88), 2 * WAITING_COUNT)
        producer = Producer(handles[-1], size, count)
        until(lambda: any("space on its disk" in one.status().blocked_by for one in handles))
        assert drain(handles[0], producer, 20 + count) == 20 + count
        assert producer.unconfirmed() == 0
        until(lambda: len(handles[0].status().synchronised_mirrors) == len(names) - 1)
        assert handles[0].put(b"more").result(DEADLINE_S)


def test_a_node_starts_on_a_full_disk(tmp_path: Path, disk_of: Callable[[str], Path]) -> None:
    """What it held is there, can be taken and acked, and the acks are there at the next start."""
    disk = disk_of("a")
    with nodes(tmp_path, "a") as (node,), node.queue("jobs") as queue:
        for confirmation in [queue.put(b"x" * 1000) for _ in range(50)]:
            confirmation.result(DEADLINE_S)
        fill_up(disk)
    with nodes(tmp_path, "a") as (node,), node.queue("jobs") as queue:
        for _ in range(30):
            queue.get(timeout=DEADLINE_S).ack().result(DEADLINE_S)
    with nodes(tmp_path, "a") as (node,), node.queue("jobs") as queue:
        assert queue.qsize() == 20


def test_others_see_that_a_disk_is_full(tmp_path: Path, disk_of: Callable[[str], Path]) -> None:
    """The alarm of the node with the full disk reaches all nodes."""
    disk = disk_of("b")
    with nodes(tmp_path, "abc") as started:
        handles = [node.queue("jobs", timeout=DEADLINE_S) for node in started]
        until(lambda: len(handles[0].status().synchronised_mirrors) == 2)
        fill_up(disk)
        until(lambda: alarms_of(started[0], "b") == ("disk_low",), started[0].nodes)
        (disk / "ballast").unlink()
        until(lambda: alarms_of(started[0], "b") == (), started[0].nodes)


def alarms_of(node: Node, name: str) -> tuple[str, ...]:
    (found,) = [one.alarms for one in node.nodes() if one.name == name]
    return tuple(found)


def take_all(queue: MirroredQueue) -> None:
    """What the handle has fetched ahead, or may be handed out, still comes; then it raises."""
    while True:
        queue.get(timeout=0.2)


def put_all(
    queue: MirroredQueue, body: bytes, timeout: float, last: list[Confirmation] | None = None
) -> None:
    """Put until it raises; the last that was taken is in `last`."""
    while True:
        confirmation = queue.put(body, timeout=timeout)
        if last is not None:
            last[:] = [confirmation]


class FullDisk:
    """Commits of this node fail until `end`, as on a disk on which even the reserve is used up."""

    def __init__(self, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self._driver = node._driver
        self._patch = monkeypatch

        def refuse(*_: object) -> None:
            raise StoreFull("0 bytes free on the disk: make space on the disk")

        monkeypatch.setattr(self._driver._store, "commit", refuse)

    def end(self) -> None:
        self._patch.undo()


def test_a_full_disk_does_not_look_like_an_empty_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing can be written, get, put and what waits for an outcome say why; not `Empty`."""
    config = {"unconfirmed_count_max": 3}
    with nodes(tmp_path, "a", **config) as (node,), node.queue("jobs") as queue:
        for confirmation in [queue.put(b"x") for _ in range(3)]:
            confirmation.result(DEADLINE_S)
        disk = FullDisk(node, monkeypatch)
        late = queue.put(b"late")
        until(lambda: node._stuck_text)
        with pytest.raises(QueueDown, match=r"node a cannot write: 0 bytes free.* make space"):
            take_all(queue)
        with pytest.raises(TimeoutError, match=r"cannot write: 0 bytes free.* make space"):
            late.result(0.1)
        with pytest.raises(QueueDown, match="cannot write: 0 bytes free"):
            put_all(queue, b"more", timeout=0.1)
        assert "0 bytes free" in queue.status().blocked_by
        disk.end()
        assert late.result(DEADLINE_S) == 4


def test_a_put_that_waits_for_room_says_so(tmp_path: Path) -> None:
    """A store that is full, and can be drained: `Full` and the time-out name it, and what to do."""
    config = {"store_bytes_max": MIB, "unconfirmed_count_max": 12}
    with nodes(tmp_path, "a", **config) as (node,), node.queue("jobs") as queue:
        why = "the store of node a is full: consume and ack, or raise store_bytes_max"
        last: list[Confirmation] = []
        with pytest.raises(Full, match=f"12 messages .*{why}"):
            put_all(queue, b"x" * 50_000, timeout=2, last=last)
        with pytest.raises(TimeoutError, match=why):
            last[0].result(0.1)
        assert queue.get(timeout=DEADLINE_S).body == b"x" * 50_000


def test_clients_leave_a_node_that_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are told so in its signs of life, go on to a node that works, and what they had put is
    confirmed there; one that has nowhere else to go is told why nothing moves."""
    with nodes(tmp_path, "abc") as started:
        handle = started[0].queue("jobs", timeout=DEADLINE_S)
        until(lambda: len(handle.status().synchronised_mirrors) == 2)
        b, others = started[1], [started[0].endpoint, started[2].endpoint]
        with connect([b.endpoint]) as bound, connect([b.endpoint, *others]) as client:
            queue, stuck = client.queue("jobs"), bound.queue("jobs")
            queue.put(b"before").result(DEADLINE_S)
            assert client._driver.entry_node == "b"
            disk = FullDisk(b, monkeypatch)
            confirmation = queue.put(b"after")
            assert confirmation.result(DEADLINE_S)
            until(lambda: client._driver.entry_node in ("a", "c"))
            until(lambda: "node b cannot write: 0 bytes free" in bound._stuck_text)
            with pytest.raises(NoQuorum, match="0 bytes free"):
                take_all(stuck)
            disk.end()
            assert stuck.put(b"again").result(DEADLINE_S)


def test_a_put_many_that_is_refused_in_the_middle_says_which(tmp_path: Path) -> None:
    """Above one frame it may be stored in part: the error names what was stored and what not."""
    config = {"message_bytes_max": 1000, "frame_bytes_max": 8 * 1024}
    with nodes(tmp_path, "a", **config) as (node,), node.queue("jobs") as queue:
        node.set_policy("p", "jobs", {"max-length-bytes": 9000, "overflow": "reject-publish"})
        bodies = [b"%03d" % number + b"x" * 800 for number in range(20)]
        error = queue.put_many(bodies).exception(DEADLINE_S)
        assert isinstance(error, NotConfirmed)
        stored = [sequence for piece in error.stored for sequence in piece]
        refused = [index for piece in error.refused for index in piece]
        assert 0 not in refused
        assert 19 not in refused
        assert len(refused) in range(1, 20)
        (piece,) = error.refused
        assert f"{len(refused)} of 20 messages were not stored" in str(error)
        assert f"{piece.start} to {piece.stop - 1} of the list" in str(error)
        there = queue.get_many(20, timeout=DEADLINE_S)
        assert [one.sequence for one in there] == stored
        assert [one.body for one in there] == [
            body for index, body in enumerate(bodies) if index not in refused
        ]
