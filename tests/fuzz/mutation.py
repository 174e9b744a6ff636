"""Making well-formed values, and spoiling values and bytes. All from one seeded generator."""

from __future__ import annotations

import types
from functools import cache
from random import Random
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mirrorq.containers.ranges import Range
from mirrorq.protocol.ops import (
    FLAG_UNIQUE,
    AckOp,
    Entry,
    HorizonOp,
    IdleOp,
    OpKind,
    PauseOp,
    Payload,
    ProducerOp,
    PromotedOp,
    PurgeOp,
    RefusalOp,
    ReturnOp,
    UniqueWindowOp,
)
from mirrorq.wire.frames import crc32c, pack_op, pack_publish
from mirrorq.wire.ops import encode_payload, make_entry
from mirrorq.wire.properties import digest_of, pack_properties

NUMBERS = (
    *(0, 1, 2, 3, 7, 8, 16, 88, 96, 127, 128, 255, 256, 65_535, 65_536),
    *(2**31 - 8, 2**31 - 1, 2**31, 2**32 - 8, 2**32 - 1, 2**32),
    *(2**53, 2**62, 2**63 - 2, 2**63 - 1),
)
WILD_NUMBERS = (*NUMBERS, -1, -2, -(2**31), -(2**63), 2**63, 2**64 - 1)
TEXTS = ("", "a", "b", "c", "orders", "ack", "nack", "giveback", "clean", "cold", "unclean")
CRC_AT = slice(80, 84)


# --- Values -------------------------------------------------------------------------------


def number(chance: Random) -> int:
    """One that fits a field on the wire."""
    kind = chance.random()
    if kind < 0.6:
        return chance.randint(0, 12)
    return chance.choice(NUMBERS) if kind < 0.9 else chance.getrandbits(chance.randint(1, 63))


def text(chance: Random) -> str:
    if chance.random() < 0.7:
        return chance.choice(TEXTS)
    points = [chance.randint(1, 0xD7FF) for _ in range(chance.randint(0, 12))]
    return "".join(map(chr, points))


def some_bytes(chance: Random) -> bytes:
    return chance.randbytes(chance.choice((0, 1, 3, 16, 100)))


def ranges(chance: Random) -> tuple[Range, ...]:
    found = []
    for _ in range(chance.randint(0, 3)):
        first = max(1, number(chance))
        found.append((first, min(2**63 - 1, first + chance.choice((0, 0, 1, 5, 1000)))))
    return tuple(found)


def op(chance: Random) -> Payload:
    """Any op that is no publish."""
    kinds: tuple[Payload, ...] = (
        AckOp(ranges(chance)),
        ReturnOp(ranges(chance)),
        PurgeOp(ranges(chance)),
        HorizonOp(number(chance)),
        IdleOp(number(chance)),
        UniqueWindowOp(number(chance)),
        PauseOp(chance.random() < 0.5),
        PromotedOp(chance.choice(("clean", "unclean", "cold"))),
        RefusalOp(text(chance)),
        ProducerOp(text(chance), tuple(number(chance) for _ in range(chance.randint(0, 2)))),
    )
    return chance.choice(kinds)


def frame(chance: Random) -> bytes:
    """A sealed frame of any kind."""
    most = 2**63 - 2**33
    named = {
        "producer": min(number(chance), most),
        "first_number": min(number(chance), most),
        "settled": min(number(chance), most),
    }
    if chance.random() < 0.5:
        count = chance.choice((1, 1, 2, 3, 9, 40))
        bodies = [some_bytes(chance) for _ in range(count)]
        properties = [some_bytes(chance) for _ in bodies] if chance.random() < 0.3 else None
        flags = chance.choice((0, 2))
        if chance.random() < 0.2:
            said = (digest_of(text(chance)), 1000)
            properties = [pack_properties(None, None, None, unique=said)] * count
            flags |= FLAG_UNIQUE
        return pack_publish(bodies, properties, flags=flags, **named)
    payload = op(chance)
    kind = OpKind[_KIND_OF[type(payload)]]
    place = {name: min(number(chance), most) for name in ("queue_id", "epoch", "lsn")}
    return pack_op(
        kind, encode_payload(payload), count=chance.choice((1, 1, 2, 2**31)), **place, **named
    )


_KIND_OF = {
    AckOp: "ACK",
    ReturnOp: "RETURN",
    PurgeOp: "PURGE",
    HorizonOp: "HORIZON",
    IdleOp: "IDLE",
    UniqueWindowOp: "UNIQUE_WINDOW",
    PauseOp: "PAUSE",
    PromotedOp: "PROMOTED",
    RefusalOp: "REFUSAL",
    ProducerOp: "PRODUCER",
}


def resealed(data: bytes) -> bytes:
    """The same bytes under a right checksum: who can compute one gets no further."""
    if len(data) < 88:
        return data
    zeroed = bytearray(data)
    zeroed[CRC_AT] = bytes(4)
    zeroed[CRC_AT] = crc32c(bytes(zeroed)).to_bytes(4, "little")
    return bytes(zeroed)


_hints_of = cache(get_type_hints)


def value(chance: Random, hint: Any) -> Any:
    """A value of a type hint: whatever a node may put into a message."""
    if hint is int:
        return number(chance)
    if hint is str:
        return text(chance)
    if hint is bool:
        return chance.random() < 0.5
    if hint is bytes:
        return frame(chance) if chance.random() < 0.3 else some_bytes(chance)
    if hint is type(None):
        return None
    if hint is Entry:
        return make_entry(frame(chance))
    if get_origin(hint) is tuple:
        items = get_args(hint)
        if items[-1] is Ellipsis:
            count = chance.choice((0, 1, 1, 2, 3))
            return tuple(value(chance, items[0]) for _ in range(count))
        return tuple(value(chance, item) for item in items)
    if get_origin(hint) in (Union, types.UnionType):
        return value(chance, chance.choice(get_args(hint)))
    hints = _hints_of(hint)
    return hint(**{name: value(chance, hints[name]) for name in hint.__struct_fields__})


def spoiled(chance: Random, given: Any, hint: Any) -> Any:
    """A well-formed value near `given`: one number, text or item of it is another."""
    if hint is int:
        near = given + chance.choice((-2, -1, 1, 2, 100, 2**20, 2**40))
        return min(max(near, 0), 2**63 - 1) if chance.random() < 0.6 else number(chance)
    if isinstance(given, Entry):
        return _spoiled_entry(chance, given)
    if isinstance(given, bytes) and hint is bytes and chance.random() < 0.9:
        return spoiled_content(chance, given)
    if isinstance(given, tuple) and get_origin(hint) is tuple:
        return _spoiled_tuple(chance, given, get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        same = [item for item in get_args(hint) if isinstance(item, type) and type(given) is item]
        stays = same and chance.random() < 0.9
        return spoiled(chance, given, same[0]) if stays else value(chance, hint)
    if isinstance(given, Struct):
        name = chance.choice(given.__struct_fields__ or (None,))
        if name is None:
            return given
        hints = _hints_of(type(given))
        changed = spoiled(chance, getattr(given, name), hints[name])
        return replace(given, **{name: changed})
    return value(chance, hint)


def _spoiled_tuple(chance: Random, given: tuple[Any, ...], items: tuple[Any, ...]) -> Any:
    values = list(given)
    is_run = items[-1] is Ellipsis
    kind = chance.random()
    if is_run and (not values or kind < 0.2):
        values.insert(chance.randint(0, len(values)), value(chance, items[0]))
    elif is_run and kind < 0.4:
        values.pop(chance.randrange(len(values)))
    elif is_run and kind < 0.5:
        chance.shuffle(values)
    elif is_run and kind < 0.6:
        values.append(chance.choice(values))
    elif values:
        at = chance.randrange(len(values))
        values[at] = spoiled(chance, values[at], items[0] if is_run else items[at])
    return tuple(values)


def _spoiled_entry(chance: Random, given: Entry) -> Entry:
    """Another number in the header, another payload: sealed, so that it is believed."""
    changed = bytearray(given.frame)
    at = chance.choice((6, 8, 16, 24, 32, 40, 48, 56, 64, 72))
    width = {6: 2, 40: 4}.get(at, 8)
    old = int.from_bytes(changed[at : at + width], "little")
    near = max(0, old + chance.choice((-1, 1, 5, 2**30)))
    new = near if chance.random() < 0.6 else number(chance)
    changed[at : at + width] = (new % (1 << 8 * width)).to_bytes(width, "little")
    try:
        return make_entry(resealed(bytes(changed)))
    except Exception:
        return make_entry(frame(chance))


# --- Bytes --------------------------------------------------------------------------------


def spoiled_bytes(chance: Random, data: bytes) -> bytes:
    """Some of: a bit, a byte, a word changed; a piece cut out, doubled, put in; the end lost."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8))):
        at = chance.randint(0, len(changed))
        match chance.randrange(8):
            case 0 if at < len(changed):
                changed[at] ^= 1 << chance.randrange(8)
            case 1 if at < len(changed):
                changed[at] = chance.choice((0, 1, 0x7F, 0x80, 0xC0, 0xDF, 0xFF))
            case 2 | 3:
                width = chance.choice((2, 4, 8))
                at -= at % width if chance.random() < 0.7 else 0
                word = chance.choice(WILD_NUMBERS) % (1 << 8 * width)
                changed[at : at + width] = word.to_bytes(width, chance.choice(("little", "big")))
            case 4:
                del changed[at : at + chance.choice((1, 4, 8, 64))]
            case 5:
                changed[at:at] = changed[at : at + chance.choice((1, 8, 64))]
            case 6:
                changed[at:at] = chance.randbytes(chance.choice((1, 4, 8)))
            case _:
                del changed[at:]
    return bytes(changed)


def packed_value(chance: Random, depth: int = 0) -> Any:
    """Anything that MessagePack and JSON can hold."""
    kind = chance.randrange(9 if depth < 4 else 6)
    if kind < 2:
        return chance.choice(WILD_NUMBERS)
    if kind == 2:
        return text(chance)
    if kind == 3:
        return chance.choice((None, True, False))
    if kind == 4:
        return chance.choice((0.0, -1.5, 1e308, float("inf")))
    if kind == 5:
        return some_bytes(chance)
    items = [packed_value(chance, depth + 1) for _ in range(chance.choice((0, 1, 2, 4)))]
    return items if kind < 8 else {str(item)[:9]: item for item in items}


def spoiled_packed(chance: Random, data: bytes) -> bytes:
    """MessagePack with one value in it changed, else spoiled as bytes."""
    if chance.random() < 0.3:
        return spoiled_bytes(chance, data)
    if chance.random() < 0.03:
        return data[: chance.randint(0, len(data))] + b"\x91" * chance.choice((100, 2000, 100_000))
    try:
        tree = msgspec.msgpack.decode(data)
        return msgspec.msgpack.encode(spoiled_tree(chance, tree))
    except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
        return spoiled_bytes(chance, data)


def spoiled_tree(chance: Random, tree: Any) -> Any:
    """Nested lists and dicts with one place changed."""
    if isinstance(tree, list) and tree and chance.random() < 0.85:
        at = chance.randrange(len(tree))
        changed = list(tree)
        match chance.randrange(8):
            case 0:
                del changed[at]
            case 1:
                changed.insert(at, packed_value(chance))
            case 2:
                changed.append(changed[at])
            case _:
                changed[at] = spoiled_tree(chance, changed[at])
        return changed
    if isinstance(tree, dict) and tree and chance.random() < 0.85:
        key = chance.choice(list(tree))
        changed_dict = dict(tree)
        match chance.randrange(6):
            case 0:
                del changed_dict[key]
            case 1:
                changed_dict[packed_key(chance)] = changed_dict.pop(key)
            case _:
                changed_dict[key] = spoiled_tree(chance, changed_dict[key])
        return changed_dict
    if isinstance(tree, int) and not isinstance(tree, bool) and chance.random() < 0.5:
        return min(max(tree + chance.choice((-1, 1)), -(2**63)), 2**64 - 1)
    if isinstance(tree, bytes) and chance.random() < 0.9:
        return spoiled_content(chance, tree)
    return packed_value(chance)


def spoiled_content(chance: Random, data: bytes) -> bytes:
    """Bytes within something: a frame, MessagePack (a state, a command), or neither."""
    if data[:4] == b"mqf1":
        return resealed(spoiled_bytes(chance, data))
    return spoiled_packed(chance, data) if data else some_bytes(chance)


def packed_key(chance: Random) -> Any:
    return chance.choice((text(chance), chance.choice(WILD_NUMBERS)))
