"""Messages between processes, as the parts of one multipart message.

The first part, the *head*, is MessagePack: `[version, [tag, field, …]]`, fields in the order of the
message's class, nested values as arrays of their own. Every `bytes` and every frame of an entry
travels as a further part, in the order of the fields, uncopied; the head holds the size of the part
in its place.

Guarantees: `decode(encode(m)) == m`. For any input, `decode` returns a message whose fields have
the declared types of its class (integers from 0 to 2^63 - 1), or raises `ProtocolError`. `decode`
checks the checksum of frames of entries. Other frames are checked by the code that stores or splits
them. The machines judge the *meaning* of the values.

Compatibility: a class may get a new field at its end, with a default, under the same version; older
nodes ignore the field. Any other change needs a new version, which older nodes refuse by name. The
form of a class follows from its type hints; only its tag is given here.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import attrs
import msgspec

from mirrorq.errors import MALFORMED, ProtocolError
from mirrorq.protocol import clients, commands, control, founding, raft, ring, sessions
from mirrorq.protocol.ops import Entry
from mirrorq.protocol.plain import plain
from mirrorq.wire.ops import make_entry

VERSION = 1
"""Version of this module's formats. On the wire: the first byte after the head's array mark."""
HEAD_BYTES_MAX = 16 * 1024 * 1024
"""Limit of a head: some 700,000 deliveries in one message. Frames are not in the head."""

Part = bytes | bytearray | memoryview
WireMessage = (
    ring.RingWireMessage
    | sessions.SessionRequest
    | sessions.SessionReply
    | control.ControlMessage
    | clients.ClientMessage
    | raft.RaftMessage
    | founding.FoundingMessage
)

_TAGS: dict[type, int] = {
    # Ring
    ring.Data: 1,
    ring.Mark: 2,
    ring.Watermark: 3,
    ring.JoinerDurable: 4,
    ring.History: 5,
    ring.HistoryRequest: 6,
    ring.Repaired: 7,
    ring.ResendFrom: 8,
    ring.TooOld: 9,
    ring.TransferRequest: 10,
    ring.TransferState: 11,
    ring.FetchFrames: 12,
    ring.PackedChunk: 13,
    # Sessions
    sessions.SessionRequest: 20,
    sessions.SessionReply: 21,
    sessions.Attach: 30,
    sessions.OpenProducer: 31,
    sessions.Publish: 32,
    sessions.Subscribe: 33,
    sessions.Unsubscribe: 34,
    sessions.Credit: 35,
    sessions.Settle: 36,
    sessions.Extend: 244,
    sessions.Browse: 37,
    sessions.Purge: 38,
    sessions.Pause: 250,
    sessions.AckRange: 242,
    sessions.Recalled: 163,
    sessions.Inquire: 39,
    sessions.Detach: 40,
    sessions.Ping: 41,
    sessions.Attached: 50,
    sessions.Detached: 51,
    sessions.ProducerOpened: 52,
    sessions.ProducerUnknown: 53,
    sessions.Confirmed: 54,
    sessions.Refused: 55,
    sessions.ResendNumber: 56,
    sessions.Deliver: 57,
    sessions.Settled: 58,
    sessions.Browsed: 59,
    sessions.Purged: 60,
    sessions.Counts: 61,
    sessions.Recall: 62,
    sessions.ConsumerRefused: 63,
    sessions.Pong: 64,
    sessions.Flow: 65,
    # Between nodes
    control.Hello: 70,
    control.LeaseRequest: 71,
    control.LeaseAnswer: 72,
    control.LeaseRelease: 73,
    control.CatalogRequest: 74,
    control.CatalogAnswer: 75,
    control.QueueReport: 76,
    control.SyncReport: 78,
    control.Yield: 145,
    control.Yielded: 146,
    control.Directory: 160,
    control.Unwelcome: 161,
    control.NodeQuestion: 180,
    control.NodeAnswer: 181,
    # Catalog commands
    commands.RegisterNode: 80,
    commands.DeclareQueue: 81,
    commands.DeclareShards: 172,
    commands.DeleteQueue: 82,
    commands.ChangeView: 83,
    commands.RemoveNode: 84,
    commands.SetPolicy: 85,
    commands.ClearPolicy: 86,
    commands.NodeStopped: 88,
    commands.NoteConsumers: 89,
    commands.NoteOutbox: 170,
    commands.Synchronise: 87,
    commands.AcknowledgeLosses: 179,
    commands.DeclareExchange: 150,
    commands.DeleteExchange: 151,
    commands.Bind: 152,
    commands.Unbind: 153,
    commands.TransferMaster: 147,
    commands.Rebalance: 148,
    commands.DropCopy: 149,
    commands.NameCluster: 162,
    # Raft
    raft.VoteRequest: 90,
    raft.VoteAnswer: 91,
    raft.AppendRequest: 92,
    raft.AppendAnswer: 93,
    raft.InstallSnapshot: 94,
    raft.SnapshotAnswer: 95,
    # Founding
    founding.FoundingProposal: 100,
    founding.FoundingPromise: 101,
    founding.FoundingDone: 102,
    founding.FoundingRefused: 103,
    founding.AdmissionRequest: 104,
    # Between a client and its entry node
    clients.ClientHello: 110,
    clients.ClientWelcome: 111,
    clients.ClientUnknown: 112,
    clients.ClientRefused: 113,
    clients.ClientOpen: 114,
    clients.ClientClose: 115,
    clients.ClientMaster: 116,
    clients.ClientLinkLost: 117,
    clients.ClientClosed: 118,
    clients.ClientCall: 119,
    clients.ClientForget: 120,
    clients.ClientAnswer: 121,
    clients.ClientPing: 122,
    clients.ClientPong: 123,
    clients.ClientBye: 124,
    clients.ClientDeclare: 125,
    clients.ClientDelete: 126,
    clients.ClientLook: 127,
    clients.ClientAdminister: 128,
    clients.ClientWatch: 140,
    clients.ClientRead: 240,
    clients.ClientSeek: 241,
    clients.ClientDisconnect: 243,
    clients.ClientRightLost: 246,
}
"""Tags are on the wire and never change meaning; a class without one cannot be sent."""

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Raw = list[Part]
_Parts = Iterator[Part]


@attrs.frozen
class _Form:
    """The form of values of one type in the head: how to write and how to read them.

    `pack` and `unpack` are None when the value stands unchanged in the head.
    """

    wire: Any
    """Type that msgspec checks."""
    pack: Callable[[Any, _Raw], Any] | None = None
    unpack: Callable[[Any, _Parts], Any] | None = None


def _pack_bytes(value: Part, raw: _Raw) -> int:
    raw.append(value)
    return len(value)


def _unpack_bytes(size: int, parts: _Parts) -> bytes:
    part = next(parts, None)
    if part is None:
        raise ProtocolError(f"a message lacks its part of {size} bytes")
    if len(part) != size:
        raise ProtocolError(f"a part of a message has {len(part)} bytes, its head says {size}")
    return part if isinstance(part, bytes) else bytes(part)


def _pack_entry(entry: Entry, raw: _Raw) -> int:
    raw.append(entry.frame)
    return len(entry.frame)


def _unpack_entry(size: int, parts: _Parts) -> Entry:
    return make_entry(_unpack_bytes(size, parts))


_FORMS: dict[Any, _Form] = {
    int: _Form(_Number),
    bool: _Form(bool),
    str: _Form(str),
    bytes: _Form(_Number, _pack_bytes, _unpack_bytes),
    Entry: _Form(_Number, _pack_entry, _unpack_entry),
}
"""Forms made so far; a class is added at its first use."""


def _form(hint: Any) -> _Form:
    known = _FORMS.get(hint)
    if known is not None:
        return known
    if get_origin(hint) is tuple:
        return _tuple_form(get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return _union_form(get_args(hint))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        form = _FORMS[hint] = _class_form(hint)
        return form
    raise TypeError(f"{hint!r} has no form on the wire")


def _tuple_form(items: tuple[Any, ...]) -> _Form:
    """Return the form of a tuple: items of one type, or a fixed row of plain items."""
    if items[-1] is not Ellipsis:
        forms = [_form(item) for item in items]
        if any(form.pack for form in forms):
            raise TypeError(f"a row of {items!r} has no form on the wire")
        return _Form(tuple[tuple(form.wire for form in forms)])  # type: ignore[misc]
    item = _form(items[0])
    wire = tuple[item.wire, ...]  # type: ignore[name-defined]
    pack, unpack = item.pack, item.unpack
    if pack is None or unpack is None:
        return _Form(wire)
    return _Form(
        wire,
        lambda values, raw: [pack(value, raw) for value in values],
        lambda values, parts: tuple([unpack(value, parts) for value in values]),
    )


def _union_form(items: tuple[Any, ...]) -> _Form:
    """Return the form of a union of classes, told apart by their tags; None may be a member."""
    classes = [item for item in items if item is not type(None)]
    is_optional = len(classes) < len(items)
    forms = [_form(cls) for cls in classes]
    untagged = [cls.__name__ for cls in classes if cls not in _TAGS]
    if len(classes) > 1 and untagged:
        raise TypeError(f"give tags to {untagged}: a union cannot be told apart without them")
    pack_of = {cls: form.pack for cls, form in zip(classes, forms, strict=True)}
    unpack_of = {form.wire: form.unpack for form in forms}

    def pack(value: Any, raw: _Raw) -> Any:
        if value is None and is_optional:
            return None
        return pack_of[value.__class__](value, raw)  # type: ignore[misc]

    def unpack(value: Any, parts: _Parts) -> Any:
        return None if value is None else unpack_of[value.__class__](value, parts)  # type: ignore[misc]

    wires = [form.wire for form in forms] + [None] * is_optional
    return _Form(reduce(or_, wires), pack, unpack)


def _class_form(cls: type[msgspec.Struct]) -> _Form:
    """Return the form of a class: an array of the fields, after the tag if the class has a tag."""
    hints = get_type_hints(cls)
    names, defaults = cls.__struct_fields__, cls.__struct_defaults__
    required = len(names) - len(defaults)
    forms = [_form(hints[name]) for name in names]
    tag = _TAGS.get(cls)
    struct = msgspec.defstruct(
        cls.__name__,
        [
            (name, form.wire)
            if index < required
            else (name, form.wire, _wire_default(defaults[index - required]))
            for index, (name, form) in enumerate(zip(names, forms, strict=True))
        ],
        array_like=True,
        tag=tag,
        frozen=True,
        gc=False,
    )
    head = () if tag is None else (tag,)
    astuple = msgspec.structs.astuple
    packs = [(index, form.pack) for index, form in enumerate(forms) if form.pack]
    unpacks = [(index, form.unpack) for index, form in enumerate(forms) if form.unpack]

    def pack(value: Any, raw: _Raw) -> Any:
        return head + astuple(value)

    def unpack(value: Any, parts: _Parts) -> Any:
        return cls(*astuple(value))

    def pack_nested(value: Any, raw: _Raw) -> Any:
        values = list(astuple(value))
        for index, pack_field in packs:
            values[index] = pack_field(values[index], raw)
        return (*head, *values)

    def unpack_nested(value: Any, parts: _Parts) -> Any:
        values = list(astuple(value))
        for index, unpack_field in unpacks:
            values[index] = unpack_field(values[index], parts)
        return cls(*values)

    return _Form(struct, pack_nested, unpack_nested) if packs else _Form(struct, pack, unpack)


def _wire_default(default: Any) -> Any:
    """Return a default value for a field missing from an older node. The value must be plain."""
    if default is None or isinstance(default, bool | int | str) or default == ():
        return default
    raise TypeError(f"the default {default!r} has no form on the wire")


def _classes(*unions: Any) -> Iterable[Any]:
    for union in unions:
        yield from get_args(union) or (union,)


_MESSAGE = _union_form(tuple(_classes(WireMessage)))
_PACK_OF = {cls: _FORMS[cls].pack for cls in _classes(WireMessage)}
_UNPACK_OF = {_FORMS[cls].wire: _FORMS[cls].unpack for cls in _classes(WireMessage)}


class _Envelope(msgspec.Struct, array_like=True, gc=False):
    """Outer array of every message."""

    version: int
    body: _MESSAGE.wire  # type: ignore[name-defined]


class _Version(msgspec.Struct, array_like=True):
    """As much of an envelope as any version can read."""

    version: int


_encode = msgspec.msgpack.Encoder(enc_hook=plain).encode
_decode = msgspec.msgpack.Decoder(_Envelope).decode
_decode_version = msgspec.msgpack.Decoder(_Version).decode


def encode(message: WireMessage) -> list[Part]:
    """Write a message.

    Returns:
        The parts: the head, then the raw parts, which are those of the message itself.

    Raises:
        ProtocolError: the head is larger than any node accepts.
    """
    raw: list[Part] = [b""]
    head = _encode((VERSION, _PACK_OF[message.__class__](message, raw)))  # type: ignore[misc]
    if len(head) > HEAD_BYTES_MAX:
        raise ProtocolError(
            f"a {type(message).__name__} has a head of {len(head)} bytes, at most "
            f"{HEAD_BYTES_MAX} are possible"
        )
    raw[0] = head
    return raw


def decode(parts: Sequence[Part]) -> WireMessage:
    """Read a message.

    Raises:
        ProtocolError: the parts are no message of this version; the error says why.
    """
    if not parts:
        raise ProtocolError("a message has no parts")
    head, *raw = parts
    if len(head) > HEAD_BYTES_MAX:
        raise ProtocolError(
            f"a message has a head of {len(head)} bytes, at most {HEAD_BYTES_MAX} are possible"
        )
    try:
        envelope = _decode(head)
    except MALFORMED as error:
        raise _malformed(head, error) from None
    if envelope.version != VERSION:
        raise _other_version(envelope.version)
    rest = iter(raw)
    body = envelope.body
    message: WireMessage = _UNPACK_OF[body.__class__](body, rest)  # type: ignore[misc]
    if next(rest, None) is not None:
        raise ProtocolError(f"a {type(message).__name__} came with more parts than its head names")
    return message


def _malformed(head: Part, error: BaseException) -> ProtocolError:
    """Return the error of a malformed head: its version if readable and different."""
    try:
        version = _decode_version(head).version
    except MALFORMED:
        version = VERSION
    if version != VERSION:
        return _other_version(version)
    return ProtocolError(f"a message of {len(head)} bytes cannot be read: {error}")


def _other_version(version: int) -> ProtocolError:
    return ProtocolError(
        f"a message has version {version} of the protocol, this node speaks {VERSION}: "
        "run the same release of mirrorq on both sides"
    )
