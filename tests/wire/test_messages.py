"""Messages to bytes and back: every class, and everything that is no message."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import astuple

from mirrorq.cluster.bootstrap import FOUNDING_MESSAGES
from mirrorq.errors import ProtocolError
from mirrorq.protocol.commands import CatalogCommand
from mirrorq.protocol.control import CatalogRequest, Hello
from mirrorq.protocol.identities import SessionId
from mirrorq.protocol.ops import AckOp, Entry, OpKind
from mirrorq.protocol.raft import RAFT_MESSAGES
from mirrorq.protocol.ring import Data, Watermark
from mirrorq.protocol.sessions import Credit, Deliver, Reply, Request, SessionReply, SessionRequest
from mirrorq.wire import messages as wire
from mirrorq.wire.frames import pack_op, pack_publish
from mirrorq.wire.messages import HEAD_BYTES_MAX, VERSION, decode, encode
from mirrorq.wire.ops import encode_payload, make_entry

SESSION = SessionId("node-a", 3, 17)
FRAME = pack_publish([b"one", b"two"], producer=9, first_number=1)
ENTRIES = [
    make_entry(FRAME),
    make_entry(pack_publish([b""], properties=[b"p"])),
    make_entry(pack_op(OpKind.ACK, encode_payload(AckOp(((1, 2),))), queue_id=1, epoch=2, lsn=3)),
]
NESTED = (Request, Reply, CatalogCommand)


def classes_of(*unions: Any) -> list[type]:
    return [cls for union in unions for cls in get_args(union) or (union,)]


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a type hint: whatever a machine may put into a message."""
    if hint is Entry:
        return st.sampled_from(ENTRIES)
    if hint is int:
        return st.integers(0, 2**63 - 1)
    if hint is bool:
        return st.booleans()
    if hint is str:
        return st.text(max_size=20)
    if hint is bytes:
        return st.binary(max_size=200)
    if hint is type(None):
        return st.none()
    if get_origin(hint) is tuple:
        items = get_args(hint)
        if items[-1] is Ellipsis:
            return st.lists(values_of(items[0]), max_size=4).map(tuple)
        return st.tuples(*map(values_of, items))
    if get_origin(hint) in (Union, types.UnionType):
        return st.one_of([values_of(item) for item in get_args(hint)])
    hints = get_type_hints(hint)
    return st.builds(hint, **{name: values_of(hints[name]) for name in hint.__struct_fields__})


def comparable(value: Any) -> Any:
    """Entries are compared by their frames, since they have no equality of their own."""
    if isinstance(value, Entry):
        return (value.header, value.payload, value.frame)
    if isinstance(value, tuple):
        return tuple(comparable(item) for item in value)
    if isinstance(value, Struct):
        return (type(value), *map(comparable, astuple(value)))
    return value


def with_nested() -> Iterable[tuple[type, Any]]:
    """Each message class, and each class that travels inside another."""
    for cls in classes_of(wire.WireMessage):
        yield cls, values_of(cls)
    for cls in classes_of(Request):
        yield cls, envelope(SessionRequest, "request", cls)
    for cls in classes_of(Reply):
        yield cls, envelope(SessionReply, "reply", cls)
    for cls in classes_of(CatalogCommand):
        yield cls, envelope(CatalogRequest, "command", cls)


def envelope(outer: type, name: str, inner: type) -> st.SearchStrategy[Any]:
    hints = get_type_hints(outer)
    fields = {name: values_of(hints[name]) for name in outer.__struct_fields__}
    return st.builds(outer, **{**fields, name: values_of(inner)})


CASES = [pytest.param(strategy, id=cls.__name__) for cls, strategy in with_nested()]
ANY_MESSAGE = st.one_of([strategy for _, strategy in with_nested()])


@pytest.mark.parametrize("strategy", CASES)
@settings(max_examples=40)
@given(data=st.data())
def test_round_trip(strategy: st.SearchStrategy[Any], data: st.DataObject) -> None:
    """What was encoded is decoded as it was, from bytes and from views alike."""
    message = data.draw(strategy)
    parts = encode(message)
    assert comparable(decode(parts)) == comparable(message)
    assert comparable(decode([memoryview(part) for part in parts])) == comparable(message)


def test_raw_parts_are_not_copied() -> None:
    """Frames leave as the very objects that the message holds."""
    frames = (FRAME, b"second")
    deliver = SessionReply(1, 1, SESSION, 1, 1, Deliver(1, (), frames))
    assert all(part is frame for part, frame in zip(encode(deliver)[1:], frames, strict=True))
    assert encode(Data(1, 1, 1, (ENTRIES[0],)))[1] is ENTRIES[0].frame


@pytest.mark.parametrize(
    ("message", "head"),
    [
        (Watermark(1, 2, 3), "92019503010203c2"),
        (Data(1, 2, 3, (ENTRIES[0],), 9), "9201970101020391" + "70" + "0900"),
        (Hello("a", 5, 6, True), "92019b46a1610506c390a000909090"),
        (
            SessionRequest(1, 2, SESSION, 3, 4, Credit(0, 256)),
            "920197140102" + "93a66e6f64652d610311" + "0304" + "942300cd010000",
        ),
    ],
)
def test_the_bytes_stay_as_they_are(message: wire.WireMessage, head: str) -> None:
    """Heads written down once: a node of the same version elsewhere must read them."""
    assert bytes(encode(message)[0]).hex() == head


def test_tags_are_unique() -> None:
    """No two classes share a tag, and every message has one."""
    tags = list(wire._TAGS.values())
    assert len(set(tags)) == len(tags)
    classes = classes_of(wire.WireMessage, *NESTED)
    assert set(classes) <= set(wire._TAGS)
    assert set(RAFT_MESSAGES + FOUNDING_MESSAGES) <= set(classes)


# --- What is no message -----------------------------------------------------------------


def read(parts: list[bytes]) -> None:
    """Decode what may be anything: a message or ProtocolError, nothing else."""
    try:
        decode(parts)
    except ProtocolError as error:
        assert str(error)  # noqa: PT017


@given(st.lists(st.binary(max_size=100), max_size=4))
def test_garbage(parts: list[bytes]) -> None:
    """Random bytes raise ProtocolError or nothing."""
    read(parts)


packed = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.sampled_from(sorted(wire._TAGS.values())), st.lists(packed), st.lists(st.binary()))
def test_fields_of_wrong_types(tag: int, fields: list[Any], parts: list[bytes]) -> None:
    """Well-formed MessagePack with a known tag, but with any fields."""
    read([msgspec.msgpack.encode([VERSION, [tag, *fields]]), *parts])


@given(ANY_MESSAGE, st.data())
def test_damaged_messages(message: wire.WireMessage, data: st.DataObject) -> None:
    """A message with a byte changed, its end cut off, or a part lost, doubled or swapped."""
    parts = [bytearray(part) for part in encode(message)]
    part = data.draw(st.sampled_from(parts))
    match data.draw(st.sampled_from(["change", "cut", "lose", "double", "swap"])):
        case "change" if part:
            part[data.draw(st.integers(0, len(part) - 1))] ^= data.draw(st.integers(1, 255))
        case "cut":
            del part[data.draw(st.integers(0, len(part))) :]
        case "lose":
            parts.remove(part)
        case "double":
            parts.append(part)
        case "swap":
            parts.reverse()
    read([bytes(part) for part in parts])


def test_other_version_names_both() -> None:
    """A node of another release is told apart by number, even when its message is unknown."""
    for body in ([3, 1, 2, 3], [999, "new"], None):
        with pytest.raises(ProtocolError, match=rf"version 7 .* speaks {VERSION}"):
            decode([msgspec.msgpack.encode([7, body])])


def test_a_field_more_is_ignored() -> None:
    """A later release may add a field at the end of a class."""
    later = msgspec.msgpack.encode([VERSION, [3, 1, 2, 3, True, "new"]])
    assert decode([later]) == Watermark(1, 2, 3, True)


def test_a_field_with_a_default_may_be_absent() -> None:
    """An earlier release does not know a field that has a default."""
    assert decode([msgspec.msgpack.encode([VERSION, [70, "a", 1, 2, True]])]) == Hello(
        "a", 1, 2, True
    )
    assert decode([msgspec.msgpack.encode([VERSION, [3, 1, 2, 3]])]) == Watermark(1, 2, 3)


@pytest.mark.parametrize("number", [-1, 2**63, 1.5, "1", None])
def test_numbers_are_63_bits(number: Any) -> None:
    """No number can overflow a frame's header or a key of the store."""
    with pytest.raises(ProtocolError):
        decode([msgspec.msgpack.encode([VERSION, [3, 1, 2, number]])])


def test_parts_must_be_those_of_the_head() -> None:
    """A part missing, too many or of another size is named."""
    head, frame = encode(Data(1, 1, 1, (ENTRIES[0],)))
    with pytest.raises(ProtocolError, match="lacks its part of"):
        decode([head])
    with pytest.raises(ProtocolError, match="more parts"):
        decode([head, frame, frame])
    with pytest.raises(ProtocolError, match="its head says"):
        decode([head, bytes(frame) + b"\0"])
    with pytest.raises(ProtocolError, match="no parts"):
        decode([])


def test_frames_of_entries_are_checked() -> None:
    """A flipped bit in a body is found before an entry is made of it."""
    head, frame = encode(Data(1, 1, 1, (ENTRIES[0],)))
    damaged = bytearray(frame)
    damaged[-8] ^= 1
    with pytest.raises(ProtocolError):
        decode([head, bytes(damaged)])


def test_text_that_is_no_utf8() -> None:
    """Bytes that are no text, in a head and in an op's payload."""
    with pytest.raises(ProtocolError):
        decode([b"\x92\x01\x95\x46\xa1\xff\x01\x02\xc3"])
    frame = pack_op(OpKind.REFUSAL, b"\x91\xa1\xff", queue_id=1, epoch=1, lsn=1)
    head = msgspec.msgpack.encode([VERSION, [1, 1, 1, 1, [len(frame)]]])
    with pytest.raises(ProtocolError):
        decode([head, frame])


def test_hostile_sizes() -> None:
    """Lengths that promise gigabytes, deep nesting and huge heads cost nothing."""
    read([b"\xdd\xff\xff\xff\xff"])
    read([b"\x92\x01\xdd\xff\xff\xff\xff"])
    read([b"\x92\x01\x95\x05\x01\x02\xdd\xff\xff\xff\xff"])
    read([b"\x92\x01\x95\x03\x01\x02\x03" + b"\x91" * 1_000_000])
    with pytest.raises(ProtocolError, match="at most"):
        decode([bytes(HEAD_BYTES_MAX + 1)])


def test_too_large_a_head_is_not_sent() -> None:
    """The sender learns of a message that no node would take."""
    with pytest.raises(ProtocolError, match="Hello has a head of"):
        encode(Hello("a", 1, 1, True, ("x" * HEAD_BYTES_MAX,)))


def test_a_hello_without_the_fields_of_later_is_read() -> None:
    """A node of before alarms has none."""
    older = bytes.fromhex("92019846a1610506c390a000")
    assert decode([older]) == Hello("a", 5, 6, True)
