"""Keywords that several calls share, each written once: of messages, queues, nodes and clients.

Calls take them as `**options: Unpack[…]`. So editors complete them and type checkers check them,
for threads and for asyncio alike; `spelled_out` makes `help()` and `inspect.signature` show them.
Their meaning is explained at the first use: `MirroredQueue.put`, `Node.queue`, `Node` and
`mirrorq.connect`.
"""

from __future__ import annotations

import difflib
import inspect
import sys
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack

from attrs import evolve

from mirrorq.api.arguments import check_flags
from mirrorq.api.publish_options import (
    PLAIN,
    RETRY_MAX_S,
    RETRY_S,
    UNIQUE,
    Seconds,
    Terms,
    milliseconds,
    terms_of,
    unique_of,
)
from mirrorq.errors import ConfigError, PolicyError
from mirrorq.protocol.policy import arguments_text
from mirrorq.wire.properties import HeaderValue, pack_properties

if TYPE_CHECKING:
    from mirrorq.config import Config
    from mirrorq.security.settings import Security

Body = bytes | bytearray | memoryview
Key = str | bytes | None
AckMode = Literal["return", "manual", "receipt"]
"""Time of a consumer's acks: at the callback's return, by the program in the callback or later, or
before the callback is called."""


class PublishOptions(TypedDict, total=False):
    """Options of a message that is published to any number of queues."""

    headers: Mapping[str, HeaderValue] | None
    message_id: str | None
    reply_to: str | None
    correlation_id: str | None
    content_type: str | None
    ttl: Seconds | None
    priority: int
    delay: Seconds | None
    persistent: bool


class ManyOptions(PublishOptions, total=False):
    """Options of messages that are put into a queue together."""

    key: Key


class UniqueOptions(TypedDict, total=False):
    """Options of one message with a unique key."""

    unique: Key
    unique_for: Seconds | None


class MessageOptions(ManyOptions, UniqueOptions, total=False):
    """Options of a message that is put into a queue."""


class RoutedOptions(PublishOptions, UniqueOptions, total=False):
    """Options of a message that is published to an exchange."""


class QueueArguments(TypedDict, total=False):
    """Arguments that a queue is declared with and keeps."""

    expires: Seconds | None
    message_ttl: Seconds | None
    max_length: int | None
    max_length_bytes: int | None
    overflow: Literal["block", "reject-publish", "drop-head"] | None
    dead_letter_queue: str | None
    delivery_limit: int | None
    consumer_timeout: Seconds | None


class DeclareOptions(QueueArguments, total=False):
    """Options of a queue that is declared."""

    durable: bool
    exclusive: bool | Literal["connection"]
    auto_delete: bool
    passive: bool
    shards: int | None
    timeout: float | None


class ConsumeOptions(TypedDict, total=False):
    """Options of a consumer."""

    prefetch: int | None
    ack: AckMode
    exclusive: bool
    cancel_on_failover: bool
    retry_delay: Seconds
    retry_delay_max: Seconds


class NodeOptions(TypedDict, total=False):
    """Options of a node, beside its name and path."""

    peers: Mapping[str, str] | None
    config: Config | None
    witness: bool
    security: Security | None
    insecure: bool
    listen: str | None
    join: str | Sequence[str] | None
    dashboard: str | None


class EmbeddedOptions(NodeOptions, DeclareOptions, total=False):
    """Options of a queue with a node of its own."""


class ClientOptions(TypedDict, total=False):
    """Options of a client."""

    config: Config | None
    insecure: bool
    security: Security | None
    timeout: float | None
    fail_fast: bool


DEFAULTS: dict[str, Any] = {
    "priority": 0,
    "persistent": True,
    "durable": True,
    "exclusive": False,
    "auto_delete": False,
    "passive": False,
    "witness": False,
    "insecure": False,
    "fail_fast": False,
    "timeout": 30,
    "ack": "return",
    "cancel_on_failover": False,
    "retry_delay": RETRY_S,
    "retry_delay_max": RETRY_MAX_S,
}
"""Values of options that are not given; other options are None."""


def packed(
    *,
    headers: Mapping[str, HeaderValue] | None = None,
    message_id: str | None = None,
    reply_to: str | None = None,
    correlation_id: str | None = None,
    content_type: str | None = None,
    ttl: Seconds | None = None,
    priority: int = 0,
    delay: Seconds | None = None,
    key: Key = None,
    unique: Key = None,
    unique_for: Seconds | None = None,
    persistent: bool = True,
    **unknown: object,
) -> tuple[Terms, bytes]:
    """Return the terms and the packed properties of a message's options.

    Raises:
        ConfigError, TypeError, ValueError: an option is unknown, or wrong in type or range.
    """
    if unknown:
        refuse_unknown(unknown, annotations_of(MessageOptions))
    terms = PLAIN
    if persistent is not True or priority != 0 or delay is not None or ttl is not None:
        terms = terms_of(persistent, priority, delay, ttl)
    texts = (reply_to, correlation_id, content_type)
    if unique is None and unique_for is None:
        return terms, pack_properties(headers, message_id, key, *texts)
    said = unique_of(unique, unique_for)
    terms = UNIQUE if terms is PLAIN else evolve(terms, is_unique=True)
    return terms, pack_properties(headers, message_id, key, *texts, said)


def packed_many(**options: Unpack[ManyOptions]) -> tuple[Terms, bytes]:
    """Return terms and packed properties of messages that share their options."""
    if "unique" in options or "unique_for" in options:
        raise TypeError(
            "a unique key is of one message: call put() for each; those that are put one after the "
            "other travel together"
        )
    return packed(**options)


def place_key(options: MessageOptions) -> Key:
    """Return the key that chooses a message's shard: its key, else its unique key."""
    key = options.get("key")
    return options.get("unique") if key is None else key


_TIMES = ("expires", "message_ttl", "consumer_timeout")


def refuse_unknown(given: Collection[str], known: Collection[str]) -> None:
    """Raise TypeError for an unknown keyword, and name the nearest known keyword."""
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it takes {', '.join(known)}"
            raise TypeError(f"unexpected keyword argument {name!r}: {hint}")


def arguments_said(arguments: QueueArguments) -> str:
    """Return the arguments of a declaration as the catalog keeps them, "" when there are none.

    Raises:
        ConfigError: an argument has a wrong type or is out of range.
        TypeError: an argument is unknown.
    """
    given: dict[str, object] = {}
    if arguments:
        refuse_unknown(arguments, annotations_of(DeclareOptions))
    for name, value in arguments.items():
        if value is not None:
            value = milliseconds(name, value) if name in _TIMES else value  # type: ignore[arg-type]
            given[name.replace("_", "-")] = value
    try:
        return arguments_text(given)
    except PolicyError as error:
        raise ConfigError(str(error)) from None


def said_of_node(options: NodeOptions) -> dict[str, Any]:
    """Return all options of a node, with defaults. Raises TypeError for an unknown option."""
    return _said(NodeOptions, dict(options))


def said_of_client(options: ClientOptions) -> dict[str, Any]:
    """Return all options of a client, with defaults. Raises TypeError for an unknown option."""
    return _said(ClientOptions, dict(options))


def _said(kind: type, given: dict[str, Any]) -> dict[str, Any]:
    refuse_unknown(given, kind.__annotations__)
    _check_flags_of(given)
    return {name: DEFAULTS.get(name) for name in kind.__annotations__} | given


def _check_flags_of(given: Mapping[str, Any]) -> None:
    flags = {name for name, value in DEFAULTS.items() if isinstance(value, bool)} - {"exclusive"}
    check_flags(**{name: value for name, value in given.items() if name in flags})


def split_options(options: EmbeddedOptions) -> tuple[DeclareOptions, NodeOptions]:
    """Split options into those of the queue and those of its node."""
    refuse_unknown(options, annotations_of(EmbeddedOptions))
    _check_flags_of(options)
    declaration, node = DeclareOptions(), NodeOptions()
    for name, value in options.items():
        part: Any = declaration if name in DeclareOptions.__annotations__ else node
        part[name] = value
    return declaration, node


Function = TypeVar("Function", bound=Callable[..., Any])


def spelled_out(function: Function) -> Function:
    """Have a function with `**options: Unpack[…]` show each option by its name."""
    shown = inspect.signature(function)
    *others, options = shown.parameters.values()
    assert options.kind is options.VAR_KEYWORD, f"{function} takes no options"
    name = str(options.annotation).removeprefix("Unpack[").removesuffix("]")
    kind = vars(sys.modules[function.__module__])[name]
    spelled = [
        inspect.Parameter(
            each, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(each), annotation=hint
        )
        for each, hint in annotations_of(kind).items()
    ]
    named = {each.name for each in others}
    parameters = [*others, *(each for each in spelled if each.name not in named)]
    function.__signature__ = shown.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def annotations_of(kind: type) -> dict[str, str]:
    """Return the options of a kind, in order, with their types as written."""
    found: dict[str, str] = {}
    for base in getattr(kind, "__orig_bases__", ()):
        if typing.is_typeddict(base):
            found |= annotations_of(base)
    for name, hint in kind.__annotations__.items():
        found.setdefault(name, getattr(hint, "__forward_arg__", str(hint)))
    return found
