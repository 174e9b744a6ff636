"""Random writes against a model made of dicts: the store and the model agree after each."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from mirrorq.protocol.effects import QueueWrite
from mirrorq.protocol.ops import Entry
from mirrorq.store import queue_log, runs
from mirrorq.store.node_store import Store
from mirrorq.store.write_ahead import FILE_NAME as LOG_FILE
from mirrorq.store.write_ahead import LogMark, pieces_of
from mirrorq.wire import frames

from .writing import MEMORY, NEIGHBOUR, QUEUE, Writer, bodies_of, open_store

sizes = st.lists(st.integers(0, 4), min_size=1, max_size=6)
"""Ops of an append: 0 is an ack, n a publish of n messages."""
fraction = st.floats(0, 1)


class StoreMachine(RuleBasedStateMachine):
    """Small bounds on runs and deletions, so that few ops reach every case."""

    def __init__(self) -> None:
        super().__init__()
        self.saved = (runs.RUN_BYTES_MAX, queue_log.DELETED_RUNS_MAX)
        runs.RUN_BYTES_MAX, queue_log.DELETED_RUNS_MAX = 500, 2
        self.directory = Path(tempfile.mkdtemp(dir=MEMORY))
        self.store = self.opened()
        self.number = 0
        self.is_estimate = False
        """Bytes are not counted through a crash."""
        self.epoch = 1
        self.forget()

    def opened(self) -> Store:
        return open_store(self.directory / "store")

    def forget(self) -> None:
        """The model of a queue that is new."""
        self.log: list[Entry] = []
        """Entries after the checkpoint."""
        self.old: list[Entry] = []
        """Publish entries at or below the checkpoint: what a donor could send."""
        self.state: bytes | None = None
        self.state_lsn = 0
        self.last_sequence = 0
        self.must: set[int] = set()
        """Sequences that have to be there; others may be."""
        self.dead: set[int] = set()
        """Released: no member fetches what it has released."""
        self.lacking: tuple[tuple[int, int], ...] = ()
        self.stable_least = 0
        self.stable_most = 0

    def teardown(self) -> None:
        self.store.close()
        shutil.rmtree(self.directory)
        runs.RUN_BYTES_MAX, queue_log.DELETED_RUNS_MAX = self.saved

    # --- What the model knows ---

    @property
    def last_lsn(self) -> int:
        return self.log[-1].lsn if self.log else self.state_lsn

    def publishes(self) -> list[Entry]:
        return self.old + [entry for entry in self.log if entry.payload is None]

    def bodies(self) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for entry in self.publishes():
            header = entry.header
            sequences = range(header.first_sequence, header.last_sequence + 1)
            found.update(zip(sequences, frames.split(entry.frame), strict=True))
        return found

    def made(self, shape: list[int]) -> tuple[Entry, ...]:
        writer = Writer(epoch=self.epoch)
        writer.lsn, writer.sequence = self.last_lsn, self.last_sequence
        entries = []
        for count in shape:
            self.number += 1
            body = b"%d" % self.number
            entries.append(writer.publish([body] * count) if count else writer.ack(1, 1))
        return tuple(entries)

    def take(self, entries: tuple[Entry, ...]) -> None:
        self.log += entries
        for entry in entries:
            if entry.payload is None:
                header = entry.header
                self.last_sequence = header.last_sequence
                self.must |= set(range(header.first_sequence, header.last_sequence + 1))

    def commit(self, **changes: Any) -> None:
        if changes.get("stable") is not None:
            self.stable_most = changes["stable"]
        self.store.commit([QueueWrite(QUEUE, **changes)])

    # --- What happens ---

    @initialize()
    def neighbours(self) -> None:
        self.neighbours_of: dict[int, list[bytes]] = {}
        for queue_id in (QUEUE - 1, NEIGHBOUR):
            entry = Writer(queue_id).publish([b"neighbour"])
            self.neighbours_of[queue_id] = [entry.frame]
            self.store.commit([QueueWrite(queue_id, append=(entry,))])

    @rule(shape=sizes)
    def append(self, shape: list[int]) -> None:
        entries = self.made(shape)
        self.commit(append=entries, stable=self.state_lsn)
        self.take(entries)

    @rule(shape=sizes, where=fraction)
    def truncate(self, shape: list[int], where: float) -> None:
        """A new epoch cuts the log's end, and other ops come in its place."""
        self.epoch += 1
        kept = int(where * len(self.log))
        cut = self.state_lsn + kept
        self.log = self.log[:kept]
        self.last_sequence = max((e.header.last_sequence for e in self.publishes()), default=0)
        self.must = {sequence for sequence in self.must if sequence <= self.last_sequence}
        entries = self.made(shape)
        self.commit(truncate_to=cut, append=entries, stable=self.state_lsn)
        self.take(entries)
        self.stable_least = self.state_lsn

    @rule(where=fraction, start=fraction, stop=fraction)
    def checkpoint(self, where: float, start: float, stop: float) -> None:
        """Some ops are applied, and some applied messages are released."""
        count = int(where * len(self.log))
        applied, self.log = self.log[:count], self.log[count:]
        self.state_lsn += count
        self.old += [entry for entry in applied if entry.payload is None]
        self.state = b"state %d" % self.state_lsn
        end = max((entry.header.last_sequence for entry in self.old), default=0)
        release = (int(start * end) + 1, int(stop * end))
        if release[0] <= release[1]:
            self.dead |= set(range(release[0], release[1] + 1))
            self.must -= self.dead
        self.commit(
            state=self.state,
            state_lsn=self.state_lsn,
            release=(release,) if release[0] <= release[1] else (),
            stable=self.state_lsn,
        )
        self.stable_least = self.state_lsn

    @rule()
    def lose_all_but_state(self) -> None:
        """A full transfer: the state has come, the frames have not."""
        applied = [entry for entry in self.publishes() if entry.lsn <= self.last_lsn]
        state_lsn, last_sequence, dead = self.last_lsn, self.last_sequence, self.dead
        self.forget()
        self.dead = dead
        self.old, self.last_sequence = applied, last_sequence
        self.state, self.state_lsn = b"state", state_lsn
        self.commit(reset=True, state=self.state, state_lsn=state_lsn)

    @precondition(lambda self: self.old)
    @rule(picks=st.lists(st.tuples(fraction, fraction, fraction), min_size=1, max_size=5))
    def fetch(self, picks: list[tuple[float, float, float]]) -> None:
        """Frames of a donor, whole or cut, in any order, some of them there already."""
        fetched = []
        for which, start, stop in picks:
            entry = self.old[min(int(which * len(self.old)), len(self.old) - 1)]
            header = entry.header
            first = header.first_sequence + int(start * (header.count - 1))
            last = first + int(stop * (header.last_sequence - first))
            if self.dead.intersection(range(first, last + 1)):
                continue
            fetched.append(runs.piece(entry, first, last))
            self.must |= set(range(first, last + 1))
        self.lacking = ((1, 2), (4, 3 + len(fetched))) if fetched else ()
        self.commit(fetched=tuple(fetched), lacking=self.lacking)

    @rule()
    def delete(self) -> None:
        self.is_estimate = False
        self.forget()
        self.commit(reset=True)

    @rule()
    def collect(self) -> None:
        self.store.collect()

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = self.opened()

    @rule(torn=fraction)
    def kill(self, torn: float) -> None:
        """The process ends anywhere; of a record that was being written a part is there."""
        crashed = self.directory / "crashed"
        shutil.copytree(self.directory / "store", crashed)
        tail = self.store._tail
        if tail is not None:
            pieces = pieces_of(LogMark(tail.salt, tail.number + 1), b"nobody was told of this" * 99)
            written = b"".join(pieces)[: int(torn * 2000)]
            with (crashed / LOG_FILE).open("r+b") as file:
                file.seek(tail.end)
                file.write(written)
        self.store.close()
        shutil.rmtree(self.directory / "store")
        crashed.rename(self.directory / "store")
        self.store = self.opened()
        self.is_estimate = True

    @rule(start=fraction, length=st.integers(0, 10), bytes_max=st.integers(0, 600))
    def read_some(self, start: float, length: int, bytes_max: int) -> None:
        """A bounded read gives the beginning of an unbounded one."""
        first = int(start * (self.last_sequence + 1)) + 1
        bounded = self.store.read(QUEUE, first, first + length, bytes_max)
        whole = self.store.read(QUEUE, first, first + length, 1 << 20)
        assert bounded == whole[: len(bounded)]
        assert bool(bounded) == bool(whole)
        if len(bounded) < len(whole):
            assert sum(map(len, bounded)) >= bytes_max
        wanted = {s for s in self.must if first <= s <= first + length}
        assert wanted <= set(bodies_of(whole))

    # --- What must hold ---

    @invariant()
    def log_is_equal(self) -> None:
        image = self.store.load(QUEUE)
        assert (image.state, image.state_lsn) == (self.state, self.state_lsn)
        assert [entry.frame for entry in image.entries] == [entry.frame for entry in self.log]
        assert [entry.payload for entry in image.entries] == [e.payload for e in self.log]
        assert image.lacking == self.lacking
        assert min(self.stable_least, self.stable_most) <= image.stable <= self.stable_most

    @invariant()
    def messages_are_there(self) -> None:
        found = bodies_of(self.store.read(QUEUE, 1, self.last_sequence + 10, 1 << 20))
        assert self.must <= set(found)
        bodies = self.bodies()
        assert all(bodies.get(sequence) == body for sequence, body in found.items())

    @invariant()
    def neighbours_are_untouched(self) -> None:
        for queue_id, expected in getattr(self, "neighbours_of", {}).items():
            assert [entry.frame for entry in self.store.load(queue_id).entries] == expected
            assert [bytes(frame) for frame in self.store.read(queue_id, 1, 9, 99)] == expected

    @invariant()
    def bytes_are_counted(self) -> None:
        """Exact as long as there was no crash."""
        environment = self.store._environment

        def held(txn: Any) -> int:
            cursors = (txn.cursor(environment.tables.messages), txn.cursor(environment.tables.ops))
            return sum(
                len(value)
                for cursor in cursors
                for key, value in cursor
                if int.from_bytes(key[:8], "big") == QUEUE
            )

        if not self.store.collect() and not self.is_estimate:
            waits = self.store._pending.queue_bytes(QUEUE)
            assert self.store.queue_bytes(QUEUE) == environment.read(held) + waits


StoreMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, print_blob=True
)
TestStoreAgainstModel = StoreMachine.TestCase
