"""Staged messages of one queue: runs, their attempts, and decisions. Applied state. Pure.

`protocol.staged` defines the words. Chunks are publish frames with messages that no consumer sees.
A chunk has sequences like any frame. The store keeps the bodies under these sequences, here called
*origins*. A commit gives the winners' messages new sequences, behind all sequences of the queue.
The messages are then ordinary messages, and only readers of bodies ask `origins` for a body's
place. No body is ever copied. A commit of ten million messages is one small op: all messages appear
at once, on every copy.

Decisions are final:

- Every op for a committed version is answered with `DONE`. Versions only grow: a version below the
  highest committed version that was not committed itself is refused with `PAST`. Committed versions
  are kept as ranges, as long as the queue lives. Of more than `COMMITTED_RANGES_MAX` ranges the
  lowest are forgotten, and their versions are refused with `PAST`.
- A run that was aborted, has expired, or had its commit refused, is *fenced* until another run
  commits the version: late ops of the run are refused. A refused commit stays refused however often
  it is repeated, and a slow task cannot complete an abandoned run.
- A *sealed* run is changed only by the decision of the queue for which it waits.

Invariants:
1. `staged` and the origins of committed messages are disjoint; both lie below the queue's end.
2. chunks of an attempt are numbered from 1 without gaps.
3. at or below a transaction's committed version nothing is open but sealed runs.
4. the winners of a sealed run are staged, whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from attrs import define, field, frozen

from mirrorq.containers.range_map import Places
from mirrorq.containers.ranges import Range, RangeSet
from mirrorq.containers.run_length import SizedPiece, Sizes, largest_size
from mirrorq.errors import MALFORMED
from mirrorq.protocol.staged import (
    DONE,
    FENCED,
    PAST,
    SEALED,
    AbortOp,
    AskOp,
    CommitOp,
    CrossQueueTask,
    SealOp,
    Stage,
    Winner,
)

ATTEMPTS_MAX = 1 << 20
"""Open attempts of one queue: about 300 bytes of memory each."""

COMMITTED_RANGES_MAX = 1000
"""Ranges of committed versions of one transaction. A stream's versions are one range."""
RUN_BYTES = 16
"""Bytes of a run of a column, or of a range, in an encoded state."""
NAMED_BYTES = 64
"""Approximate bytes of a transaction, or of a version, in an encoded state."""
Image = list[Any]
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Ranges = list[tuple[_Number, _Number]]
_Attempts = list[tuple[_Number, _Number, _Number, _Ranges, _Number]]
_Winners = tuple[tuple[_Number, _Number, _Number, _Number], ...]
_Runs = list[tuple[str, _Number, _Number, bool, _Winners, _Attempts]]
_Works = list[tuple[str, _Number, _Runs, list[tuple[str, str]]]]
_What = Literal["commit", "abort", "ask"]
_Errands = list[tuple[_Number, _Number, _What, str, _Number, str]]
_IMAGE = tuple[list[tuple[str, _Ranges]], _Works, bytes, bytes, _Errands]


@frozen
class StagingResult:
    """Result of applying an op about staged messages."""

    why: str = ""
    """Why the op was refused; "" when it was not."""
    pieces: list[Range] = field(factory=list)
    """Origins of committed messages, in order."""
    sizes: list[SizedPiece] = field(factory=list)
    """Sizes of the committed messages, in order."""
    dropped: list[Range] = field(factory=list)
    """Origins of bodies that are not needed any more."""
    tasks: list[tuple[int, CrossQueueTask]] = field(factory=list)
    """Tasks for other queues: (queue id, task)."""


@define
class Attempt:
    """Staged messages of an attempt of a task."""

    chunks: int = 0
    count: int = 0
    """Number of messages."""
    ranges: list[Range] = field(factory=list)
    """Origins of the messages, a range for each chunk."""
    largest: int = 0
    """Bytes of the largest body."""


@define
class StagedRun:
    """Staged messages of one try of a driver (`protocol.staged`) to write a version."""

    attempts: dict[tuple[int, int], Attempt] = field(factory=dict)
    """Attempts by (partition, attempt)."""
    used_us: int = 0
    """Queue time of the last chunk, or of the seal."""
    home: int = 0
    """Id of the queue that decides about a sealed run; 0: not sealed."""
    has_asked: bool = False
    """True if the deciding queue was asked about a sealed run."""
    winners: tuple[Winner, ...] = ()
    """Winners of a sealed run."""


@define
class Work:
    """An open version of a transaction: not committed."""

    runs: dict[str, StagedRun] = field(factory=dict)
    fenced: dict[str, str] = field(factory=dict)
    """Runs that will never be committed, and the reasons."""


class Staging(msgspec.Struct, gc=False, eq=False):
    """Staged messages of one queue. Changed by ops only."""

    committed: dict[str, RangeSet] = msgspec.field(default_factory=dict)
    """The committed versions of each transaction."""
    open: dict[tuple[str, int], Work] = msgspec.field(default_factory=dict)
    staged: RangeSet = msgspec.field(default_factory=RangeSet)
    """Origins of messages that are staged and not committed."""
    sizes: Sizes = msgspec.field(default_factory=Sizes)
    """Bytes of each staged body."""
    origins: Places = msgspec.field(default_factory=Places)
    """Committed messages that live, or are on their way to another queue. Places maps their origins
    (as its sequences) to their sequences (as its places)."""
    tasks: dict[tuple[int, int], CrossQueueTask] = msgspec.field(default_factory=dict)
    """Tasks on their way to other queues: (queue id, number in the outbox) -> task."""
    attempts: int = 0
    """Number of open attempts."""
    size: int = 0
    """Bytes of all staged bodies."""

    # --- Queries ------------------------------------------------------------------------

    def __bool__(self) -> bool:
        return bool(self.staged or self.origins)

    def highest(self, transaction: str) -> int:
        """The highest committed version, -1 when there is none."""
        known = self.committed.get(transaction)
        return known.last if known is not None else -1

    def verdict(self, transaction: str, version: int, run: str) -> str:
        """Return why nothing of this run can be staged or committed; "" when it can."""
        highest = self.highest(transaction)
        if version <= highest and version in self.committed[transaction]:
            return f"{DONE}: version {version} of {transaction!r} is"
        if version <= highest:
            return (
                f"{PAST}: version {version} of {transaction!r} is not, and version {highest} is: "
                "versions only grow. Write a backfill under another transaction"
            )
        work = self.open.get((transaction, version))
        if work is not None and run in work.fenced:
            return f"{FENCED}: run {run!r} is given up: {work.fenced[run]}"
        return ""

    def staged_run(self, transaction: str, version: int, run: str) -> StagedRun | None:
        """Return the staged run, or None."""
        work = self.open.get((transaction, version))
        return None if work is None else work.runs.get(run)

    def lacking(self, op: CommitOp | SealOp) -> str:
        """Return why these winners cannot be committed; "" when all are completely staged."""
        run = self.staged_run(op.transaction, op.version, op.run)
        known = run.attempts if run is not None else {}
        partitions: dict[int, int] = {}
        for partition, attempt, chunks, count in op.winners:
            if partition in partitions:
                return f"attempts {partitions[partition]} and {attempt} of partition {partition}"
            partitions[partition] = attempt
            found = known.get((partition, attempt), Attempt())
            if (found.chunks, found.count) != (chunks, count):
                return (
                    f"partition {partition}, attempt {attempt}: {found.chunks} chunk(s) of "
                    f"{found.count} message(s) are staged, not {chunks} of {count}"
                )
        return ""

    def winners_of(self, op: CommitOp) -> tuple[Winner, ...]:
        """Winners named by the op, or by the sealed run here."""
        if not op.is_decision:
            return op.winners
        run = self.staged_run(op.transaction, op.version, op.run)
        return run.winners if run is not None else ()

    def pieces(self, op: CommitOp) -> list[Range]:
        """Origins of the winners' messages, in order."""
        run = self.staged_run(op.transaction, op.version, op.run)
        if run is None:
            return []
        found: list[Range] = []
        for partition, attempt, _, _ in self.winners_of(op):
            known = run.attempts.get((partition, attempt))
            found += known.ranges if known is not None else ()
        return found

    def largest(self, op: CommitOp) -> int:
        """Bytes of the largest body of the winners."""
        run = self.staged_run(op.transaction, op.version, op.run)
        attempts = run.attempts if run is not None else {}
        named = [(partition, attempt) for partition, attempt, _, _ in self.winners_of(op)]
        return max((attempts[one].largest for one in named if one in attempts), default=0)

    def count(self, op: CommitOp) -> int:
        """Number of messages of the winners."""
        return sum(last - first + 1 for first, last in self.pieces(op))

    def sizes_of(self, op: CommitOp) -> list[SizedPiece]:
        """Sizes of the winners' messages, in order. The result is valid until the next change."""
        return [(first, last, self.sizes) for first, last in self.pieces(op)]

    def needed(self, first: int, last: int) -> list[Range]:
        """Origins within first to last with bodies that a copy must have."""
        committed = self.origins.by_sequence.within(first, last)
        return [*self.staged.within(first, last), *[(low, high) for low, high, _ in committed]]

    def plain(self, ranges: Iterable[Range]) -> Iterator[Range]:
        """Parts of these ranges in which each body lies under the message's own sequence."""
        for first, last in ranges:
            for low, high, _ in self.origins.by_place.within(first, last):
                if first < low:
                    yield first, low - 1
                first = high + 1
            if first <= last:
                yield first, last

    def piece(self, first: int, last: int) -> Range:
        """(end of the part from first within last whose bodies adjoin, sequence less origin)."""
        return self.origins.at(first, last) if self.origins else (last, 0)

    def idle_runs(self, before_us: int) -> Iterator[tuple[str, int, str]]:
        """Runs that are not sealed and were last used before this time."""
        for (transaction, version), work in self.open.items():
            for name, run in work.runs.items():
                if not run.home and run.used_us < before_us:
                    yield transaction, version, name

    def sealed_runs(self, before_us: int) -> Iterator[tuple[str, int, str, int]]:
        """Runs that were sealed before this time, each with the id of the deciding queue."""
        for (transaction, version), work in self.open.items():
            for name, run in work.runs.items():
                if run.home and run.used_us < before_us:
                    yield transaction, version, name, run.home

    # --- Applying -----------------------------------------------------------------------

    def on_stage(self, stage: Stage, first: int, offsets: bytes, count: int, stamp_us: int) -> str:
        """Stage a chunk of `count` messages from origin `first` on, with these offsets. Returns why
        the chunk is refused, or ""."""
        why = self.verdict(stage.transaction, stage.version, stage.run)
        if why:
            return why
        work = self.open.get((stage.transaction, stage.version)) or Work()
        run = work.runs.get(stage.run) or StagedRun()
        if run.home:
            return f"{SEALED}: run {stage.run!r} takes nothing more"
        name = (stage.partition, stage.attempt)
        attempt = run.attempts.get(name)
        known = attempt.chunks if attempt is not None else 0
        if stage.chunk != known + 1:
            return (
                f"chunk {stage.chunk} of partition {stage.partition}, attempt {stage.attempt} "
                f"does not follow chunk {known}: a task that begins again takes another attempt"
            )
        if attempt is None:
            if self.attempts >= ATTEMPTS_MAX:
                return f"{self.attempts} attempts are open: commit or abort some"
            attempt = run.attempts[name] = Attempt()
            self.attempts += 1
        self.open[stage.transaction, stage.version] = work
        work.runs[stage.run] = run
        run.used_us = stamp_us
        last = first + count - 1
        attempt.chunks += 1
        attempt.count += count
        attempt.ranges.append((first, last))
        attempt.largest = max(attempt.largest, largest_size(offsets, count))
        self.staged.add(first, last)
        self.sizes.append_offsets(first, offsets, count)
        self.size += self.sizes.total(first, last)
        return ""

    def on_seal(self, op: SealOp, stamp_us: int = 0) -> StagingResult:
        """Seal a run and drop its losers. A refused seal fences the run."""
        why = self.verdict(op.transaction, op.version, op.run)
        if why:
            return StagingResult(why)
        run = self.staged_run(op.transaction, op.version, op.run)
        if run is not None and run.home:
            same = (run.home, run.winners) == (op.home, op.winners)
            return StagingResult("" if same else f"{SEALED}: run {op.run!r} is, with other winners")
        lacking = self.lacking(op)
        if lacking:
            return self._refuse(op, lacking)
        work = self.open.setdefault((op.transaction, op.version), Work())
        run = work.runs.setdefault(op.run, StagedRun())
        run.home, run.winners, run.used_us = op.home, op.winners, stamp_us
        keep = [(partition, attempt) for partition, attempt, _, _ in op.winners]
        losers = [name for name in run.attempts if name not in keep]
        dropped = [piece for name in losers for piece in self._drop_attempt(run, name)]
        return StagingResult("", dropped=dropped)

    def on_commit(self, op: CommitOp) -> StagingResult:
        """Commit the winners' messages, and drop other messages of the version."""
        run = self.staged_run(op.transaction, op.version, op.run)
        is_sealed = run is not None and run.home > 0
        why = "" if is_sealed else self.verdict(op.transaction, op.version, op.run)
        if is_sealed and not op.is_decision:
            why = f"{SEALED}: run {op.run!r} waits for the queue that decides"
        if why:
            return StagingResult(why)
        lacking = self.lacking(op)
        if op.is_decision and not is_sealed:
            lacking = "nothing of it is sealed here"
        pieces = self.pieces(op)
        if not lacking and sum(last - first + 1 for first, last in pieces) != op.count:
            lacking = f"it is of {op.count} message(s), and others are staged by now"
        if lacking:
            return self._refuse(op, lacking)
        sizes = [(*piece, self.sizes.within(*piece)) for piece in pieces]
        self._unstage(pieces)
        if run is not None:
            for partition, attempt, _, _ in self.winners_of(op):
                del run.attempts[partition, attempt]
                self.attempts -= 1
            run.home = 0
        told = CrossQueueTask("commit", op.transaction, op.version, op.run)
        tasks = [(other, told) for other in op.others]
        return StagingResult("", pieces, sizes, self._finish(op.transaction, op.version), tasks)

    def on_abort(self, op: AbortOp) -> StagingResult:
        """Fence the run, and drop its staged messages."""
        run = self.staged_run(op.transaction, op.version, op.run)
        if run is not None and run.home:
            if not op.is_decision:
                return StagingResult(f"{SEALED}: run {op.run!r} waits for the queue that decides")
            run.home = 0
        elif op.version in self.committed.get(op.transaction, ()):
            return StagingResult(self.verdict(op.transaction, op.version, op.run))
        dropped = self._fence(op.transaction, op.version, op.run, op.reason)
        told = CrossQueueTask("abort", op.transaction, op.version, op.run)
        return StagingResult("", dropped=dropped, tasks=[(other, told) for other in op.others])

    def on_ask(self, op: AskOp, me: int) -> StagingResult:
        """Apply a question about a sealed run, asked by this queue or another queue."""
        run = self.staged_run(op.transaction, op.version, op.run)
        name = (op.transaction, op.version, op.run)
        if op.asker == me:
            if run is None or not run.home or run.has_asked:
                return StagingResult("nothing is sealed here that is not decided or asked for")
            run.has_asked = True
            return StagingResult("", tasks=[(run.home, CrossQueueTask("ask", *name))])
        dropped: list[Range] = []
        if not self.verdict(*name) and (run is None or not run.home):
            dropped = self._fence(*name, "undecided when another queue asked")
        return StagingResult(
            "", dropped=dropped, tasks=[(op.asker, CrossQueueTask("abort", *name))]
        )

    def forget_tasks(self, target: int, number: int) -> None:
        """Forget tasks for a queue up to this outbox number."""
        for key in [key for key in self.tasks if key[0] == target and key[1] <= number]:
            del self.tasks[key]

    def renumber(self, moves: Iterable[tuple[int, int, int]]) -> None:
        """Give tasks their new outbox numbers after an unclean promotion."""
        old, self.tasks = self.tasks, {}
        for target, before, number in moves:
            self.tasks[target, number] = old[target, before]

    def lose(self, ranges: Iterable[Range]) -> list[Range]:
        """Apply the loss of these origins by an unclean promotion. Returns the lost sequences: of
        committed messages, and of ranges that are no origins of committed messages."""
        found: list[Range] = []
        gone = RangeSet(ranges)
        for first, last in gone:
            low = first
            for begin, end, shift in self.origins.by_sequence.within(first, last):
                if low < begin:
                    found.append((low, begin - 1))
                found.append((begin + shift, end + shift))
                low = end + 1
            if low <= last:
                found.append((low, last))
        return found

    def lost_runs(self, ranges: Iterable[Range]) -> list[Range]:
        """Fence each run that has lost a chunk; return the origins of the fenced runs."""
        gone = RangeSet(ranges)
        dropped: list[Range] = []
        for (transaction, version), work in list(self.open.items()):
            for name, run in list(work.runs.items()):
                if any(
                    gone.within(first, last)
                    for attempt in run.attempts.values()
                    for first, last in attempt.ranges
                ):
                    dropped += self._fence(transaction, version, name, "an unclean promotion")
        return dropped

    def freed(self, ranges: tuple[Range, ...]) -> tuple[Range, ...]:
        """Forget the origins of unneeded messages. Return them behind the messages' sequences."""
        if not self.origins:
            return ranges
        found = list(ranges)
        for first, last in ranges:
            for low, high, shift in self.origins.by_place.within(first, last):
                self.origins.forget(low - shift, high - shift)
                found.append((low - shift, high - shift))
        return tuple(found)

    # --- Steps of an op -------------------------------------------------------------------

    def _refuse(self, op: CommitOp | SealOp, why: str) -> StagingResult:
        """Refuse a commit or seal for good: fence its run."""
        text = f"a {'seal' if isinstance(op, SealOp) else 'commit'} was refused: {why}"
        dropped = self._fence(op.transaction, op.version, op.run, text)
        return StagingResult(f"{FENCED}: run {op.run!r}: {text}", dropped=dropped)

    def _fence(self, transaction: str, version: int, run: str, why: str) -> list[Range]:
        work = self.open.setdefault((transaction, version), Work())
        dropped = self._drop_run(work, run)
        if version > self.highest(transaction):
            work.fenced.setdefault(run, why)
        self._tidy((transaction, version))
        return dropped

    def _tidy(self, key: tuple[str, int]) -> None:
        work = self.open[key]
        if not work.runs and not work.fenced:
            del self.open[key]

    def _drop_run(self, work: Work, name: str) -> list[Range]:
        run = work.runs.pop(name, None)
        if run is None:
            return []
        return [piece for one in list(run.attempts) for piece in self._drop_attempt(run, one)]

    def _drop_attempt(self, run: StagedRun, name: tuple[int, int]) -> list[Range]:
        attempt = run.attempts.pop(name)
        self.attempts -= 1
        self._unstage(attempt.ranges)
        return attempt.ranges

    def _unstage(self, ranges: Sequence[Range]) -> None:
        """Remove staged ranges before their sizes, so that the gaps between are forgotten, too."""
        for first, last in ranges:
            self.size -= self.sizes.total(first, last)
            self.staged.remove(first, last)
        if not self.staged:
            self.sizes = Sizes()
            return
        for first, last in ranges:
            low, high = self.staged.gap(first, 1, max(last, self.staged.last))
            self.sizes.forget(low, high)

    def _finish(self, transaction: str, version: int) -> list[Range]:
        """Note a committed version. Drop older versions and other runs, except sealed runs."""
        known = self.committed.setdefault(transaction, RangeSet())
        known.add(version, version)
        if len(known) > COMMITTED_RANGES_MAX:
            known.remove(*known.front())
        dropped: list[Range] = []
        for key in [key for key in self.open if key[0] == transaction and key[1] <= version]:
            work = self.open[key]
            work.fenced.clear()
            for name in [name for name, run in work.runs.items() if not run.home]:
                dropped += self._drop_run(work, name)
            self._tidy(key)
        return dropped

    # --- Plain data -----------------------------------------------------------------------

    @property
    def bytes_about(self) -> int:
        """Approximate bytes of the encoded `image`, computed without encoding."""
        runs = len(self.staged) + len(self.sizes) + len(self.origins.by_sequence)
        runs += sum(map(len, self.committed.values()))
        return RUN_BYTES * runs + NAMED_BYTES * (len(self.open) + len(self.committed))

    def image(self) -> Image:
        """The staged messages as plain data. Equal states give equal data."""
        return [
            [(name, list(known)) for name, known in sorted(self.committed.items())],
            [
                (
                    transaction,
                    version,
                    [
                        (
                            name,
                            run.used_us,
                            run.home,
                            run.has_asked,
                            run.winners,
                            [
                                (partition, attempt, one.chunks, one.ranges, one.largest)
                                for (partition, attempt), one in sorted(run.attempts.items())
                            ],
                        )
                        for name, run in sorted(work.runs.items())
                    ],
                    sorted(work.fenced.items()),
                )
                for (transaction, version), work in sorted(self.open.items())
            ],
            self.sizes.to_bytes(),
            self.origins.by_sequence.to_bytes(),
            [
                (*key, one.what, one.transaction, one.version, one.run)
                for key, one in sorted(self.tasks.items())
            ],
        ]

    @classmethod
    def restore(cls, image: Image, next_sequence: int) -> Staging:
        """Read the result of `image`. Raises ValueError when the data break an invariant."""
        made = cls()
        if not image:
            return made
        try:
            committed, works, sizes, origins, tasks = msgspec.convert(image, _IMAGE)
        except MALFORMED as error:
            raise ValueError(f"what is staged: {error}") from error
        for transaction, versions in committed:
            if not versions or any(first > last for first, last in versions):
                raise ValueError(f"transaction {transaction!r} has committed {versions}")
            made.committed[transaction] = RangeSet(versions)
        made.tasks = {(one[0], one[1]): CrossQueueTask(*one[2:]) for one in tasks}
        made.sizes = Sizes.from_bytes(sizes)
        made.origins = Places.from_bytes(origins, next_sequence)
        for transaction, version, runs, fenced in works:
            work = made.open[transaction, version] = Work(fenced=dict(fenced))
            for name, used_us, home, has_asked, winners, attempts in runs:
                run = work.runs[name] = StagedRun({}, used_us, home, has_asked, winners)
                for partition, number, chunks, ranges, largest in attempts:
                    made._restore(run, (partition, number), Attempt(chunks, 0, ranges, largest))
        if made.staged and made.staged.last >= next_sequence:
            raise ValueError(f"message {made.staged.last} of {next_sequence - 1} is staged")
        made.size = sum(made.sizes.total(*piece) for piece in made.staged)
        return made

    def _restore(self, run: StagedRun, name: tuple[int, int], attempt: Attempt) -> None:
        run.attempts[name] = attempt
        self.attempts += 1
        for first, last in attempt.ranges:
            is_sound = 0 < first <= last and not self.staged.within(first, last)
            if not is_sound or self.origins.by_sequence.within(first, last):
                raise ValueError(f"attempt {name} has a wrong chunk, {first} to {last}")
            self.staged.add(first, last)
            attempt.count += last - first + 1
