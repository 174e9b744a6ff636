"""The store's files as a crash may leave them, for every place where its writing may end.

What a disk may do is taken to be this. A sync, or a write through a descriptor that syncs, is on
disk when it returns. Of what was written since the last sync any part may be there and any part
missing, in sectors of 512 bytes, whatever the order of the writes; a file may have grown or
not. A record of the write-ahead log that is being written may be there in part. A process that is
killed leaves all that it wrote.

`python -m store.crash_points --seeds 0-19` in tests/ is the long form (`make crashpoints`).
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field, frozen

from harness.__main__ import seeds_of
from mirrorq.errors import StoreCorrupt, StoreError
from mirrorq.protocol.effects import QueueWrite
from mirrorq.store.node_store import Store
from mirrorq.store.pathlock import FILE_NAME as LOCK_FILE
from mirrorq.store.write_ahead import FILE_NAME as LOG_FILE

from .recorded_life import facts, small_bounds
from .recording import Event, Mark, Synced, Truncated, Written, build, record
from .writing import MEMORY, Writer, open_store

SECTOR_BYTES = 512
SPARE_QUEUE = 99
"""Written to after a crash, to see that the store goes on."""


@frozen
class Crash:
    """The files as a crash left them, and what must be in them."""

    place: str
    files: dict[str, bytes]
    before: Mark | None
    """The last report before the crash: at least this is there."""
    after: Mark | None
    """The next one: its commit was under way, so this may be there instead."""


@define
class _Disk:
    """A file on a disk that keeps back what was not synced."""

    is_sync_kept: bool
    """False: a disk that lies, to see what the checks find then."""
    durable: bytearray = field(factory=bytearray)
    pending: list[Written | Truncated] = field(factory=list)

    def take(self, event: Written | Truncated | Synced) -> None:
        if isinstance(event, Synced):
            if self.is_sync_kept:
                for change in self.pending:
                    _apply(self.durable, change)
                self.pending.clear()
        elif isinstance(event, Written) and event.is_synced:
            _apply(self.durable, event)
        else:
            self.pending.append(event)

    def with_torn(self, event: Written, chance: random.Random) -> bytes:
        """After the end of all in the middle of a write that syncs."""
        return self._with([*self.pending, *_some_sectors(event, chance, chance.random())])

    def with_all(self) -> bytes:
        """After the process was killed."""
        return self._with(self.pending)

    def with_part(self, chance: random.Random) -> bytes:
        """After the power failed."""
        share = chance.choice((0.0, 0.1, 0.5, 0.9))
        whole = chance.random() < 0.3
        kept: list[Written | Truncated] = []
        for change in self.pending:
            if isinstance(change, Truncated) or whole:
                kept += [change] if chance.random() < share else []
                continue
            kept += _some_sectors(change, chance, share)
        left = self._with(kept)
        grown = max((_end(change) for change in self.pending), default=0)
        return left.ljust(grown, b"\0") if chance.random() < 0.5 else left

    def _with(self, changes: Sequence[Written | Truncated]) -> bytes:
        data = bytearray(self.durable)
        for change in changes:
            _apply(data, change)
        return bytes(data)


def _some_sectors(change: Written, chance: random.Random, share: float) -> list[Written]:
    return [
        Written(change.offset + at, change.data[at : at + SECTOR_BYTES], is_synced=False)
        for at in range(0, len(change.data), SECTOR_BYTES)
        if chance.random() < share
    ]


def _end(change: Written | Truncated) -> int:
    return change.size if isinstance(change, Truncated) else change.offset + len(change.data)


def _apply(data: bytearray, change: Written | Truncated) -> None:
    if isinstance(change, Truncated):
        del data[change.size :]
        data.extend(bytes(change.size - len(data)))
        return
    data.extend(bytes(max(0, change.offset - len(data))))
    data[change.offset : _end(change)] = change.data


def crashes(
    events: Sequence[Event],
    chance: random.Random,
    parts: int,
    *,
    is_sync_kept: bool = True,
) -> Iterator[Crash]:
    """Every place where the writing may end; `parts` times at each with a part lost."""
    disks: dict[str, _Disk] = {}
    before: Mark | None = None
    nexts = _next_marks(events)
    for number, event in enumerate(events):
        if isinstance(event, Mark):
            before = event
            yield Crash(f"after report {number}", _with_all(disks), before, None)
            continue
        after = nexts[number]
        disk = disks.setdefault(event.file, _Disk(is_sync_kept))
        for part in range(parts if any(one.pending for one in disks.values()) else 0):
            left = {name: one.with_part(chance) for name, one in disks.items()}
            yield Crash(f"in event {number}, part {part}", left, before, after)
        if isinstance(event, Written) and event.file == LOG_FILE:
            for part in range(parts + 1):
                left = {**_with_all(disks), LOG_FILE: disk.with_torn(event, chance)}
                yield Crash(f"torn in event {number}, part {part}", left, before, after)
        disk.take(event)
        if not isinstance(event, Synced):
            yield Crash(f"after event {number}", _with_all(disks), before, after)


def _with_all(disks: dict[str, _Disk]) -> dict[str, bytes]:
    return {name: disk.with_all() for name, disk in disks.items()}


def _next_marks(events: Sequence[Event]) -> list[Mark | None]:
    """Of each event the first mark after it."""
    found: list[Mark | None] = []
    mark: Mark | None = None
    for event in reversed(events):
        found.append(mark)
        if isinstance(event, Mark):
            mark = event
    return found[::-1]


class Examiner:
    """Opens what crashes left, in a directory of its own.

    Its outcomes: `right`; `wrong`, something reported is not there and nobody says so; `said`,
    the store refuses to open and says why; `unborn`, the same before the first report, when it
    held nothing that anybody could miss.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "crashed"
        self.outcomes: Counter[str] = Counter()
        self.last_said = ""
        self._count = 0

    def examine(self, crash: Crash) -> str | None:
        """What is wrong with the store after this crash; None when it is not."""
        self._count += 1
        shutil.rmtree(self._path, ignore_errors=True)
        self._path.mkdir()
        for name, data in crash.files.items():
            (self._path / name).write_bytes(data)
        # The lock file is not synced with the data: it may say either. With "closed" the pages
        # are not walked, and nothing but LMDB's own order of writes is left to rest on.
        state = "open" if self._count % 2 else "closed"
        (self._path / LOCK_FILE).write_bytes(f"{state} 1".encode().ljust(32))
        try:
            wrong = self._look(crash)
        except StoreCorrupt as error:
            self.outcomes["unborn" if crash.before is None else "said"] += 1
            self.last_said = f"{crash.place}: {error}"
            return None
        except StoreError as error:
            wrong = f"{type(error).__name__}: {error}"
        self.outcomes["wrong" if wrong else "right"] += 1
        return f"{crash.place}: {wrong}" if wrong else None

    def _look(self, crash: Crash) -> str | None:
        store = open_store(self._path)
        try:
            found = facts(store)
            wrong = _judge(found, crash)
            if wrong is None and self._count % 5 == 0:
                wrong = self._go_on(store)
        finally:
            store.close()
        return wrong

    def _go_on(self, store: Store) -> str | None:
        """The store takes another commit, keeps it, and keeps the rest."""
        while store.collect():
            pass
        found = facts(store)
        entry = Writer(SPARE_QUEUE).publish([b"after the crash" * 1000])
        store.commit([QueueWrite(SPARE_QUEUE, append=(entry,))])
        store.close()
        again = open_store(self._path)
        try:
            if [each.frame for each in again.load(SPARE_QUEUE).entries] != [entry.frame]:
                return "what was committed after the crash is not there"
            again.commit([QueueWrite(SPARE_QUEUE, reset=True)])
            after = facts(again)
            if after["digest"] != found["digest"]:
                return f"a commit after the crash changed {found} to {after}"
        finally:
            again.close()
        return None


def _judge(found: dict[str, Any], crash: Crash) -> str | None:
    marks = [mark.facts for mark in (crash.before, crash.after) if mark is not None]
    allowed = [facts["digest"] for facts in marks]
    if crash.before is None:
        allowed.append(EMPTY_DIGEST)
    if found["digest"] not in allowed:
        return f"found {found}, reported was {marks}"
    if crash.before is not None:
        told = crash.before.facts
        if found["store_id"] != told["store_id"]:
            return f"store id {found['store_id']}, reported was {told['store_id']}"
        if found["incarnation"] <= told["incarnation"]:
            return f"incarnation {found['incarnation']} again: {told['incarnation']} was reported"
    return None


def _empty_digest() -> str:
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        store = open_store(Path(directory) / "empty")
        found: str = facts(store)["digest"]
        store.close()
        return found


EMPTY_DIGEST = _empty_digest()


def main() -> int:
    """Record lives and crash each at every point; exit status 1 when something is lost."""
    parser = argparse.ArgumentParser(prog="python -m store.crash_points", description=__doc__)
    parser.add_argument("--seeds", type=seeds_of, default="20", help="20 | 17,23 | 100-199")
    parser.add_argument("--commits", type=int, default=300, help="commits of each life")
    parser.add_argument("--parts", type=int, default=6, help="crashes with a part lost, a point")
    parser.add_argument("--lying", action="store_true", help="a disk whose syncs do nothing")
    arguments = parser.parse_args()
    small_bounds()
    total: Counter[str] = Counter()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=MEMORY) as name:
        directory = Path(name)
        library = build(directory)
        for seed in arguments.seeds:
            path = directory / f"life{seed}"
            commits = str(arguments.commits)
            events = record(library, path, "store.recorded_life", str(seed), commits)
            shutil.rmtree(path)
            examiner = Examiner(directory)
            for crash in crashes(
                events,
                random.Random(seed),
                arguments.parts,
                is_sync_kept=not arguments.lying,
            ):
                wrong = examiner.examine(crash)
                if wrong and not arguments.lying:
                    print(f"seed {seed}, {wrong}")
                if sys.stderr.isatty():
                    print(f"\rseed {seed}: {dict(examiner.outcomes)}", end="", file=sys.stderr)
            total += examiner.outcomes
            print(f"\rseed {seed}: {dict(examiner.outcomes)}", flush=True)
            if examiner.outcomes["said"]:
                print(f"    {examiner.last_said}")
    took = time.monotonic() - began
    print(f"{len(arguments.seeds)} lives, {total.total()} crashes in {took:.0f} s: {dict(total)}")
    return 1 if (total["wrong"] or total["said"]) and not arguments.lying else 0


if __name__ == "__main__":
    sys.exit(main())
