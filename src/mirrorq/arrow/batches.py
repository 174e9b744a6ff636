"""Record batches straight from frames: no Python object is made for a message.

A frame's two buffers are an Arrow binary array as they stand (docs/disk-format.md); sequences
are a count, and what all messages of a frame share is a repetition. Only headers and message
ids, where they are asked for, are read one by one.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa

from mirrorq.bulk.reading import Batch
from mirrorq.errors import ConfigError
from mirrorq.protocol.shard_names import split_name

ROWS_MAX = 50_000
"""Of one record batch: a frame may hold more."""
ROWS_MIN = 1_000
BYTES_MIN = 1 << 20
"""Frames are joined until a record batch has so many rows, or its frames so many bytes."""


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the schema of these columns. Raises ConfigError: there is none of this name, or no
    column is named."""
    if not columns:
        raise ConfigError(f"no column is named: give some of {', '.join(_ARROW)}")
    for name in columns:
        if name not in _ARROW:
            raise ConfigError(f"there is no column {name!r}: they are {', '.join(_ARROW)}")
    return pa.schema([pa.field(name, _ARROW[name]) for name in columns])


def record_batches(
    batches: Iterable[Batch], queue: str, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Make record batches of these columns out of batches of one queue, or of one shard."""
    schema = schema_of(columns)
    for group in _groups(batches):
        arrays = [_column(name, group, queue) for name in columns]
        whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
        for start in range(0, whole.num_rows, ROWS_MAX):
            yield whole.slice(start, ROWS_MAX)


def _groups(batches: Iterable[Batch]) -> Iterator[list[Batch]]:
    """Batches that go into one record batch."""
    group: list[Batch] = []
    rows = size = 0
    for batch in batches:
        group.append(batch)
        rows += batch.count
        size += len(batch.frame)
        if rows >= ROWS_MIN or size >= BYTES_MIN:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def _column(name: str, group: Sequence[Batch], queue: str) -> pa.Array:
    parts = [_MAKERS[name](batch, queue) for batch in group]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _values(batch: Batch, queue: str) -> pa.Array:
    (offsets, values), _ = batch.columns
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.binary(), batch.count, buffers)


def _sequences(batch: Batch, queue: str) -> pa.Array:
    numbers = array("q", range(batch.first, batch.last + 1))
    return pa.Array.from_buffers(pa.int64(), batch.count, [None, pa.py_buffer(numbers)])


def _timestamps(batch: Batch, queue: str) -> pa.Array:
    return pa.repeat(pa.scalar(batch.timestamp_us, _ARROW["timestamp"]), batch.count)


def _queues(batch: Batch, queue: str) -> pa.Array:
    name, _ = split_name(queue) or (queue, 0)
    return pa.repeat(pa.scalar(name, pa.string()), batch.count)


def _shards(batch: Batch, queue: str) -> pa.Array:
    _, shard = split_name(queue) or (queue, 0)
    return pa.repeat(pa.scalar(shard, pa.int32()), batch.count)


def _headers(batch: Batch, queue: str) -> pa.Array:
    found = batch.properties()
    if found is None:
        return pa.nulls(batch.count, _ARROW["headers"])
    rows = [
        [(name, header_text(value)) for name, value in one.headers.items()] or None for one in found
    ]
    return pa.array(rows, _ARROW["headers"])


def header_text(value: object) -> str | None:
    """A header's value as text: bytes as UTF-8, what is none of it escaped; lists and mappings as
    JSON."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value, default=header_text)
    return None if value is None else str(value)


def _texts(name: str, batch: Batch, queue: str) -> pa.Array:
    found = batch.properties()
    if found is None:
        return pa.nulls(batch.count, pa.string())
    return pa.array([getattr(one, name) for one in found], pa.string())


def _redelivered(batch: Batch, queue: str) -> pa.Array:
    return pa.repeat(pa.scalar(batch.delivery_count > 1, pa.bool_()), batch.count)


def _delivery_counts(batch: Batch, queue: str) -> pa.Array:
    return pa.repeat(pa.scalar(batch.delivery_count, pa.int32()), batch.count)


_ARROW: dict[str, pa.DataType] = {
    "value": pa.binary(),
    "sequence": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "queue": pa.string(),
    "shard": pa.int32(),
    "headers": pa.map_(pa.string(), pa.string()),
    "message_id": pa.string(),
    "reply_to": pa.string(),
    "correlation_id": pa.string(),
    "content_type": pa.string(),
    "redelivered": pa.bool_(),
    "delivery_count": pa.int32(),
}
_MAKERS: dict[str, Callable[[Batch, str], pa.Array]] = {
    "value": _values,
    "sequence": _sequences,
    "timestamp": _timestamps,
    "queue": _queues,
    "shard": _shards,
    "headers": _headers,
    "message_id": partial(_texts, "message_id"),
    "reply_to": partial(_texts, "reply_to"),
    "correlation_id": partial(_texts, "correlation_id"),
    "content_type": partial(_texts, "content_type"),
    "redelivered": _redelivered,
    "delivery_count": _delivery_counts,
}
