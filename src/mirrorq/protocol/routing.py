"""Queues reached by a message published to an exchange.

The kinds of exchange and their matching are AMQP 0-9-1's:

  direct   the binding's key is the routing key
  fanout   every bound queue
  topic    keys are words between dots; in a binding's key `*` stands for one word and `#` for
           none or more
  headers  the binding's arguments are among the message's headers: all arguments, or any with
           {"x-match": "any"}; an argument with value None only requires the header.
           Arguments with names from "x-" on do not take part

A queue bound several times is reached once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec
from attrs import frozen

from mirrorq.errors import MALFORMED, ConfigError
from mirrorq.protocol.plain import plain
from mirrorq.protocol.printable import unprintable

KINDS = ("direct", "fanout", "topic", "headers")
NAME_CHARS_MAX = 255
KEY_CHARS_MAX = 255
ARGUMENTS_CHARS_MAX = 4096
BINDINGS_MAX = 10_000
"""Limit for one exchange: bindings are in the catalog, in memory on every node."""
MEMO_MAX = 4096
"""Limit of routing keys with remembered queues."""


class Binding(msgspec.Struct, frozen=True, gc=False):
    """One way from an exchange to a queue."""

    queue_id: int
    key: str = ""
    arguments: str = ""
    """JSON, in the form of `arguments_text`; "" without arguments."""


@frozen
class ExchangeRecord:
    """An exchange in the catalog."""

    name: str
    kind: str
    alternate: str = ""
    """Exchange for messages which reach no queue; "" for none."""
    version: int = 0
    """Index of the catalog's last command on the exchange."""
    bindings: tuple[Binding, ...] = ()


def exchange_error(name: object, kind: object, alternate: object) -> str:
    """Return the error in a declaration, "" without an error."""
    for what, value in (("an exchange's name", name), ("the alternate exchange's name", alternate)):
        if not isinstance(value, str) or len(value) > NAME_CHARS_MAX:
            return f"{what} is a string of 1 to {NAME_CHARS_MAX} characters, not {value!r}"
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return f"{what} {value!r} cannot be written as UTF-8: {error.reason}"
        wrong = unprintable(what, value)
        if wrong:
            return wrong
    if not name:
        return f"an exchange's name has 1 to {NAME_CHARS_MAX} characters, not none"
    if kind not in KINDS:
        return f"an exchange is one of {', '.join(KINDS)}, not {kind!r}"
    if alternate == name:
        return f"exchange {name!r} cannot be its own alternate"
    return ""


def binding_error(exchange: ExchangeRecord, binding: Binding) -> str:
    """Return why an exchange cannot take the binding, "" if it can."""
    if len(exchange.bindings) >= BINDINGS_MAX:
        return (
            f"exchange {exchange.name!r} has {BINDINGS_MAX} bindings, the most there can be: "
            "unbind some"
        )
    if len(binding.key) > KEY_CHARS_MAX:
        return f"a binding's key has {len(binding.key)} characters: at most {KEY_CHARS_MAX}"
    if len(binding.arguments) > ARGUMENTS_CHARS_MAX:
        return f"a binding's arguments take {len(binding.arguments)} characters: at most " + str(
            ARGUMENTS_CHARS_MAX
        )
    return ""


def arguments_text(arguments: Mapping[str, Any] | None) -> str:
    """Return a binding's arguments as catalog text: equal arguments give equal text.

    Raises:
        ConfigError: a name is no string, a value is no str, int, float, bool or None, or
            "x-match" is neither "all" nor "any"; or they are no mapping.
    """
    if arguments is not None and not isinstance(arguments, Mapping):
        raise ConfigError(f"arguments of a binding are {arguments!r}: give a mapping, or None")
    if not arguments:
        return ""
    for name, value in arguments.items():
        if not isinstance(name, str):
            raise ConfigError(f"the name of a binding's argument is a string, not {name!r}")
        if not isinstance(value, str | int | float | bool | None):
            raise ConfigError(
                f"argument {name!r} of a binding is {value!r}: a str, int, float, bool or None"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"argument {name!r} of a binding is {value}: it must be finite")
    if arguments.get("x-match", "all") not in ("all", "any"):
        raise ConfigError(f"x-match is 'all' or 'any', not {arguments['x-match']!r}")
    try:
        text = msgspec.json.encode(dict(sorted(arguments.items())), enc_hook=plain).decode()
    except (msgspec.MsgspecError, UnicodeError, OverflowError) as error:
        raise ConfigError(f"the arguments of a binding cannot be written: {error}") from None
    if len(text) > ARGUMENTS_CHARS_MAX:
        raise ConfigError(
            f"the arguments of a binding take {len(text)} characters, more than "
            f"{ARGUMENTS_CHARS_MAX}"
        )
    return text


class Routes:
    """The bindings of an exchange, prepared for routing."""

    def __init__(self, record: ExchangeRecord) -> None:
        self.record = record
        self._exact: dict[str, tuple[int, ...]] = {}
        self._patterns: list[tuple[tuple[str, ...], int]] = []
        self._headers: list[tuple[dict[str, Any], int]] = []
        self._all = _once([binding.queue_id for binding in record.bindings])
        self._memo: dict[str, tuple[int, ...]] = {}
        for binding in record.bindings:
            self._add(binding)

    def _add(self, binding: Binding) -> None:
        words = tuple(binding.key.split("."))
        if self.record.kind == "headers":
            self._headers.append((_arguments(binding), binding.queue_id))
        elif self.record.kind == "topic" and ("*" in words or "#" in words):
            self._patterns.append((words, binding.queue_id))
        else:
            known = self._exact.get(binding.key, ())
            self._exact[binding.key] = (*known, binding.queue_id)

    def route(self, key: str, headers: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the ids of the queues reached by a message, each once, in order of binding."""
        kind = self.record.kind
        if kind == "fanout":
            return self._all
        if kind == "headers":
            return _once([q for wanted, q in self._headers if _headers_match(wanted, headers)])
        if kind == "direct" or not self._patterns:
            return _once(list(self._exact.get(key, ())))
        known = self._memo.get(key)
        if known is None:
            words = tuple(key.split("."))
            found = list(self._exact.get(key, ()))
            found += [q for pattern, q in self._patterns if _words_match(pattern, words)]
            if len(self._memo) >= MEMO_MAX:
                self._memo.clear()
            known = self._memo[key] = _once(found)
        return known


def _words_match(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    """Return true if the pattern matches; `places` are the ends of its prefixes in `words`."""
    count = len(words)
    places = [True] + [False] * count
    for part in pattern:
        if part == "#":
            first = places.index(True) if True in places else count + 1
            places = [index >= first for index in range(count + 1)]
        else:
            places = [False] + [
                places[index] and part in ("*", words[index]) for index in range(count)
            ]
    return places[count]


def _arguments(binding: Binding) -> dict[str, Any]:
    try:
        return msgspec.json.decode(binding.arguments or "{}", type=dict[str, Any])
    except MALFORMED:
        return {"x-match": "none"}  # a catalog only holds texts of this module


def _headers_match(wanted: Mapping[str, Any], headers: Mapping[str, Any]) -> bool:
    how = wanted.get("x-match", "all")
    found = [
        name in headers and (value is None or _same(headers[name], value))
        for name, value in wanted.items()
        if not name.startswith("x-")
    ]
    return all(found) if how == "all" else how == "any" and any(found)


def _same(one: Any, other: Any) -> bool:
    """Return true if equal and of one type: True is not 1."""
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


def _once(queues: list[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(queues))
