"""The options of `format("mirrorq")`: what was written, made into values, or a sentence.

Names and meanings are those of Spark's Kafka source where the thing is the same.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from attrs import frozen

from mirrorq.errors import ConfigError
from mirrorq.protocol.shard_names import shard_name

__all__ = [
    "EARLIEST",
    "LATEST",
    "Options",
    "Position",
    "check_batch",
    "check_drain",
    "check_stream",
    "parse",
]

EARLIEST = "earliest"
LATEST = "latest"
Position = str | int
"""EARLIEST, LATEST, or a sequence."""
Positions = Position | Mapping[str, Position]
"""The same for all queues, or for each by name."""

Ranges = tuple[tuple[int, int], ...]

KAFKA_EARLIEST = -2
KAFKA_LATEST = -1
"""What Kafka's options call them within JSON."""
ENDPOINTS_VARIABLE = "MIRRORQ_URL"
"""Read, as by the command line, where the option is not given: options are visible in plans."""
SPARKS_OWN = ("checkpointlocation", "queryname")
"""Options of Spark itself that come along."""
Value = TypeVar("Value")


@frozen
class Options:
    """All options, checked."""

    endpoints: tuple[str, ...]
    queues: tuple[str, ...] = ()
    queue_pattern: str = ""
    columns: tuple[str, ...] = ()
    include_headers: bool = False
    include_delivery: bool = False
    starting: Positions = EARLIEST
    ending: Positions = LATEST
    starting_ms: int | None = None
    ending_ms: int | None = None
    sequences: Ranges | Mapping[str, Ranges] | None = None
    """Only these ranges; or those of each queue or shard by name."""
    partitions_min: int = 0
    """0: as many as suit the size."""
    trigger_max: int | None = None
    trigger_min: int = 0
    trigger_delay_s: float = 900.0
    """After this a batch is made although it has fewer than trigger_min."""
    fail_on_loss: bool = True
    claim_timeout_s: float = 30.0
    mode: str = ""
    """Of a stream: browse only looks, drain takes what Spark has committed; "": not given."""
    transaction: str = ""
    version: int | None = None
    insecure: bool = False
    keys: str = ""
    """Where this client's secret key and the nodes' keys are; the same path on every host."""
    timeout_s: float = 30.0
    """How long the cluster may take to answer."""


def parse(given: Mapping[str, str]) -> Options:
    """Read the options of a source or sink.

    Raises:
        ConfigError: one is unknown, missing, or has a value that is none.
    """
    options = {
        name.lower(): str(value) for name, value in given.items() if name.lower() not in SPARKS_OWN
    }
    unknown = sorted(set(options) - set(_READERS))
    if unknown:
        raise ConfigError(
            f"format mirrorq knows no option {unknown[0]!r}: it has "
            f"{', '.join(sorted(_NAMES.values(), key=str.lower))}"
        )
    options.setdefault("endpoints", os.environ.get(ENDPOINTS_VARIABLE, ""))
    found: dict[str, Any] = {}
    for name, text in options.items():
        field, read = _READERS[name]
        found[field] = _value(_NAMES[name], text, read)
    if "queue" in options and "queues" in options:
        raise ConfigError("options queue and queues are the same: give one of them")
    if found.get("queues") and found.get("queue_pattern"):
        raise ConfigError("options queue and queuePattern exclude each other: give one of them")
    for offsets, stamp, ms in (
        ("startingoffsets", "startingTimestamp", "starting_ms"),
        ("endingoffsets", "endingTimestamp", "ending_ms"),
    ):
        if offsets in options and found.get(ms) is not None:
            raise ConfigError(
                f"options {_NAMES[offsets]} and {stamp} exclude each other: give one of them"
            )
    return Options(**found)


def check_batch(options: Options) -> None:
    """Whether a batch read does what its options say.

    Raises:
        ConfigError: they are to take messages, or say twice which ones are read.
    """
    bounds = _bounds(options)
    if "sequences" in bounds and len(bounds) > 1:
        raise ConfigError(
            f"options sequences and {bounds[1]} exclude each other: sequences alone says which "
            "messages are read"
        )
    if options.mode == "drain":
        raise ConfigError(
            "option mode is drain, and a batch read takes nothing: leave it out, and take messages "
            "for one job with pyspark_mirrorq.drain, or stream with .trigger(availableNow=True)"
        )


def check_drain(options: Options) -> None:
    """Whether a drain does what its options say.

    Raises:
        ConfigError: they bound what is read, and a drain takes what is ready.
    """
    for name in _bounds(options):
        raise ConfigError(
            f"option {name} is of batch reads, which take nothing. A drain takes what is ready, "
            "in the order of the queue, and limit says how many: leave the option out"
        )


def _bounds(options: Options) -> list[str]:
    """The names of the given options that bound what is read; sequences first."""
    bounds = {
        "sequences": options.sequences is not None,
        "startingOffsets": options.starting != EARLIEST,
        "startingTimestamp": options.starting_ms is not None,
        "endingOffsets": options.ending != LATEST,
        "endingTimestamp": options.ending_ms is not None,
    }
    return [name for name, is_given in bounds.items() if is_given]


def check_stream(options: Options) -> None:
    """Whether a stream does what its options say.

    Raises:
        ConfigError: they bound what is read, or there is no mode.
    """
    bounds = _bounds(options)
    for name in ("endingOffsets", "endingTimestamp", "sequences"):
        if name in bounds:
            raise ConfigError(
                f"option {name} is of batch reads: a stream has no end. Leave it out; "
                ".trigger(availableNow=True) ends a query with what is there when it begins"
            )
    if not options.mode:
        raise ConfigError(
            'option mode is missing: write .option("mode", "drain") for a stream that takes the '
            'messages that Spark has committed, or .option("mode", "browse") for one that looks at '
            "messages and takes none"
        )


def _value(name: str, text: str, read: Callable[[str], Value]) -> Value:
    try:
        return read(text.strip())
    except ValueError as error:
        raise ConfigError(f"option {name} is {text!r}: {error}") from None


def _endpoints(text: str) -> tuple[str, ...]:
    found = tuple(one.strip() for one in text.split(",") if one.strip())
    if not found:
        raise ConfigError(
            "option endpoints is missing: name nodes of the cluster, as in "
            '.option("endpoints", "tcp://127.0.0.1:7400,tcp://127.0.0.1:7401"), or set '
            f"{ENDPOINTS_VARIABLE} where the driver runs"
        )
    return found


def _queues(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))
    if not found:
        raise ValueError("name a queue, or several joined by commas")
    return found


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from None
    if not text:
        raise ValueError("it is empty")
    return text


def _columns(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))


def _bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it is true or false")
    return text.lower() == "true"


def _at_least(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        value = int(text) if re.fullmatch(r"[+-]?\d+", text) else None
        if value is None or value < least:
            raise ValueError(f"it is a whole number from {least} on")
        return value

    return read


_UNITS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.lower())
    if found is None or found[2] not in _UNITS:
        raise ValueError("it is a time in seconds, or with a unit, as in 500ms, 30s, 5m")
    return float(found[1]) * _UNITS[found[2]]


def _sequences(text: str) -> Ranges | Mapping[str, Ranges]:
    if not text.startswith("{"):
        return _ranges(text)
    return {str(queue): _ranges(str(value)) for queue, value in _json(text).items()}


def _json(text: str) -> Mapping[Any, Any]:
    try:
        listed = json.loads(text)
    except ValueError as error:
        raise ValueError(f"it is no JSON: {error}") from None
    assert isinstance(listed, dict)
    return listed


def _ranges(text: str) -> Ranges:
    if text == "none":
        return ()
    found: list[tuple[int, int]] = []
    for one in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:-(\d+))?\s*", one)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if first < 1 or last < first or (found and first <= found[-1][1]):
            raise ValueError("it is ranges in rising order, as in 1-400,500,600-700")
        found.append((first, last))
    return tuple(found)


def _mode(text: str) -> str:
    if text not in ("drain", "browse"):
        raise ValueError("it is drain (take what has been committed) or browse (only look)")
    return text


def _positions(is_start: bool) -> Callable[[str], Positions]:
    def read(text: str) -> Positions:
        if not text.startswith("{"):
            return _position(text, is_start)
        found: dict[str, Position] = {}
        for queue, value in _json(text).items():
            # As Kafka's by partition: a queue's by shard.
            shards = value if isinstance(value, dict) else None
            if shards is None:
                found[str(queue)] = _position(value, is_start)
            for shard, one in (shards or {}).items():
                found[shard_name(str(queue), _at_least(0)(str(shard)))] = _position(one, is_start)
        return found

    return read


def _position(value: Any, is_start: bool) -> Position:
    text = str(value)
    if text in (EARLIEST, str(KAFKA_EARLIEST)) and is_start:
        return EARLIEST
    if text in (LATEST, str(KAFKA_LATEST)):
        return LATEST
    if re.fullmatch(r"\d+", text) is None or isinstance(value, bool | float):
        known = "earliest, latest," if is_start else "latest,"
        raise ValueError(f'it is {known} a sequence, or JSON as {{"orders": 17}}')
    return int(text)


_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {}
_NAMES: dict[str, str] = {}
"""By the lower-cased name, which is how Spark passes them: as they are written."""


def _known(entries: Iterable[tuple[str, str, Callable[[str], Any]]]) -> None:
    for name, field, read in entries:
        _NAMES[name.lower()] = name
        _READERS[name.lower()] = (field, read)


_known(
    (
        ("endpoints", "endpoints", _endpoints),
        ("queue", "queues", _queues),
        ("queues", "queues", _queues),
        ("queuePattern", "queue_pattern", _pattern),
        ("columns", "columns", _columns),
        ("includeHeaders", "include_headers", _bool),
        ("includeDelivery", "include_delivery", _bool),
        ("startingOffsets", "starting", _positions(True)),
        ("endingOffsets", "ending", _positions(False)),
        ("startingTimestamp", "starting_ms", _at_least(0)),
        ("endingTimestamp", "ending_ms", _at_least(0)),
        ("sequences", "sequences", _sequences),
        ("minPartitions", "partitions_min", _at_least(1)),
        ("maxOffsetsPerTrigger", "trigger_max", _at_least(1)),
        ("minOffsetsPerTrigger", "trigger_min", _at_least(1)),
        ("maxTriggerDelay", "trigger_delay_s", _seconds),
        ("failOnDataLoss", "fail_on_loss", _bool),
        ("claimTimeout", "claim_timeout_s", _seconds),
        ("mode", "mode", _mode),
        ("txnAppId", "transaction", str),
        ("txnVersion", "version", _at_least(0)),
        ("insecure", "insecure", _bool),
        ("keys", "keys", str),
        ("timeout", "timeout_s", _seconds),
    )
)
