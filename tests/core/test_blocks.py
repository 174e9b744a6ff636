"""Sizes and times in blocks, most of them on the disk alone: they answer as if all were at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from harness.tiny_pages import tiny_pages
from mirrorq.protocol.effects import COLUMNS, QueueImage
from mirrorq.protocol.ops import AckOp
from mirrorq.protocol.ring import TransferState
from mirrorq.replication.donor import Given, Incoming
from mirrorq.replication.state import pages
from mirrorq.replication.state.pages import PageCache
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.wire.frames import pack_publish

from .paged_state import QUEUE, PagedState
from .random_ops import CODEC, PLACE

COUNT = 200


@pytest.fixture(autouse=True)
def tiny() -> Iterator[None]:
    with tiny_pages():
        yield


class Deep(PagedState):
    """A queue of messages that differ in size, time and ttl, on a disk; what is known of each."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.known: dict[int, tuple[int, int, int]] = {}
        """Sequence -> (size, time, ttl)."""

    def note_read(self, kind: int, first: int) -> None:
        assert kind == COLUMNS
        self.reads.append(first)

    def publish(self) -> None:
        chance, state = self.chance, self.state
        sizes = [chance.choice((3, 3, 5, 8)) for _ in range(chance.randint(1, 9))]
        ttl_ms, lsn = chance.choice((0, 0, 9)), state.applied + 1
        frame = pack_publish([bytes(n) for n in sizes], producer=0, first_number=0, ttl_ms=ttl_ms)
        where = {**PLACE, "lsn": lsn, "timestamp_us": lsn // 3 * 1000}
        entry = CODEC.publish(frame, first_sequence=state.next_sequence, **where)
        for sequence, size in enumerate(sizes, state.next_sequence):
            self.known[sequence] = (size, lsn // 3, ttl_ms)
        state.apply(entry)

    def ack(self, first: int, last: int) -> None:
        lsn = self.state.applied + 1
        where = {**PLACE, "lsn": lsn, "timestamp_us": 0}
        self.state.apply(CODEC.op(AckOp(((first, last),)), **where))
        for sequence in range(first, last + 1):
            self.known.pop(sequence, None)

    def check(self) -> None:
        """Whatever is asked of any stretch of live messages is right."""
        columns, chance = self.state.columns, self.chance
        assert {n for low, high in self.state.live for n in range(low, high + 1)} == {*self.known}
        for low, high in self.state.live:
            first, last = sorted(chance.randint(low, high) for _ in range(2))
            known = [self.known[n] for n in range(first, last + 1)]
            assert columns.total(first, last) == sum(size for size, _, _ in known)
            assert list(_spread(columns.stamps(first, last))) == [stamp for _, stamp, _ in known]
            assert list(_spread(columns.ttls(first, last))) == [ttl for _, _, ttl in known]
            assert columns.size(first) == known[0][0]
            assert columns.stamp_ms(last) == known[-1][1]
            wanted = chance.randint(1, sum(size for size, _, _ in known) + 5)
            assert columns.reach(first, last, wanted) == _reached(first, known, wanted)
            stamp_ms = chance.choice(known)[1] + chance.choice((0, 1))
            later = [n for n, one in enumerate(known, first) if one[1] >= stamp_ms]
            assert columns.since(stamp_ms, first, last) == (later[0] if later else None)


def filled(seed: int) -> Deep:
    """So many messages that columns have blocks, with a checkpoint behind them."""
    deep = Deep(seed)
    while deep.state.live.count < COUNT:
        deep.publish()
    deep.checkpoint()
    return deep


def _spread(runs: Iterator[tuple[int, int, int]]) -> Iterator[int]:
    for first, last, value in runs:
        yield from [value] * (last - first + 1)


def _reached(first: int, known: list[tuple[int, int, int]], wanted: int) -> int:
    for sequence, (size, _, _) in enumerate(known, first):
        wanted -= size
        if wanted <= 0:
            return sequence
    return first + len(known) - 1


@pytest.mark.parametrize("seed", range(12))
def test_what_is_on_the_disk_alone_is_read_when_it_is_asked_for(seed: int) -> None:
    """After publishes, acks anywhere, checkpoints and restarts, with room for two blocks in
    memory: each answer is that of the messages themselves."""
    deep = Deep(seed)
    for _ in range(12):
        for _ in range(deep.chance.randint(5, 25)):
            deep.publish()
            if deep.chance.random() < 0.4:
                low = deep.chance.randint(1, deep.state.next_sequence)
                deep.ack(low, low + deep.chance.choice((0, 2, 30)))
        deep.check()
        deep.checkpoint()
        deep.check()
        if deep.chance.random() < 0.5:
            deep.restart()
            deep.check()
        assert len(deep.state.columns._held) == 0
    assert deep.reads


def test_a_start_reads_of_the_blocks_the_last_one_only() -> None:
    """However many there are. What all of them come to together is known without them."""
    deep = filled(1)
    deep.reads.clear()
    deep.restart()
    tail = deep.state.columns.table.firsts[-1]
    assert len(deep.state.columns.table.firsts) > 20
    size = sum(size for size, _, _ in deep.known.values())
    assert deep.state.columns.total(1, deep.state.live.last) == size
    assert [*dict.fromkeys(deep.reads)] in ([tail], [tail, 0])
    for _ in range(3):
        deep.publish()
    assert {*deep.reads} <= {tail, 0}


def test_acks_read_and_write_no_block_that_is_full() -> None:
    """What has ended stays in it; the block goes when nothing in it lives."""
    deep = filled(2)
    deep.reads.clear()
    before = {page for page in deep.disk.queues[QUEUE].pages if page[0] == COLUMNS}
    deep.ack(30, 31)
    deep.ack(1, 20)
    deep.checkpoint()
    after = {page for page in deep.disk.queues[QUEUE].pages if page[0] == COLUMNS}
    assert not deep.reads
    assert after < before
    deep.ack(1, COUNT * 2)
    deep.checkpoint()
    assert not [page for page in deep.disk.queues[QUEUE].pages if page[0] == COLUMNS]


def taken_over(given: Given, incoming: Incoming, after_part: Callable[[int], None]) -> QueueState:
    """The state, taken part by part."""
    part, state = 0, None
    while state is None:
        part += 1
        given.know(incoming.request(QUEUE, 1, 1, part))
        found = given.part(part)
        assert found is not None
        data, is_last, check = found
        state = incoming.add_part(TransferState(QUEUE, 1, 1, given.lsn, data, part, is_last, check))
        after_part(part)
    return state


def test_a_state_is_given_whole_though_blocks_end_meanwhile() -> None:
    """A block of which nothing lives any more stays for who still wants its page."""
    deep = filled(3)
    own = QueueState()
    told, given, incoming = deep.state.encode(), Given(1, deep.state), Incoming(own)

    def meanwhile(part: int) -> None:
        if part == 2:
            deep.ack(1, COUNT // 2)
        deep.checkpoint()

    state = taken_over(given, incoming, meanwhile)
    assert state.encode() == told
    given.close()
    deep.checkpoint()
    assert min(first for kind, first, _ in deep.disk.queues[QUEUE].pages if kind == COLUMNS) > 10


def test_what_is_still_on_its_way_to_the_disk_is_not_read_from_it() -> None:
    """A state comes before the last checkpoint has landed, pages of which it has as they are."""
    deep, donor = Deep(3), Deep(3)
    while deep.state.live.count < COUNT:
        deep.publish()
        donor.publish()
    assert deep.checkpoints.begin_checkpoint(deep.state)
    while deep.checkpoints.is_open:
        deep.checkpoints.part(deep.state)  # and no commit
    donor.ack(1, 1)
    given = Given(1, donor.state)
    incoming = Incoming(deep.state, 1, QUEUE, deep.cache())
    state = taken_over(given, incoming, lambda _: None)
    assert state.encode() == donor.state.encode()
    assert not deep.reads


def test_a_page_that_is_on_the_disk_alone_is_given_as_it_is_there() -> None:
    """It is what the block would be written as, and nobody's block leaves the memory for it."""
    deep = filled(4)
    state = deep.state
    cache = state.columns._cache
    cache._pages.clear()
    stretches = [stretch for kind, stretch in state.all_pages() if kind == COLUMNS]
    given = [state.page(COLUMNS, *stretch) for stretch in stretches]
    assert len(deep.reads) == len(stretches) - 1, "all but the last, which is in memory"
    assert not cache._pages
    state.encode()
    assert [state.columns._block(n).encode() for n in range(len(stretches))] == given


def test_memory_has_so_many_blocks_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all queues that share a cache."""
    monkeypatch.setattr(pages, "CACHED_PAGES", 5)
    deep = filled(4)
    deep.state.encode()
    cache = deep.state.columns._cache
    other = QueueState.of_image(deep.disk.images(whole=False)[0], cache)
    assert other.encode() == deep.state.encode()
    assert len(cache._pages) == 5


def test_a_block_that_is_damaged_is_of_unknown_sizes_and_times() -> None:
    """The queue goes on; those of its messages count no bytes."""
    deep = filled(5)
    (image,) = deep.disk.images(whole=False)
    real = deep.disk.page
    broken = deep.state.columns.table.firsts[3]

    def read(queue_id: int, kind: int, first: int, lsn: int) -> bytes:
        return b"" if first == broken else real(queue_id, kind, first, lsn)

    state = QueueState.of_image(image, PageCache(read))
    assert (state.columns.size(broken), state.columns.stamp_ms(broken)) == (0, 0)
    assert state.columns.size(broken - 1) == deep.known[broken - 1][0]
    assert state.live.count == len(deep.known)


def test_a_page_of_columns_that_is_missing_is_noticed() -> None:
    """The lines of the blocks and the head say which there are."""
    deep = filled(6)
    (image,) = deep.disk.images()
    for index, page in enumerate(image.pages):
        if page.kind == COLUMNS:
            rest = (*image.pages[:index], *image.pages[index + 1 :])
            with pytest.raises(ValueError, match="blocks"):
                QueueState.of_image(QueueImage(QUEUE, image.state, image.state_lsn, pages=rest))
