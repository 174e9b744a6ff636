"""A state in pages: whatever happens meanwhile, they are the state of one moment."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from mirrorq.protocol.effects import Page, QueueImage, sorted_out
from mirrorq.protocol.ops import (
    AckOp,
)
from mirrorq.replication.state import pages
from mirrorq.replication.state.pages import COLUMNS, END, MESSAGES, PRODUCERS, Snapshot, Table
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.wire.frames import pack_publish

from .random_ops import CODEC, PLACE, apply_one, next_one


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a few messages: every boundary is met."""
    monkeypatch.setattr(pages, "ENTRIES_MAX", {MESSAGES: 6, PRODUCERS: 2, COLUMNS: 6})


def _taken(snapshot: Snapshot) -> Iterator[Page]:
    while (page := snapshot.next_page()) is not None:
        yield page


def _built(head: bytes, found: list[Page]) -> QueueState:
    return QueueState.of_image(QueueImage(1, head, 1, pages=tuple(found)))


@pytest.mark.parametrize("seed", range(60))
def test_pages_of_a_moment_are_the_state_of_that_moment(seed: int) -> None:
    """Pages are taken one by one while ops go on; put together they are the state as it was when
    the first was asked for, and it goes on like the one that was never taken apart."""
    chance = Random(seed)
    state = QueueState()
    for _ in range(chance.randint(1, 60)):
        apply_one(chance, state)
    head, before = state.encode_head(), state.encode()
    snapshot = Snapshot(state, state.applied, state.all_pages(), {}, is_awaited=False)
    state.snapshots.append(snapshot)
    taken: list[Page] = []
    while (page := snapshot.next_page()) is not None:
        taken += [page] if page.data else []
        for _ in range(chance.choice((0, 0, 1, 3))):
            apply_one(chance, state)
    assert not snapshot.is_void
    again = _built(head, taken)
    assert again.encode() == before
    assert again.columns.total(*again.live.front()) if again.live else True
    seed = chance.randint(0, 1000)
    straight = QueueState.decode(before)
    for one in (again, straight):
        ops = Random(seed)
        for _ in range(20):
            apply_one(ops, one)
    assert again.encode() == straight.encode()


@pytest.mark.parametrize("seed", range(60))
def test_pages_on_disk_are_the_state_after_what_has_changed_is_written(seed: int) -> None:
    """Checkpoints write what has changed since the last one, and nothing else: what is on the disk
    then, with the head, is the state at that lsn."""
    chance = Random(1000 + seed)
    state = QueueState()
    disk: dict[tuple[int, int], Page] = {}
    for _ in range(8):
        for _ in range(chance.randint(1, 25)):
            apply_one(chance, state)
        head, before = state.encode_head(), state.encode()
        snapshot = Snapshot(
            state, state.applied, state.changed_pages(), state.tables, is_awaited=True
        )
        state.snapshots.append(snapshot)
        written: list[Page] = []
        for page in _taken(snapshot):
            written.append(page)
            if chance.random() < 0.3:
                apply_one(chance, state)
        state.snapshots.remove(snapshot)
        for page in written:
            state.tables[page.kind].place(page.first, page.lsn if page.data else 0)
            disk[page.kind, page.first] = page
        for kind, table in state.tables.items():
            for first in table.gone:
                del disk[kind, first]
            table.gone.clear()
            assert set(table.on_disk()) == {f for k, f in disk if k == kind and disk[k, f].data}
        found = [page for _, page in sorted(disk.items()) if page.data]
        assert _built(head, found).encode() == before


def test_equal_messages_are_one_page_and_different_ones_many() -> None:
    """However many they are; each page is below the bound."""
    state = QueueState()
    for lsn in range(1, 200):
        frame = pack_publish([b"x"] * 10, producer=0, first_number=0)
        where = {**PLACE, "lsn": lsn, "timestamp_us": 0}
        state.apply(CODEC.publish(frame, first_sequence=state.next_sequence, **where))
    assert [page.kind for page in _taken(_changed(state))] == [MESSAGES, COLUMNS]
    for lsn in range(200, 300):
        frame = pack_publish([bytes(lsn % 7)], producer=0, first_number=0)
        where = {**PLACE, "lsn": lsn, "timestamp_us": lsn * 1000}
        state.apply(CODEC.publish(frame, first_sequence=state.next_sequence, **where))
    assert len([*_taken(_changed(state))]) > 20
    assert max(state.count_within(*one) for one in _stretches(state) if one[0] == MESSAGES) <= 6
    assert all(block.runs <= 6 for block in map(state.columns._block, range(17)))
    state.apply(CODEC.op(AckOp(((2050, 2050),)), **PLACE, lsn=300, timestamp_us=0))
    assert {page.kind for page in _taken(_changed(state))} == {MESSAGES}


def _changed(state: QueueState) -> Snapshot:
    return Snapshot(state, state.applied, state.changed_pages(), state.tables, is_awaited=True)


def _stretches(state: QueueState) -> list[tuple[int, int, int]]:
    return [(kind, *stretch) for kind, stretch in state.all_pages()]


@pytest.mark.parametrize("seed", range(60))
def test_a_large_change_waits_for_its_pages(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step makes more pages for an op, and no more are kept for all of them, than the bounds;
    the op waits, and what is taken meanwhile is the state of the one moment."""
    monkeypatch.setattr(pages, "PREIMAGES_MAX", 2)
    monkeypatch.setattr(pages, "KEPT_MAX", 4)
    chance, state = Random(seed), QueueState()
    for _ in range(chance.randint(40, 120)):
        apply_one(chance, state)
    head, before = state.encode_head(), state.encode()
    snapshot = _changed(state)
    state.snapshots.append(snapshot)
    taken: list[Page] = []
    for _ in range(30):
        entry = next_one(chance, state, reach=100)
        kept = len(snapshot._kept)
        while not state.is_ready_for(entry):
            assert len(snapshot._kept) - kept <= 2
            if state.is_full:
                taken += [page for page in (snapshot.next_page(), snapshot.next_page()) if page]
            kept = len(snapshot._kept)
        assert len(snapshot._kept) - kept <= 2
        state.apply(entry)
        assert len(snapshot._kept) <= 4
    taken += _taken(snapshot)
    order = sorted((page for page in taken if page.data), key=lambda page: (page.kind, page.first))
    assert _built(head, order).encode() == before


def test_what_a_joiner_is_given_is_void_before_it_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody waits for another node: it begins anew, and what was kept for it is kept no more."""
    monkeypatch.setattr(pages, "KEPT_MAX", 3)
    state = QueueState()
    for lsn in range(1, 100):
        frame = pack_publish([bytes(lsn % 7)], producer=0, first_number=0)
        where = {**PLACE, "lsn": lsn, "timestamp_us": lsn * 1000}
        state.apply(CODEC.publish(frame, first_sequence=state.next_sequence, **where))
    snapshot = Snapshot(state, state.applied, state.all_pages(), {}, is_awaited=False)
    state.snapshots.append(snapshot)
    for lsn, acked, is_void in ((100, (1, 1), False), (101, (2, 90), True)):
        entry = CODEC.op(AckOp((acked,)), **PLACE, lsn=lsn, timestamp_us=0)
        assert state.is_ready_for(entry)
        assert snapshot.is_void == is_void
        state.apply(entry)
    assert not snapshot._kept


def test_a_missing_page_is_noticed() -> None:
    """The head says how many messages and producers there are."""
    chance, state = Random(3), QueueState()
    for _ in range(60):
        apply_one(chance, state)
    found = [page for page in _taken(_changed(state)) if page.data]
    for index in range(len(found)):
        with pytest.raises(ValueError, match="pages of"):
            _built(state.encode_head(), found[:index] + found[index + 1 :])
        with pytest.raises(ValueError, match=r"late|twice|pages of"):
            _built(state.encode_head(), [*found[: index + 1], *found[index:]])


def test_of_two_pages_the_newest_that_the_checkpoint_covers_counts() -> None:
    """Others are stale: older ones, those of a checkpoint that never came to its end, and the words
    that a page is no more."""
    old, new, later = (Page(0, 5, lsn, b"x") for lsn in (3, 7, 9))
    gone, no_more, other = Page(0, 9, 2, b"x"), Page(0, 9, 7, b""), Page(1, 5, 4, b"x")
    found = sorted_out([later, other, new, gone, old, no_more], 8)
    assert found == ((new, other), (gone, old, no_more, later))


def test_a_table_divides_all_numbers() -> None:
    """A page that holds nothing is the one's before; it may come back."""
    table = Table()
    table.split(0, 8)
    table.split(8, 12)
    assert [table.stretch(first) for first in table.firsts] == [(0, 7), (8, 11), (12, END)]
    assert [table.place(first, 5) for first in (0, 8, 12)] == [0, 0, 0]
    table.changed.clear()
    table.touch(7, 8)
    assert sorted(table.changed) == [0, 8]
    table.drop(8)
    assert table.stretch(0) == (0, 11)
    assert table.gone == {8: 5}
    assert table.on_disk() == {0: 5, 8: 5, 12: 5}
    table.split(0, 8)
    assert not table.gone
    assert table.place(8, 6) == 5
