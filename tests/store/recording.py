"""What a process does to a store's files, written down by a C library that is preloaded."""

from __future__ import annotations

import json
import os
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from mirrorq.store.environment import DATA_FILE
from mirrorq.store.write_ahead import FILE_NAME as LOG_FILE

from .writing import PYTHON, SOURCES

_SOURCE = Path(__file__).with_name("recorder.c")
_TESTS = Path(__file__).parents[1]
FILES = (DATA_FILE, LOG_FILE)
_RECORD = struct.Struct("<HHIQQ")
_WRITE, _SYNC, _TRUNCATE, _MARK = 1, 2, 3, 4


@frozen
class Written:
    """Bytes put into a file; `is_synced`: they are on disk when the call returns."""

    offset: int
    data: bytes
    is_synced: bool
    file: str = DATA_FILE


@frozen
class Synced:
    """Everything written to the file before is on disk."""

    file: str = DATA_FILE


@frozen
class Truncated:
    size: int
    file: str = DATA_FILE


@frozen
class Mark:
    """Something that the process reported; everything before is promised from here on."""

    facts: dict[str, Any]


Event = Written | Synced | Truncated | Mark


def build(directory: Path) -> Path:
    """Compile the recorder."""
    library = directory / "recorder.so"
    command = ["cc", "-O1", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl", "-lpthread"]
    subprocess.run(command, check=True)
    return library


def record(library: Path, path: Path, script: str, *arguments: str) -> list[Event]:
    """Run a script of the tests on the store at `path`; return what it did to its files."""
    log = path.with_suffix(".log")
    subprocess.run(
        [PYTHON, "-m", script, str(path), *arguments],
        cwd=_TESTS,
        env={
            "PYTHONPATH": os.pathsep.join((SOURCES, str(_TESTS))),
            "LD_PRELOAD": str(library),
            "MIRRORQ_RECORD_FILES": ":".join(str(path / name) for name in FILES),
            "MIRRORQ_RECORD_LOG": str(log),
        },
        check=True,
    )
    events = parse(log.read_bytes())
    log.unlink()
    return events


def mark(facts: dict[str, Any]) -> None:
    """In the recorded process: put a mark into the log."""
    text = json.dumps(facts).encode()
    with open(os.environ["MIRRORQ_RECORD_LOG"], "ab", buffering=0) as log:
        log.write(_RECORD.pack(_MARK, 0, 0, 0, len(text)) + text)


def parse(log: bytes) -> list[Event]:
    events: list[Event] = []
    at = 0
    while at < len(log):
        kind, number, is_synced, offset, length = _RECORD.unpack_from(log, at)
        data = log[at + _RECORD.size :][:length] if length else b""
        at += _RECORD.size + length
        file = FILES[number - 1]
        if kind == _WRITE:
            events.append(Written(offset, data, bool(is_synced), file))
        elif kind == _SYNC:
            events.append(Synced(file))
        elif kind == _TRUNCATE:
            events.append(Truncated(offset, file))
        else:
            events.append(Mark(json.loads(data)))
    return events


def counts(events: Sequence[Event]) -> str:
    """One line about a recording."""
    kinds = [type(event).__name__ for event in events]
    return ", ".join(f"{kinds.count(kind)} {kind.lower()}" for kind in sorted(set(kinds)))
