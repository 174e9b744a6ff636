"""Checks of a queue's declaration, before any request to the catalog."""

from __future__ import annotations

from mirrorq.protocol.printable import unprintable
from mirrorq.protocol.shard_names import SHARDS_MAX, shard_name, split_name


def shards_error(shards: object) -> str:
    """Return why a queue cannot have the number of shards, "" if it can."""
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= SHARDS_MAX:
        return f"a queue has 1 to {SHARDS_MAX} shards, or none at all (None), not {shards!r}"
    return ""


NAME_CHARS_MAX = 255
"""Characters of a queue's name."""


def declaration_error(
    name: object,
    exclusive: object,
    auto_delete: object,
    shards: object = None,
    *,
    passive: object = True,
) -> str:
    """Return the error in a declaration before its proposal, "" without an error."""
    if not isinstance(name, str):
        return f"a queue's name is a string, not {name!r}"
    if not 0 < len(name) <= NAME_CHARS_MAX:
        return f"a queue's name has 1 to {NAME_CHARS_MAX} characters, not {len(name)}"
    try:
        name.encode()
    except UnicodeEncodeError as error:
        return f"the queue's name {name!r} cannot be written as UTF-8: {error.reason}"
    wrong = unprintable("the queue's name", name)
    if wrong:
        return wrong
    if not isinstance(exclusive, bool) and exclusive != "connection":
        return f'exclusive is True, False or "connection", not {exclusive!r}'
    if not passive and split_name(name) is not None:
        return (
            f"the queue's name {name!r} is that of a shard: open a shard that exists with "
            "passive=True, and give a queue another name"
        )
    return "" if shards is None else _sharded_error(name, exclusive, auto_delete, shards)


def _sharded_error(name: str, exclusive: object, auto_delete: object, shards: object) -> str:
    wrong = shards_error(shards)
    if wrong:
        return wrong
    if exclusive:
        return (
            f"queue {name!r} cannot have shards and be exclusive: an exclusive queue is one ring, "
            "one handle's or one connection's"
        )
    if auto_delete:
        return (
            f"queue {name!r} cannot have shards and auto_delete: who has consumed is judged shard "
            "by shard. Delete it when it is no longer needed"
        )
    longest = len(shard_name(name, SHARDS_MAX - 1))
    if longest > NAME_CHARS_MAX:
        return (
            f"the name of a sharded queue has at most {NAME_CHARS_MAX - longest + len(name)} "
            f"characters, not {len(name)}: its shards' names are longer than it"
        )
    return ""
