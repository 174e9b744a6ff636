"""Keys, their roles, and the decision about rights. Pure.

A key has one role. `peer`: a node of the cluster, named by the key. `admin`: may do everything that
a client can ask for. `client`: may do to a queue what one of its patterns allows. Patterns have no
order and no exceptions: an action is allowed if any pattern matches, and refused otherwise.

A pattern is a whole name in which each * stands for any run of characters, even an empty run. A
pattern is not a regular expression: an unanchored expression allows more than its author thinks,
and some expressions match for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from attrs import field, frozen

from mirrorq.errors import ConfigError
from mirrorq.protocol.printable import unprintable

KEYS_NAME = "keys.toml"
"""Name of the file that lists keys, for errors."""
NAME_BYTES_MAX = 200
"""Size limit of a key's name. A peer's key has the name of its node."""
_KEY_TEXT = re.compile(r"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")
"""32 bytes as Z85 (ZeroMQ RFC 32)."""


class Role(StrEnum):
    """Role of a key's owner: a node of the cluster, a client with the rights of its entry, or an
    admin with all rights."""

    PEER = "peer"
    CLIENT = "client"
    ADMIN = "admin"


class Right(StrEnum):
    """A right of a client to a queue or an exchange."""

    WRITE = "write"
    """Publish. To an exchange: publish through it."""
    READ = "read"
    """Take, browse, acknowledge, purge."""
    CONFIGURE = "configure"
    """Declare a new queue, and delete a queue. For an exchange also bind and unbind."""


def is_key_text(text: object) -> bool:
    """Return true if a text has the form of a public or secret key."""
    return isinstance(text, str) and _KEY_TEXT.fullmatch(text) is not None


def _patterns(given: object) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigError(f"patterns are a list of strings such as ['orders.*'], not {given!r}")
    patterns = tuple(given)
    for pattern in patterns:
        if not _is_text(pattern):
            raise ConfigError(f"a pattern is a string such as 'orders.*', not {pattern!r}")
    return patterns


def _is_text(given: object) -> bool:
    """Return true for a non-empty string that a file can hold: no half of a surrogate pair."""
    if not isinstance(given, str):
        return False
    try:
        return bool(given.encode())
    except UnicodeEncodeError:
        return False


def _role(given: object) -> Role:
    for role in Role:
        if given == role.value:
            return role
    raise ConfigError(f"role {given!r} is unknown: it must be one of {', '.join(Role)}")


@frozen
class Key:
    """A public key with its owner and the owner's rights.

    Raises:
        ConfigError: an argument is malformed, or a role without patterns is given
            patterns.
    """

    name: str
    """Name of the owner. For a peer the name of its node."""
    public_key: str
    """40 characters, as `mirrorq key new` writes them."""
    role: Role = field(converter=_role)
    """peer, admin or client."""
    write: tuple[str, ...] = field(default=(), converter=_patterns, kw_only=True)
    """Queues that a client may publish to."""
    read: tuple[str, ...] = field(default=(), converter=_patterns, kw_only=True)
    """Queues that a client may take from."""
    configure: tuple[str, ...] = field(default=(), converter=_patterns, kw_only=True)
    """Queues that a client may make and delete."""
    queues: int | None = field(default=None, kw_only=True)
    """Limit on queues whose names match `configure`: the client may make no more. A sharded queue
    counts once per shard. None: no limit."""

    def __attrs_post_init__(self) -> None:
        name = self.name
        if not _is_text(name) or len(name.encode()) > NAME_BYTES_MAX:
            raise ConfigError(
                f"a key has a name of 1 to {NAME_BYTES_MAX} bytes, not {name!r}: a peer's is that "
                "of its node"
            )
        wrong = unprintable("a key's name", name)
        if wrong:
            raise ConfigError(wrong)
        if not is_key_text(self.public_key):
            # Not shown: it may be a secret key in the wrong place.
            raise ConfigError(
                f"the public key of {name!r} is not a key: write the 40 characters that "
                "mirrorq key new has given"
            )
        if self.role is not Role.CLIENT and (self.write or self.read or self.configure):
            raise ConfigError(
                f"key {name!r} has the role {self.role.value} and patterns: only a client has "
                "any, the other roles may do everything"
            )
        self._check_queues()

    def _check_queues(self) -> None:
        count = self.queues
        if count is None:
            return
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ConfigError(f"key {self.name!r}: queues is a whole number from 0, not {count!r}")
        if self.role is not Role.CLIENT:
            raise ConfigError(
                f"key {self.name!r} has the role {self.role.value} and a bound on queues: only a "
                "client has one, the other roles may do everything"
            )

    def allows(self, right: Right, name: str) -> bool:
        """Return true if the owner has a right to the queue (or exchange) of a name.

        Args:
            right: "write", "read" or "configure".
            name: name of the queue, or exchange.
        """
        if self.role is not Role.CLIENT:
            return True
        return any(_matches(pattern, name) for pattern in self._patterns_for(right))

    def knows(self, name: str) -> bool:
        """Return true if the owner has any right to the queue (or exchange).

        Args:
            name: name of the queue, or exchange.
        """
        return any(self.allows(right, name) for right in Right)

    def _patterns_for(self, right: Right) -> tuple[str, ...]:
        match right:
            case Right.WRITE:
                return self.write
            case Right.READ:
                return self.read
            case Right.CONFIGURE:
                return self.configure


def refusal(key: Key, right: Right, name: str, what: str = "queue") -> str:
    """Return why the key's owner lacks a right to a queue; "": allowed."""
    if key.allows(right, name):
        return ""
    patterns = key._patterns_for(right)
    has = f"its patterns for {right.value} are {', '.join(patterns)}" if patterns else "it has none"
    return (
        f"key {key.name!r} may not {right.value} {what} {name!r}: {has}. Give it a pattern for "
        f"{right.value} that matches, or use another key"
    )


def _matches(pattern: str, name: str) -> bool:
    """Match in linear time: the pieces between stars are found from left to right."""
    first, *rest = pattern.split("*")
    if not rest:
        return name == pattern
    *middle, last = rest
    at, end = len(first), len(name) - len(last)
    if at > end or not name.startswith(first) or not name.endswith(last):
        return False
    for piece in middle:
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True
