"""The state of one queue as pages and as bytes, for checkpoints and transfers."""

from __future__ import annotations

from typing import Self

import msgspec

from mirrorq.containers.range_map import Places, RangeMap, Spans
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.errors import MALFORMED
from mirrorq.protocol.effects import Page, QueueImage
from mirrorq.replication.history import HISTORY_COUNT
from mirrorq.replication.state.contents import Contents
from mirrorq.replication.state.image import (
    PAGED_VERSION,
    STATE_VERSION,
    MessagesPage,
    StateImage,
    block_of,
    image_of,
)
from mirrorq.replication.state.outbox import Outbox
from mirrorq.replication.state.pages import (
    COLUMNS,
    END,
    MESSAGES,
    PRODUCERS,
    SMALL_MAX,
    PageCache,
    Table,
)
from mirrorq.replication.state.priorities import PriorityLevel
from mirrorq.replication.state.producer import HELD_PAGES
from mirrorq.replication.state.staging import RUN_BYTES, Staging

NUMBER_BYTES = 8
"""Bytes of each number of a range."""
PLAIN_ITEM_BYTES = 24
"""Bytes of an item of a plain list or dict: a producer, an outcome, an entry, a mark."""
PAGE_BYTES_ABOUT = 32 * 1024
"""Bytes of a page, as a rule."""
HELD_BLOCKS = 64
"""Sealed blocks in memory, some 80 KiB each. With more, a checkpoint is due."""


class PagedContents(Contents):
    """Contents with their pages: pages on the disk, changed pages, and reading."""

    def keep_in(self, cache: PageCache, queue_id: int) -> None:
        """Use this cache for pages on the disk: such pages may leave memory."""
        self.columns.keep_in(cache, queue_id)
        self.producers.keep_in(cache, queue_id)

    @property
    def is_landing(self) -> bool:
        """Return true if pages that were given to the disk may not be there yet."""
        return self.producers.is_landing

    def release(self) -> None:
        """Let written pages leave memory. Call only when no checkpoint is being made."""
        self.columns.release()
        self.producers.release()

    # --- Pages --------------------------------------------------------------------------

    @property
    def is_small(self) -> bool:
        """Return true if the state is written as one value, without pages."""
        return (
            self.count_within(MESSAGES, 0, END) <= SMALL_MAX[MESSAGES]
            and len(self.producers) <= SMALL_MAX[PRODUCERS]
            and self.columns.is_small(self.live, SMALL_MAX[COLUMNS])
        )

    def count_within(self, kind: int, first: int, last: int) -> int:
        """Number of entries in the page of this stretch; 0: the page is empty."""
        if kind == PRODUCERS:
            return self.producers.count_within(first, last)
        if kind == COLUMNS:
            return self.columns.count_of(first)
        count, blocks = self.live.count_within(first, last), self.columns.blocks(first, last)
        if not count:
            return blocks
        count += blocks
        if self.transient:
            count += self.transient.count_within(first, last)
        if self.returned:
            count += self.returned.count_within(first, last)
        if self._is_mixed:
            rest = (self.delayed, self.places.by_sequence, self.resting)
            count += sum(each.count_within(first, last) for each in rest)
            count += sum(level.members.count_within(first, last) for level in self.levels.values())
        return count

    def extent_within(self, first: int, last: int) -> Range:
        """First and last sequence used in this stretch of messages, which must not be empty."""
        blocks = self.columns.directory.extent(first, last)
        if not self.live.count_within(first, last):
            return blocks
        least, most = self.live.extent_within(first, last)
        return min(least, blocks[0]), max(most, blocks[1])

    def page(self, kind: int, first: int, last: int) -> bytes:
        """Encode the page of this stretch, which must not be empty."""
        if kind == PRODUCERS:
            return self.producers.page(first, last)
        if kind == COLUMNS:
            return self.columns.page(first)
        return msgspec.msgpack.encode(
            MessagesPage(
                self.live.part(first, last),
                self.columns.directory.part(first, last),
                self.transient.part(first, last),
                self.delayed.part(first, last),
                self.places.by_sequence.part(first, last),
                self.returned.part(first, last),
                self.resting.part(first, last),
                [
                    (priority, members)
                    for priority, level in self.levels.items()
                    if (members := level.members.part(first, last))
                ],
            )
        )

    def add_page(self, page: Page) -> None:
        """Add a page of a state that is read. The pages of a kind must come in order.

        Raises ValueError when the page is malformed or out of place.
        """
        if page.data == b"" or not self.is_paged:
            raise ValueError(f"a page from {page.first} that no state has")
        if page.kind == COLUMNS:
            self.columns.add_page(page)
            return
        if page.kind == PRODUCERS:
            self.producers.add_page(page)
            return
        if page.data is None:
            raise ValueError(f"a page from {page.first} that was not read")
        try:
            self._add_messages(msgspec.msgpack.decode(page.data, type=MessagesPage))
        except MALFORMED as error:
            raise ValueError(f"a page of {len(page.data)} bytes: {error}") from error
        self.tables[page.kind].load(page.first, page.lsn)

    def _add_messages(self, page: MessagesPage) -> None:
        self.live.extend(page.live)
        self.transient.extend(page.transient)
        self.columns.directory.extend(page.blocks)
        self.delayed.extend(page.delayed)
        self.places.by_sequence.extend(page.places)
        self.returned.extend(page.returned)
        self.resting.extend(page.resting)
        for priority, members in page.levels:
            if priority not in self.levels:
                raise ValueError(f"a page names a level {priority} that is not there")
            self.levels[priority].members.extend(members)

    def end_pages(self) -> None:
        """Finish after all pages of a state that is read were added.

        Raises ValueError when pages are missing or inconsistent.
        """
        messages, producers, tail_end, seal = self._awaited
        if self.live.count != messages:
            raise ValueError(f"pages of {self.live.count} messages, not {messages}")
        self.producers.end_pages(producers, seal)
        self.columns.end_pages(tail_end, self.next_sequence)
        self.places = Places.from_bytes(self.places.by_sequence.to_bytes(), self.next_sequence)
        self._check()

    def note_unwritten(self) -> None:
        """Mark all pages as missing on the disk."""
        for table in self.tables.values():
            table.touch(0, END)

    def forget_pages(self) -> None:
        """Forget all pages: the whole state is one value on the disk."""
        for kind in self.tables:
            self.tables[kind] = Table()
            self.tables[kind].changed = {0: None}
        self.columns.collapse(self.tables[COLUMNS], self.live)
        self.producers.collapse(self.tables[PRODUCERS])

    def changed_pages(self) -> list[tuple[int, Range]]:
        """(kind, stretch) of pages that the disk does not have. They count as written now."""
        wanted = []
        for kind, table in self.tables.items():
            for first in sorted(table.changed):
                stretch = table.stretch(first)
                if self.count_within(kind, *stretch):
                    if first in table.gone:
                        table.renew(first)
                    wanted.append((kind, stretch))
                elif kind == COLUMNS:
                    table.clear(first)  # The last block stays.
                else:
                    if kind == PRODUCERS:
                        self.producers.drop(first)
                    table.drop(first)
            table.changed = {}
        self.producers.give()
        return wanted

    def all_pages(self) -> list[tuple[int, Range]]:
        """(kind, stretch) of every page."""
        return [
            (kind, stretch) for kind, table in self.tables.items() for stretch in table.stretches()
        ]

    @property
    def is_heavy(self) -> bool:
        """Whether much waits in memory for the next checkpoint."""
        held = self.columns.held_count >= HELD_BLOCKS
        return held or self.producers.held_count >= HELD_PAGES

    # --- Bytes --------------------------------------------------------------------------

    @property
    def bytes_about(self) -> int:
        """Approximate bytes of `encode`, computed without encoding."""
        return self._bytes_but_columns + self.columns.bytes_about

    @property
    def _bytes_but_columns(self) -> int:
        runs = len(self.live) + len(self.transient)
        runs += sum(len(level.members) for level in self.levels.values())
        numbered = len(self.delayed) + len(self.places.by_sequence) + len(self.resting)
        size = RUN_BYTES * (runs + numbered + len(self.returned))
        size += NUMBER_BYTES * (numbered + 2 * len(self.returned))
        items = 2 * len(self.producers) + self.outbox.entry_count + len(self.outbox.idle)
        return size + PLAIN_ITEM_BYTES * items + self.staging.bytes_about

    @property
    def changed_bytes_about(self) -> int:
        """Approximate upper bound for the bytes that the next checkpoint writes."""
        changed = sum(len(self.tables[kind].changed) for kind in (MESSAGES, PRODUCERS))
        rest = min(self._bytes_but_columns, changed * PAGE_BYTES_ABOUT)
        return rest + self.columns.changed_bytes

    def encode_head(self) -> bytes:
        """Encode the part of the state that is in no page."""
        image = StateImage(
            PAGED_VERSION,
            self.applied,
            self.next_sequence,
            self.horizon,
            b"",
            b"",
            b"",
            self.marks,
            {},
            self.history,
            [
                (priority, level.horizon, level.marks, b"")
                for priority, level in self.levels.items()
            ],
            generation=self.generation,
            fence=self.fence,
            lost=self.lost,
            outbox=self.outbox.image(),
            staging=self.staging.image(),
            time_us=self.time_us,
            held=(self.live.count, len(self.producers), self.columns.tail_end),
            producer_pages=self.producers.pages_checksum(),
            idle_since_us=self.idle_since_us,
            unique_window_ms=self.unique_window_ms,
            is_paused=self.is_paused,
        )
        return msgspec.msgpack.encode(image)

    def encode(self) -> bytes:
        """The whole state as bytes. Equal states give equal bytes."""
        columns = self.columns.merged(self.live)
        image = StateImage(
            STATE_VERSION,
            self.applied,
            self.next_sequence,
            self.horizon,
            self.live.to_bytes(),
            self.transient.to_bytes(),
            self.returned.to_bytes(),
            self.marks,
            dict(self.producers),
            self.history,
            [
                (priority, level.horizon, level.marks, level.members.to_bytes())
                for priority, level in self.levels.items()
            ],
            columns.sizes.to_bytes(),
            columns.stamps.to_bytes(),
            self.generation,
            self.fence,
            self.lost,
            columns.ttls.to_bytes(),
            self.delayed.to_bytes(),
            self.places.by_sequence.to_bytes(),
            self.resting.to_bytes(),
            self.outbox.image(),
            self.staging.image(),
            self.time_us,
            idle_since_us=self.idle_since_us,
            unique_window_ms=self.unique_window_ms,
            is_paused=self.is_paused,
        )
        return msgspec.msgpack.encode(image)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Read the result of `encode`, or of `encode_head`: then the caller adds pages.

        Raises ValueError for malformed bytes.
        """
        image = image_of(data)
        state = cls()
        state.is_paged = image.version == PAGED_VERSION
        state._awaited = (*image.held, image.producer_pages)
        for table in state.tables.values():
            table.changed = {}
        state.applied = image.applied
        state.next_sequence = image.next_sequence
        state.horizon = image.horizon
        state.live = RangeSet.from_bytes(image.live)
        state.transient = RangeSet.from_bytes(image.transient)
        for priority, horizon, marks, members in image.levels:
            state.levels[priority] = PriorityLevel(horizon, marks, RangeSet.from_bytes(members))
        state.delayed = Spans.from_bytes(image.delayed)
        state.places = Places.from_bytes(image.places, image.next_sequence)
        state.resting = RangeMap.from_bytes(image.resting, 1)
        state.outbox = Outbox.restore(image.outbox, image.next_sequence)
        state.staging = Staging.restore(image.staging, image.next_sequence)
        state.returned = RangeMap.from_bytes(image.returned, 2)
        state.marks = image.marks
        state.history = image.history[-HISTORY_COUNT:]
        state._check()
        if not state.is_paged:
            state.columns.replace(state.tables[COLUMNS], block_of(image))
            state.note_unwritten()
        state.generation = image.generation
        state.fence = image.fence
        state.lost = image.lost
        state.idle_since_us = image.idle_since_us
        state.unique_window_ms = image.unique_window_ms
        state.is_paused = image.is_paused
        state.producers.load(image.producers)
        state.time_us = image.time_us or state.latest_stamp_us()
        return state

    @classmethod
    def of_image(cls, image: QueueImage, cache: PageCache | None = None) -> Self:
        """Read the state of a copy's checkpoint. Raises ValueError for a malformed checkpoint.

        Args:
            cache: reads the pages from this disk. The image holds only their names.
        """
        state = cls() if image.state is None else cls.decode(image.state)
        if cache is not None:
            state.keep_in(cache, image.queue_id)
        if state.is_paged:
            for page in image.pages:
                state.add_page(page)
            state.end_pages()
        return state

    def _check(self) -> None:
        """Set `_is_mixed`. Raise ValueError for a sequence at or above `next_sequence`."""
        self._is_mixed = bool(self.levels or self.delayed or self.places or self.resting)
        sets = [self.live, self.transient, *(level.members for level in self.levels.values())]
        ends = [held.last for held in sets if held]
        ends += [held.last for held in (self.returned, self.resting) if held]
        if max(ends, default=0) >= self.next_sequence:
            raise ValueError(f"a queue's state holds {max(ends)} of {self.next_sequence - 1}")
