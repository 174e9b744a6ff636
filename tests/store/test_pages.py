"""Checkpoints in pages, and a power cut after every commit: the disk always has one whole state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest

from core.random_ops import CODEC, PLACE, apply_one, next_one
from harness.tiny_pages import tiny_pages
from mirrorq.config import Config
from mirrorq.node.verification import verify
from mirrorq.protocol.effects import Page, QueueImage, QueueWrite
from mirrorq.protocol.ops import AckOp, ProducerOp
from mirrorq.protocol.ring import TransferState
from mirrorq.replication.checkpoints import Checkpoints, Place
from mirrorq.replication.donor import Given, Incoming
from mirrorq.replication.state.pages import END, PageCache
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.store.node_store import Store
from mirrorq.store.offline import OfflineStore
from mirrorq.testing.disk import SimulatedDisk

QUEUE = 7


@pytest.fixture(autouse=True)
def tiny() -> Iterator[None]:
    with tiny_pages():
        yield


class Life:
    """A copy whose checkpoints go to a simulated disk and to a store, commit by commit."""

    def __init__(self, seed: int, store: Store | None = None) -> None:
        self.chance = Random(seed)
        self.disk = SimulatedDisk(1)
        self.store = store
        self.state = QueueState()
        self.state.keep_in(PageCache(self.disk.page), QUEUE)
        self.twin = QueueState()
        """What it would be without a disk."""
        self.checkpoints = Checkpoints()
        self.told: dict[int, bytes] = {0: QueueState().encode()}
        """Each state whose head was written, by lsn."""
        self.begun: dict[int, bytes] = {}

    def apply_one(self) -> None:
        """An op of chance, to both."""
        entry = next_one(self.chance, self.state)
        self.state.apply(entry)
        self.twin.apply(entry)

    def commit(self, write: QueueWrite) -> None:
        self.disk.commit([write], None)
        if self.store is not None:
            self.store.commit([write])
        for image in self.images():
            loaded = QueueState.of_image(image)
            assert loaded.encode() == self.told[max(self.told)]

    def images(self) -> list[QueueImage]:
        found = list(self.disk.images())
        return found + ([self.store.load(QUEUE)] if self.store is not None and found else [])

    def checkpoint(self) -> None:
        """Write one, over as many commits as it takes, while ops go on."""
        state = self.state
        while not self.checkpoints.begin_checkpoint(state):
            self.part()
        self.begun[state.applied] = state.encode()
        assert state.encode() == self.twin.encode()
        while self.checkpoints.is_open:
            self.part()
            if self.chance.random() < 0.5:
                self.apply_large()
            if self.chance.random() < 0.05:
                self.restart()  # in the middle of it
                return

    def apply_large(self) -> None:
        """An op that may change many pages: it waits for those that are to be written first."""
        entry = next_one(self.chance, self.state, reach=60)
        while not self.state.is_ready_for(entry):
            if self.state.is_full:
                self.part()
        self.state.apply(entry)
        self.twin.apply(entry)

    def part(self) -> None:
        pages, one = self.checkpoints.part(self.state)
        if one is not None:
            self.told[one.lsn] = self.begun[one.lsn]
        head = None if one is None else one.head
        lsn = 0 if one is None else one.lsn
        self.commit(QueueWrite(QUEUE, pages=tuple(pages), state=head, state_lsn=lsn, stable=1))
        if not self.checkpoints.is_open:
            self.state.release()

    def restart(self) -> None:
        """The process ends, wherever it is, and begins again with what is on the disk: what it
        does not need at once it reads when it wants it."""
        (image,) = self.disk.images(whole=False)
        self.state = QueueState.of_image(image, PageCache(self.disk.page))
        self.twin = QueueState.decode(self.state.encode())
        stale = image.stale if self.state.is_paged else (*image.stale, *image.pages)
        self.checkpoints = Checkpoints(stale, image.state_lsn)
        self.chance = Random(self.chance.random())

    def run(self, turns: int) -> None:
        for _ in range(turns):
            for _ in range(self.chance.randint(1, 20)):
                self.apply_one()
            self.checkpoint()
            if self.chance.random() < 0.3 and self.disk.queues:
                self.restart()


@pytest.mark.parametrize("seed", range(20))
def test_every_commit_leaves_the_last_whole_checkpoint(seed: int) -> None:
    """Whatever was written of the next one, and whatever of it was lost in earlier crashes."""
    life = Life(seed)
    life.run(15)
    life.checkpoints.drop_retained()
    for _ in range(1000):
        if not life.checkpoints.is_busy:
            break
        life.part()
    (image,) = life.disk.images()
    assert not image.stale
    on_disk = [one.on_disk() for one in life.state.tables.values()]
    assert sum(map(len, on_disk)) == len(image.pages)


@pytest.mark.parametrize("seed", range(6))
def test_a_store_keeps_pages_as_the_simulated_disk_does(tmp_path: Path, seed: int) -> None:
    """And `mirrorq check` finds nothing wrong with them, after a reset either."""
    store = Store(tmp_path / "a", node="a", config=Config())
    life = Life(seed, store)
    life.run(6)
    (image,) = life.disk.images()
    found = store.load(QUEUE)
    assert (found.pages, found.stale) == (image.pages, image.stale)
    assert store.queue_ids() == [QUEUE]
    store.commit([QueueWrite(QUEUE + 1, stable=1)])
    assert store.queue_ids() == [QUEUE, QUEUE + 1]
    store.commit([QueueWrite(QUEUE, reset=True, stable=1)])
    assert store.load(QUEUE).pages == store.load(QUEUE).stale == ()
    while store.collect():
        pass
    store.close()
    with OfflineStore(tmp_path / "a") as offline:
        assert not verify(offline).problems


class Join:
    """A state that comes to a life from another member, while both go on, until it is whole."""

    def __init__(self, life: Life, state: QueueState) -> None:
        self.life = life
        self.state = state
        """The donor's."""
        self.number = 0
        self.kept = 0
        """Pages that stayed where they were on the disk."""
        self.taken_up = 0
        """Of them those of a state that never was whole."""
        self._retained: Mapping[Place, Page] = {}
        self._begin()

    def _begin(self) -> None:
        self.number += 1
        self._given = Given(self.number, self.state)
        self.told = self.state.encode()
        self._retained = self.life.checkpoints.retain()
        cache = PageCache(self.life.disk.page)
        self._incoming = Incoming(self.life.state, self.number, QUEUE, cache, self._retained)

    def run(self) -> None:
        chance, life = self.life.chance, self.life
        came = None
        while came is None:
            number = self.number
            for part in self._incoming.due():
                if came is None and number == self.number:
                    came = self._ask(part)
            if chance.random() < 0.7 and life.checkpoints.is_busy:
                life.part()
                self._incoming.on_staged(life.checkpoints.staged_count)
            if chance.random() < 0.1:
                apply_one(chance, self.state)
            if came is None and chance.random() < 0.08:
                self._break()
        self._given.close()
        self._take(came)

    def _break(self) -> None:
        """The donor dies, or this process; and a copy whose transfer broke off may write what it
        has itself, which is never beyond what it is given."""
        chance, life = self.life.chance, self.life
        self._given.close()
        if chance.random() < 0.5 and life.disk.queues:
            life.restart()
        elif chance.random() < 0.5 and self.state.applied > life.state.applied:
            # A member that lacks nothing asks for no state: its left sends it what follows.
            for _ in range(chance.randint(0, self.state.applied - life.state.applied - 1)):
                life.apply_one()
            life.checkpoint()
        self._begin()

    def _ask(self, part: int) -> QueueState | None:
        self._given.know(self._incoming.request(QUEUE, 1, self.number, part))
        found = self._given.part(part)
        if found is None:  # Too much has changed since: it is given anew.
            self._given.close()
            self._begin()
            return None
        data, is_last, check = found
        lsn, told = self._given.lsn, (part, is_last, check)
        came = self._incoming.add_part(TransferState(QUEUE, 1, self.number, lsn, data, *told))
        fresh = self._incoming.take_fresh()
        self.life.checkpoints.stage(self.number, fresh)
        return came

    def _take(self, came: QueueState) -> None:
        life = self.life
        assert came.encode() == self.told
        lsns = [lsn for one in came.tables.values() for lsn in one.on_disk().values()]
        self.kept = len(lsns) - lsns.count(came.applied)
        self.taken_up = sum(
            came.tables[kind].written_lsn(first) == page.lsn
            for (kind, first), page in self._retained.items()
        )
        life.begun[came.applied] = self.told
        life.checkpoints.replace(life.state, came)
        life.state, life.twin = came, QueueState.decode(self.told)


def joined(seed: int) -> Join:
    """A copy that has something on its disk, and perhaps a checkpoint under way, gets a state."""
    life = Life(seed)
    life.run(life.chance.choice((0, 1, 4)))
    state = QueueState.decode(life.twin.encode())
    for _ in range(life.chance.choice((1, 5, 80))):
        apply_one(life.chance, state)
    if life.chance.random() < 0.5:
        while not life.checkpoints.begin_checkpoint(life.state):
            life.part()
        life.begun[life.state.applied] = life.state.encode()
        life.part()
    join = Join(life, state)
    join.run()
    return join


@pytest.mark.slow
def test_a_state_that_comes_is_staged_and_then_counts_at_once() -> None:
    """Each commit leaves the last whole checkpoint: that of this copy until the head of the other
    is there. What was the same stays where it was, and nothing else of the past is left."""
    kept = taken_up = 0
    # 322: a page is the same in an older state.
    for seed in (*range(60), 322):
        join = joined(seed)
        life, kept, taken_up = join.life, kept + join.kept, taken_up + join.taken_up
        while life.checkpoints.is_open:
            life.part()
            life.apply_large()
        assert life.told[max(life.told)] == join.told
        assert life.state.encode() == life.twin.encode()
        life.run(2)
        life.checkpoints.drop_retained()
        while life.checkpoints.is_busy:
            life.part()
        (image,) = life.disk.images()
        assert not image.stale
        on_disk = [one.on_disk() for one in life.state.tables.values()]
        assert sum(map(len, on_disk)) == len(image.pages)
    assert kept > 30
    assert taken_up > 30


def test_what_is_small_is_one_value_as_it_always_was() -> None:
    """An older mirrorq reads it; when it becomes small again its pages go."""
    life = Life(1)
    life.run(3)
    state = life.state
    for end in (AckOp(((1, END),)), ProducerOp("", tuple(state.producers))):
        # Late enough for the window of each unique key to have ended.
        entry = CODEC.op(end, **PLACE, lsn=state.applied + 1, timestamp_us=2**62)
        state.apply(entry)
        life.twin.apply(entry)
    life.checkpoint()
    life.checkpoints.drop_retained()
    while life.checkpoints.is_busy:
        life.part()
    (image,) = life.disk.images()
    assert QueueState.decode(image.state).encode() == image.state == life.told[image.state_lsn]
    assert not image.pages
    assert not image.stale
