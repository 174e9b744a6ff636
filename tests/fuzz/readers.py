"""The functions that read bytes, each with what it may raise.

A reader is fed whole inputs, as good as right ones: what it takes is then used as its callers
use it. `Target.run` returns quietly or raises what no caller expects.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
from attrs import frozen

from harness.tiny_pages import tiny_pages
from mirrorq.api.message import Chunk, Message
from mirrorq.cluster.catalog.catalog import Catalog
from mirrorq.cluster.catalog.commands import decode_command, encode_command
from mirrorq.cluster.raft import messages as raft
from mirrorq.containers.ranges import RangeSet
from mirrorq.errors import ConfigError, PolicyError, ProtocolError
from mirrorq.monitoring.status import NodeStatus, QueueStatus
from mirrorq.protocol import policy
from mirrorq.protocol.commands import CatalogCommand, DeclareQueue, SetPolicy
from mirrorq.protocol.effects import Page, QueueImage, RaftState
from mirrorq.protocol.identities import MemberId, StoreId
from mirrorq.protocol.ops import OpKind
from mirrorq.protocol.sessions import Delivery
from mirrorq.replication.state.pages import Snapshot
from mirrorq.replication.state.queue_state import QueueState
from mirrorq.store import queue_log, raft_log, records, runs
from mirrorq.store.records import Damaged
from mirrorq.transport import packing
from mirrorq.transport.endpoint import parse_endpoint
from mirrorq.transport.transport import _parse_routing_id
from mirrorq.wire import frames, messages, ops
from mirrorq.wire.properties import pack_properties

from .mutation import (
    frame,
    number,
    op,
    packed_value,
    ranges,
    resealed,
    spoiled_bytes,
    spoiled_packed,
    spoiled_tree,
    text,
    value,
)


@frozen
class Target:
    """One reader, or a family of them."""

    name: str
    run: Callable[[Random], None]
    weight: int = 1
    inputs: int = 1
    """How many a run counts for."""


def expecting(kinds: type[Exception] | tuple[type[Exception], ...], call: Callable[[], Any]) -> Any:
    """The result, or None when it raised what it says that it raises."""
    try:
        return call()
    except kinds:
        return None


# --- Frames and ops -----------------------------------------------------------------------


def read_frame(chance: Random) -> None:
    """`check` takes whole frames only; what it takes can be read, cut and stamped."""
    data = spoiled_bytes(chance, frame(chance))
    if chance.random() < 0.7:
        data = resealed(data)
    given: Any = chance.choice((bytes, bytearray, memoryview))(data)
    header = expecting(ProtocolError, lambda: frames.check(given))
    if header is None:
        return
    if header.kind == OpKind.PUBLISH:
        bodies = frames.split(given)
        assert len(bodies) == header.count
        properties = frames.split_properties(given)
        assert properties is None or len(properties) == header.count
        start = chance.randrange(header.count)
        frames.check(frames.cut(data, start, chance.randint(start + 1, header.count)))
    else:
        expecting(ProtocolError, lambda: ops.make_entry(data))
    last = 2**63 - 1 - header.count
    stamped = frames.stamp(
        given, queue_id=1, epoch=2, lsn=3, first_sequence=last, timestamp_us=-(2**63)
    )
    frames.check(stamped)


UNCHECKED = (ProtocolError, ValueError, TypeError, struct.error, msgspec.MsgspecError)


def read_unchecked_frame(chance: Random) -> None:
    """On bytes that nobody checked: nonsense or an exception, but no harm."""
    data = spoiled_bytes(chance, frame(chance))
    start = chance.randint(-1, 3)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: frames.header(data),
        lambda: frames.split(data),
        lambda: frames.split_properties(data),
        lambda: frames.payload(data),
        lambda: frames.cut(data, start, start + 2),
        lambda: frames.stamp(
            data, queue_id=1, epoch=1, lsn=1, first_sequence=1, timestamp_us=number(chance)
        ),
    )
    expecting(UNCHECKED, chance.choice(calls))


def read_run(chance: Random) -> None:
    """Frames end to end, as they lie in the store."""
    data = b"".join(frame(chance) for _ in range(chance.randint(1, 4)))
    if chance.random() < 0.9:
        data = spoiled_bytes(chance, data)
    if chance.random() < 0.5:
        data = resealed(data)
    expecting(ProtocolError, lambda: frames.split_run(data))
    key = records.place_key(1, 1, 9)
    first = number(chance)
    span = (first, first + chance.choice((0, 3, 2**40)), number(chance), number(chance))
    expecting(Damaged, lambda: runs.read("messages", key, data, *span))
    expecting(Damaged, lambda: runs.first_header("messages", key, data, is_checked=True))
    for each in expecting(Damaged, lambda: runs.split("ops", key, data)) or ():
        expecting(Damaged, lambda each=each: runs.entry("ops", key, each))


def read_payload(chance: Random) -> None:
    data = spoiled_packed(chance, ops.encode_payload(op(chance)))
    kind = chance.choice((*range(1, 21), 255))
    expecting(ProtocolError, lambda: ops.decode_payload(kind, data))


# --- Messages -----------------------------------------------------------------------------


def read_message(chance: Random) -> None:
    """What is decoded is of the types that its class declares: it encodes again."""
    parts = messages.encode(value(chance, messages.WireMessage))
    spoiled = [bytes(part) for part in parts]
    kind = chance.random()
    if kind < 0.7:
        spoiled[0] = spoiled_packed(chance, spoiled[0])
    elif kind < 0.9:
        at = chance.randrange(len(spoiled))
        data = spoiled_bytes(chance, spoiled[at])
        spoiled[at] = resealed(data) if chance.random() < 0.5 else data
    else:
        chance.shuffle(spoiled)
        spoiled = spoiled[: chance.randint(0, len(spoiled))]
    found = expecting(ProtocolError, lambda: messages.decode(spoiled))
    if found is not None:
        messages.encode(found)


def read_packet(chance: Random) -> None:
    """Many messages as one of ZeroMQ's."""
    box = packing.SendBuffer()
    for _ in range(chance.randint(0, 3)):
        size = packing.PART_BYTES_MAX + 1 if chance.random() < 0.01 else chance.randint(0, 40)
        box.add([bytes(size) for _ in range(chance.randint(0, 3))])
    parts = [bytes(part) for part in box.take_parts()]
    at = chance.randrange(len(parts))
    parts[at] = spoiled_packed(chance, parts[at]) if at == 0 else spoiled_bytes(chance, parts[at])
    if chance.random() < 0.1:
        parts = parts[: chance.randint(0, len(parts))]
    for message in expecting(ProtocolError, lambda: packing.unpack(parts)) or ():
        assert all(type(part) is bytes for part in message)


def read_routing_id(chance: Random) -> None:
    identity = b"P" + bytes([chance.randrange(3)]) + chance.randbytes(16) + text(chance).encode()
    expecting(ProtocolError, lambda: _parse_routing_id(spoiled_bytes(chance, identity)))


def read_endpoint(chance: Random) -> None:
    given = chance.choice(("tcp://127.0.0.1:7400", "ipc:///tmp/x", "tcp://[::1]:80", "tcp://h:1"))
    spoiled = spoiled_bytes(chance, given.encode()).decode("utf-8", "surrogateescape")
    expecting(ConfigError, lambda: parse_endpoint(spoiled))


_NAMED: Any = SimpleNamespace(name="orders", queue_name="orders")
"""A handle, as far as an error looks at it."""


def read_properties(chance: Random) -> None:
    """A consumer that looks at headers gets them, or is told."""
    headers = {text(chance): chance.choice((1, 1.5, "x", b"y", True))}
    data = pack_properties(headers, text(chance), chance.choice((None, "k", b"k")))
    data = spoiled_packed(chance, data)
    piece = Delivery(1, 1, 1, 1, 1)
    message = Message(Chunk(_NAMED, 0, piece, 1, 1, 0, frames.pack_publish([b""], [data])), 0)
    for name in ("headers", "message_id", "key"):
        expecting(ProtocolError, lambda name=name: getattr(message, name))


def read_answer(chance: Random) -> None:
    """What a client's status calls decode: see `Client._look`."""
    good = msgspec.json.encode([QueueStatus.unknown()])
    kind = chance.choice((list[QueueStatus], list[NodeStatus], QueueStatus))
    tree = spoiled_tree(chance, msgspec.json.decode(good))
    data = spoiled_bytes(chance, good)
    if chance.random() < 0.6:
        data = json.dumps(tree, default=repr).encode()
    expecting((msgspec.MsgspecError, ValueError), lambda: msgspec.json.decode(data, type=kind))


# --- The catalog --------------------------------------------------------------------------


def read_voters(chance: Random) -> None:
    voters = [StoreId(text(chance), number(chance)) for _ in range(chance.randint(0, 4))]
    raft.decode_voters(spoiled_bytes(chance, raft.encode_voters(voters)))


def read_command(chance: Random) -> None:
    """A command of the log, and what the catalog makes of it."""
    data = spoiled_packed(chance, encode_command(value(chance, CatalogCommand)))
    command = expecting(ProtocolError, lambda: decode_command(data))
    if command is not None:
        made = Catalog()
        made.apply(1, command)
        made.snapshot()


def read_catalog(chance: Random) -> None:
    """A snapshot: what is restored can be asked, changed and written again."""
    made = Catalog()
    members = (MemberId("a", 5, 1), MemberId("b", 6, 1))
    for index, name in enumerate(("orders", text(chance) or "x"), 1):
        made.apply(index, DeclareQueue(name, True, False, False, "a", None, members))
    made.apply(3, SetPolicy("p", '["^o",{"max-length":7},1,"queues"]'))
    for index in range(4, 8):
        made.apply(index, value(chance, CatalogCommand))
    (page,) = made.snapshot()
    data = spoiled_packed(chance, page)
    restored = expecting(ProtocolError, lambda: Catalog.restore((data,)))
    if restored is not None:
        for queue in restored.queues():
            assert queue.view.members[0].id.node is not None
            restored.definition_of(queue.name)
        restored.apply(9, value(chance, CatalogCommand))
        restored.snapshot()


# --- The store ----------------------------------------------------------------------------


def read_state(chance: Random) -> None:
    """The applied state of a queue, from a checkpoint or a transfer: it goes on from there."""
    state = QueueState()
    for lsn in range(1, chance.randint(2, 12)):
        _apply(chance, state, lsn)
    data = spoiled_packed(chance, state.encode())
    found = expecting(ValueError, lambda: QueueState.decode(data))
    if found is None:
        return
    for first, last in list(found.live)[:3]:
        found.count_run(first, min(last, first + 100))
        found.raised_by_promotion(first)
    found.epoch_span(number(chance))
    if max(found.applied, found.next_sequence) < 2**62:
        for lsn in range(found.applied + 1, found.applied + 4):
            _apply(chance, found, lsn)
    found.encode()


def read_pages(chance: Random) -> None:
    """A state in pages, one of which, or whose head, is not as it was."""
    state = QueueState()
    for lsn in range(1, chance.randint(2, 14)):
        _apply(chance, state, lsn)
    with tiny_pages():
        snapshot = Snapshot(state, state.applied, state.all_pages(), {}, is_awaited=False)
        taken = [page for page in iter(snapshot.next_page, None) if page.data]
    parts = [state.encode_head(), *(page.data for page in taken if page.data)]
    wrong = chance.randrange(len(parts))
    parts[wrong] = spoiled_packed(chance, parts[wrong])
    pages = tuple(map(_with_data, taken, parts[1:]))
    image = QueueImage(1, parts[0], 1, pages=pages)
    found = expecting(ValueError, lambda: QueueState.of_image(image))
    if found is not None:
        found.encode()


def _with_data(page: Page, data: bytes) -> Page:
    return Page(page.kind, page.first, page.lsn, data)


def _apply(chance: Random, state: QueueState, lsn: int) -> None:
    codec = ops.FrameCodec()
    if chance.random() < 0.6:
        bodies = [b"x"] * chance.randint(1, 3)
        packed = frames.pack_publish(bodies, producer=chance.randint(0, 3), first_number=lsn)
        place = {"queue_id": 1, "epoch": 1, "lsn": lsn, "timestamp_us": 0}
        state.apply(codec.publish(packed, first_sequence=state.next_sequence, **place))
    else:
        state.apply(codec.op(op(chance), queue_id=1, epoch=1, lsn=lsn, timestamp_us=0))


def read_ranges(chance: Random) -> None:
    data = spoiled_bytes(chance, RangeSet(ranges(chance)).to_bytes())
    expecting(ValueError, lambda: RangeSet.from_bytes(data))


def read_record(chance: Random) -> None:
    """Sealed values, under a right checksum and a wrong one."""
    key = b"key"
    decoders: tuple[tuple[Callable[[bytes], Any], bytes], ...] = (
        (queue_log._decode_record, bytes(32)),
        (queue_log._decode_state, bytes(8) + b"state"),
        (records.unpack_u64, bytes(8)),
        (bytes.decode, b"node"),
        (lambda data: raft_log._decode_entry(7, data), bytes(12) + b"command"),
        (
            raft_log._decode_state,
            msgspec.msgpack.encode(RaftState(number(chance), StoreId("a", 5))),
        ),
        (
            raft_log._decode_snapshot,
            msgspec.msgpack.encode((3, 1, (StoreId("a", 5),), number(chance))),
        ),
    )
    decode, good = chance.choice(decoders)
    sealed = records.seal(key, spoiled_packed(chance, good))
    if chance.random() < 0.2:
        sealed = spoiled_bytes(chance, sealed)
    expecting(Damaged, lambda: records.decoded("meta", key, sealed, decode))


# --- Policies -----------------------------------------------------------------------------

POLICIES: tuple[dict[str, Any], ...] = (
    {"ha-mode": "all"},
    {"ha-mode": "exactly", "ha-params": 2, "ha-sync-mode": "automatic"},
    {"ha-mode": "nodes", "ha-params": ["a", "b"], "min-in-sync": 2},
    {"max-length": 10, "overflow": "reject-publish", "message-ttl": 1000, "expires": 5},
    {"durability": "replicated", "delivery-limit": 3, "dead-letter-queue": "dead"},
    {"queue-master-locator": "min-masters", "single-active-consumer": True},
)
PATTERNS = (
    *("^orders", "", ".*", "a|b", "[a-z]+$", "(x)?y{2,3}", "(?i)A", "\\bq\\d"),
    *("(a+)+$", "(a|aa)*$", "(a*)*b", "a*a*a*b", "(a?){9}b", "(?:a(?:b+)?)+c"),
)


def read_policy(chance: Random) -> None:
    """Arguments as JSON gives them; and the text in which the catalog keeps a policy."""
    definition: Any = dict(chance.choice(POLICIES))
    if chance.random() < 0.8:
        definition = spoiled_tree(chance, definition)
    pattern: Any = chance.choice(PATTERNS)
    if chance.random() < 0.4:
        pattern = spoiled_bytes(chance, pattern.encode()).decode("utf-8", "surrogateescape")
    name, priority = chance.choice(((text(chance), 0), ("p", packed_value(chance))))
    apply_to = "queues" if chance.random() < 0.8 else packed_value(chance)
    parsed = expecting(
        PolicyError, lambda: policy.parse(name, pattern, definition, priority, apply_to)
    )
    data = json.dumps([pattern, definition, priority, apply_to], default=repr)
    if parsed is not None:
        data = policy.to_text(parsed)
        assert policy.from_text(parsed.name, data) == parsed
        policy.in_force([parsed], chance.choice(("orders", "a" * 60 + "!", "ab" * 40)))
    spoiled = spoiled_bytes(chance, data.encode("utf-8", "surrogatepass"))
    expecting(
        PolicyError,
        lambda: policy.from_text("p", spoiled.decode("utf-8", "surrogateescape")),
    )


READERS = (
    Target("frame", read_frame, 4),
    Target("unchecked-frame", read_unchecked_frame, 2),
    Target("run", read_run, 3),
    Target("payload", read_payload, 3),
    Target("message", read_message, 6),
    Target("packet", read_packet, 2),
    Target("routing-id", read_routing_id),
    Target("endpoint", read_endpoint),
    Target("properties", read_properties),
    Target("answer", read_answer),
    Target("voters", read_voters),
    Target("command", read_command, 2),
    Target("catalog", read_catalog, 2),
    Target("state", read_state, 2),
    Target("pages", read_pages, 2),
    Target("ranges", read_ranges),
    Target("record", read_record, 2),
    Target("policy", read_policy, 3),
)
