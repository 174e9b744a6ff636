"""What producers and consumers saw, one line an event, written as it happens.

A line is `kind ms value …`, with the machine's clock in milliseconds. A process that is killed
leaves all lines but perhaps the end of its last, which is left out.

    a ms value                      attempt: put is about to be called
    s ms value                      accepted by a spool: it will be stored
    o ms value sequence             confirmed
    n ms value why                  certainly not stored
    u ms value why                  unknown
    d ms value sequence count flag  delivered: flag is 1 when `redelivered`
    k ms value count                its ack has resolved
    r ms value count why            its ack was refused
    x ms value                      a body that nobody can have written
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterable
from pathlib import Path

from attrs import define, field, frozen

from mirrorq import clock

__all__ = ["Attempt", "Delivery", "History", "Recorder", "body_of", "value_of"]


def body_of(value: str) -> bytes:
    """A body that says which it is, of a length of its own."""
    filler = zlib.crc32(value.encode())
    return value.encode() + b"|" + b"%08x" % filler * (filler % 97)


def value_of(body: bytes) -> str | None:
    """Which body this is; None when nobody can have written it."""
    try:
        value = body[: body.index(b"|")].decode()
    except ValueError:
        return None
    return value if body_of(value) == body else None


class Recorder:
    """Appends lines to one file. May be used from any thread."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()

    def write(self, kind: str, *fields: object) -> None:
        self.write_all(kind, [fields])

    def write_all(self, kind: str, rows: Iterable[Iterable[object]]) -> None:
        now_ms = clock.now_ms()
        lines = [f"{kind} {now_ms} {' '.join(map(str, fields))}\n" for fields in rows]
        with self._lock:
            self._file.write("".join(lines).encode())


@define
class Attempt:
    """What became of one put."""

    worker: str
    outcomes: list[str] = field(factory=list)
    sequences: list[int] = field(factory=list)
    is_accepted: bool = False
    """By a spool, which may have had no process left to hear the outcome."""


@frozen
class Delivery:
    """One message that a call returned or a callback was given."""

    worker: str
    ms: int
    sequence: int
    count: int
    redelivered: bool


@define
class History:
    """All workers' records."""

    attempts: dict[str, Attempt] = field(factory=dict)
    deliveries: dict[str, list[Delivery]] = field(factory=dict)
    acked: dict[str, tuple[int, int]] = field(factory=dict)
    """value -> (ms, count) of the first ack that resolved."""
    acks_refused: int = 0
    strange: list[str] = field(factory=list)
    """Bodies that nobody can have written, and lines that cannot be."""

    @classmethod
    def read(cls, paths: Iterable[Path]) -> History:
        history = cls()
        for path in sorted(paths):
            text = path.read_bytes().decode(errors="replace")
            for line in text[: text.rfind("\n") + 1].splitlines():
                history.take(path.stem, line)
        return history

    def take(self, worker: str, line: str) -> None:
        """Add one line of a worker's file."""
        kind, ms, value, *rest = line.split(" ")
        if kind == "a":
            if value in self.attempts:
                self.strange.append(f"{value} was attempted twice")
            self.attempts.setdefault(value, Attempt(worker))
        elif kind == "s":
            self.attempts.setdefault(value, Attempt(worker)).is_accepted = True
        elif kind in "onu":
            attempt = self.attempts.setdefault(value, Attempt(worker))
            attempt.outcomes.append(kind)
            if kind == "o":
                attempt.sequences.append(int(rest[0]))
        elif kind == "d":
            sequence, count, flag = map(int, rest)
            made = Delivery(worker, int(ms), sequence, count, bool(flag))
            self.deliveries.setdefault(value, []).append(made)
        elif kind == "k":
            self.acked.setdefault(value, (int(ms), int(rest[0])))
        elif kind == "r":
            self.acks_refused += 1
        else:
            self.strange.append(f"{worker}: {line}")
