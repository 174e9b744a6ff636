"""Producers in pages, most of them on the disk alone: they answer as if all were at hand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from msgspec.msgpack import decode
from msgspec.structs import replace

from harness.tiny_pages import tiny_pages
from mirrorq.protocol.effects import LATER, PRODUCERS, Page
from mirrorq.protocol.identities import OUTBOX_BIT, is_key
from mirrorq.protocol.ops import FLAG_UNIQUE, Entry, ProducerOp, PromotedOp
from mirrorq.replication.donor import Given
from mirrorq.replication.state.pages import END
from mirrorq.replication.state.producer import HELD_PAGES, OPEN_PAGES
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.wire.frames import pack_publish
from mirrorq.wire.properties import digest_of, pack_properties

from .paged_state import QUEUE, PagedState
from .random_ops import CODEC, PLACE

COUNT = 60


class Many(PagedState):
    """A queue of many producers on a disk, and what is known of each."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.known: dict[int, int] = {}
        """Id -> its highest number."""

    def note_read(self, kind: int, first: int) -> None:
        assert kind in LATER
        self.reads += [first] if kind == PRODUCERS else []

    def open(self) -> int:
        """A producer gets an id."""
        lsn = self._op(ProducerOp("a/1"))
        self.known[lsn] = 0
        return lsn

    def end(self, *numbers: int) -> None:
        self._op(ProducerOp("", numbers))
        for number in numbers:
            del self.known[number]

    def _op(self, payload: ProducerOp) -> int:
        lsn = self.state.applied + 1
        self.state.apply(CODEC.op(payload, **PLACE, lsn=lsn, timestamp_us=lsn))
        return lsn

    def publish(self, producer: int) -> None:
        lsn, number = self.state.applied + 1, self.known.get(producer, 0) + 1
        frame = pack_publish([b"x"], producer=producer, first_number=number, settled=number - 1)
        where = {**PLACE, "lsn": lsn, "timestamp_us": lsn}
        entry = CODEC.publish(frame, first_sequence=self.state.next_sequence, **where)
        self.state.apply(entry)
        self.known[producer] = number

    def publish_unique(self, unique: str) -> None:
        """A message without a producer of its own; its key is kept as one."""
        properties = pack_properties(None, None, None, unique=(digest_of(unique), 1))
        frame = pack_publish([b"x"], [properties], flags=FLAG_UNIQUE)
        lsn = self.state.applied + 1
        where = {**PLACE, "lsn": lsn, "timestamp_us": lsn}
        entry = CODEC.publish(frame, first_sequence=self.state.next_sequence, **where)
        self.state.apply(entry)
        (key,) = entry.keys
        assert key is not None
        self.known[key.producer] = 1

    def any_op(self) -> None:
        chance, known = self.chance, self.known
        kind = chance.random()
        if kind < 0.45 or not known:
            self.open()
        elif kind < 0.55:
            self.publish(OUTBOX_BIT + chance.randint(1, 9))
        elif kind < 0.65:
            self.publish_unique(f"key {chance.randint(1, 20)}")
        elif kind < 0.85 or len(known) < COUNT // 2:
            self.publish(chance.choice([one for one in known if not is_key(one)] or [OUTBOX_BIT]))
        else:
            first = chance.randrange(len(known))
            ended = [*known][first : first + chance.randint(1, 9)]
            if givers := [one for one in ended if not is_key(one)]:
                self.end(*givers)

    def check(self) -> None:
        """Each is known, or unknown, as it is; so are those that are asked for together."""
        producers, chance = self.state.producers, self.chance
        assert len(producers) == len(self.known)
        for number in [*self.known, *(chance.randint(1, self.state.applied) for _ in range(9))]:
            one = producers.find(number)
            assert (None if one is None else one.highest) == self.known.get(number)
        first, last = sorted(chance.randint(0, self.state.applied) for _ in range(2))
        within = [number for number in sorted(self.known) if first <= number <= last]
        assert [*producers.ids(first, last)] == within
        assert bool(producers.count_within(first, last)) == bool(within)
        least, walked = 0, list[int]()
        while least or not walked:
            found, least = producers.walk(least)
            walked += [number for number, _ in found]
            if not least:
                break
        assert walked == sorted(self.known)


@pytest.fixture
def tiny() -> Iterator[None]:
    with tiny_pages():
        yield


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("seed", range(10))
def test_producers_on_the_disk_alone_are_what_they_were(seed: int) -> None:
    """Whatever is opened, used and ended while a checkpoint is written, and after restarts."""
    many = Many(seed)
    for _ in range(COUNT):
        many.open()
    for _ in range(12):
        for _ in range(many.chance.randint(1, 30)):
            many.any_op()
        many.check()
        while not many.checkpoints.begin_checkpoint(many.state):
            many.part()
        while many.checkpoints.is_open:
            if many.chance.random() < 0.4:
                many.any_op()
            many.part()
        many.check()
        if many.chance.random() < 0.5:
            many.checkpoint()
            many.restart()
            many.check()
    assert len(many.reads) > COUNT  # they were on the disk alone, indeed


def deep_of(count: int) -> Many:
    """So many producers, all of them on the disk alone."""
    many = Many()
    for _ in range(count):
        many.open()
    many.checkpoint()
    many.restart()
    many.reads.clear()
    return many


def test_who_is_unknown_costs_one_page() -> None:
    """And so does who is known; none is read at a start."""
    many = deep_of(3000)
    assert many.state.producers.find(3001) is None
    assert len(many.reads) == 1
    assert many.state.producers.find(1) is not None
    assert many.state.producers.find(2) is not None
    assert many.state.producers.find(END) is None
    assert len(many.reads) == 2


def test_a_checkpoint_writes_the_pages_that_have_changed() -> None:
    many = deep_of(3000)
    many.publish(1)
    many.publish(2000)
    many.checkpoint()
    lsn = many.state.applied
    written = [page for page in many.disk.queues[QUEUE].pages.values() if page.lsn == lsn]
    assert sorted(page.first for page in written if page.kind == PRODUCERS) == [0, 1920]
    assert many.state.producers.held_count == 0


@pytest.mark.slow
def test_memory_has_so_many_pages_and_no_more() -> None:
    """Those that have changed are bytes, but for a few; of too many a checkpoint is due."""
    many = deep_of(128 * (HELD_PAGES + 9))
    for number in range(1, 128 * HELD_PAGES, 128):
        assert not many.state.is_heavy
        many.publish(number)
    assert many.state.is_heavy
    assert len(many.state.producers._open) == OPEN_PAGES
    many.checkpoint()
    assert many.state.producers.held_count == 0
    many.check()


def test_a_page_that_is_missing_is_noticed_at_the_start() -> None:
    """Nobody would know that its producers were ever there."""
    many = deep_of(1000)
    image = many.image()
    _read(many, image.state or b"", image.pages)
    for lost, page in enumerate(image.pages):
        if page.kind == PRODUCERS:
            rest = image.pages[:lost] + image.pages[lost + 1 :]
            with pytest.raises(ValueError, match="pages of other"):
                _read(many, image.state or b"", rest)


def _read(many: Many, head: bytes, pages: Iterable[Page]) -> QueueState:
    state = QueueState.decode(head)
    state.keep_in(many.cache(), QUEUE)
    for page in pages:
        state.add_page(page)
    state.end_pages()
    return state


@pytest.mark.usefixtures("tiny")
def test_a_state_is_given_whole_though_producers_come_and_go_meanwhile() -> None:
    """A joiner gets those of one moment."""
    many = Many(3)
    for _ in range(COUNT):
        many.open()
    many.checkpoint()
    before, given = many.state.encode(), Given(1, many.state)
    given._until = (1 << 31, 0)
    parts: list[bytes] = []
    is_last = False
    while not is_last:
        found = given.part(len(parts) + 1)
        assert found is not None
        data, is_last, _ = found
        parts.append(data)
        if len(parts) < 4:
            many.publish(many.chance.choice([*many.known]))
    got = [Page(kind, first, 0, data) for one in parts for kind, first, data in decode(one)]
    assert _read(many, got[0].data or b"", got[1:]).encode() == before
    assert many.state.encode() != before


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("is_cut", [True, False])
def test_an_unclean_promotion_is_looked_for_by_portions(is_cut: bool) -> None:
    """What was found for one that is cut from the log, and applied after something else, is not
    believed: by then others have lost something, too."""
    many = Many(5)
    for _ in range(COUNT):
        many.open()
    for number in (*many.known,)[:9]:
        many.publish(number)
    many.checkpoint()
    op = PromotedOp("unclean", 1, 2, ((1, 1000),), 9)
    looks = 1
    while not many.state.is_ready_for(_next(many.state, op)):
        looks += 1
    assert looks > COUNT // 4
    if is_cut:
        many.publish(max(many.known))
    image = many.state.encode()
    assert many.state.is_ready_for(_next(many.state, op)) is not is_cut
    many.state.apply(_next(many.state, op))
    plain = QueueState.decode(image)
    plain.apply(_next(plain, op))
    assert many.state.encode() == plain.encode()
    lost = [number for number, one in plain.producers.items() if one.outcomes]
    assert lost == [*[*many.known][:9], *[max(many.known)] * is_cut]


def _next(state: QueueState, op: PromotedOp) -> Entry:
    return replace(CODEC.op(op, **PLACE, lsn=state.applied + 1, timestamp_us=9), payload=op)
