"""Files of samples: one JSON object a line; before the samples of a command its day and peers."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

LIBRARIES = (
    "mirrorq",
    "pika",
    "nats-py",
    "redis",
    "confluent-kafka",
    "pysyncobj",
    "persist-queue",
    "celery",
)
SERVERS = {
    "RabbitMQ": ["rabbitmqctl", "version"],
    "NATS": ["nats-server", "--version"],
    "Redis": ["redis-server", "--version"],
}


class Origin(msgspec.Struct, tag="origin"):
    """Where and when samples were measured. The tables on the pages name the last one."""

    day: str
    machine: str
    versions: str
    """mirrorq, then each server and library beside it."""


Sample = TypeVar("Sample", bound=msgspec.Struct)


class Results(Generic[Sample]):
    """Samples in memory, added to a file if there is one."""

    def __init__(self, kind: type[Sample], file: Path | None) -> None:
        self.samples: list[Sample] = []
        self.origin: Origin | None = None
        self._file = file
        if file is not None and file.exists():
            for line in file.read_bytes().splitlines():
                found = msgspec.json.decode(line, type=Origin | kind)  # type: ignore[valid-type]
                if isinstance(found, Origin):
                    self.origin = found
                else:
                    self.samples.append(found)

    def add(self, sample: Sample) -> None:
        """Keep a sample. The first one of a command is preceded by the origin."""
        origin = here()
        if self.origin != origin:
            self.origin = origin
            self._write(origin)
        self.samples.append(sample)
        self._write(sample)

    def _write(self, item: msgspec.Struct) -> None:
        if self._file is not None:
            with self._file.open("ab") as file:
                file.write(msgspec.json.encode(item) + b"\n")

    def footnote(self) -> str:
        """One line for the end of a table: day and versions."""
        return f"{self.origin.day}; {self.origin.versions}." if self.origin else ""


@cache
def here() -> Origin:
    """Return today's origin on this machine."""
    python = platform.python_version()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, CPython {python}"
    return Origin(time.strftime("%Y-%m-%d"), machine, ", ".join(_versions()))


def _versions() -> Iterator[str]:
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            yield f"{name} {metadata.version(name)}"
    for name, command in SERVERS.items():
        with suppress(OSError, subprocess.SubprocessError):
            said = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
            found = re.search(r"\d+\.\d+\.\d+", said)
            if found:
                yield f"{name} {found[0]}"
    kafka = sorted(Path(__file__).parents[2].glob("build/kafka/kafka_2.13-*"))
    if kafka:
        yield f"Kafka {kafka[-1].name.rpartition('-')[2]}"


def middle(samples: Sequence[msgspec.Struct], name: str) -> float:
    """Return the median of a field."""
    return float(statistics.median(getattr(each, name) for each in samples))


def write_into(page: Path, text: str, name: str) -> None:
    """Put a text between the marks of that name in a page."""
    page.write_text(replaced(page.read_text(encoding="utf-8"), text, name), encoding="utf-8")


def replaced(page: str, text: str, name: str) -> str:
    """Return the page's text with `text` between the marks of that name."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    pattern = re.compile(f"{re.escape(begin)}.*{re.escape(end)}", re.DOTALL)
    if not pattern.search(page):
        raise SystemExit(f"the page has no lines {begin} and {end} to write between")
    return pattern.sub(lambda _: f"{begin}\n{text}\n{end}", page)
