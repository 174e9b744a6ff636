"""Policies: settings of the queues with names that match a pattern.

A policy is a name, a pattern, a definition and a priority. Of the policies with a pattern found in
a queue's name, the highest priority is in force; at equal priority the name first in order.
Definitions are not merged. Without a matching policy, and for each key absent from the definition,
the defaults of `Definition` hold: a copy on every node, synchronised by itself. Keys and meanings
are RabbitMQ's, durations in milliseconds; comments mark a default safer than RabbitMQ's.

All values are checked before any change. `parse` raises `PolicyError` for a definition invalid for
every queue. The catalog keeps the result of `parse` unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

import msgspec
from attrs import asdict, evolve, fields_dict, frozen

from mirrorq.errors import MALFORMED, PolicyError
from mirrorq.protocol.durations import milliseconds_in
from mirrorq.protocol.name_pattern import PatternError, compiled, is_found
from mirrorq.protocol.plain import plain
from mirrorq.protocol.printable import unprintable

NAME_CHARS_MAX = 255
OWNER_CHARS_MAX = 400
"""A client's name, its key and the number of a handle."""
PATTERN_CHARS_MAX = 255
"""Limit as for a name. Each node searches patterns on its own thread (`name_pattern`)."""
NUMBER_MAX = 2**53
"""Numbers up to here are exact in JSON, which policies come as."""
PRIORITY_MAX = 2**31
APPLY_TO = ("queues", "all")


@frozen
class Definition:
    """Settings of one queue, with defaults for every key absent from its policy."""

    ha_mode: Literal["all", "exactly", "nodes"] = "all"
    """Places of copies. RabbitMQ's default is a single copy; mirrorq's is a copy on every node."""
    ha_params: int | tuple[str, ...] | None = None
    """exactly: how many copies, the master's included. nodes: the names. all: None."""
    ha_sync_mode: Literal["manual", "automatic"] = "automatic"
    """automatic: a new mirror fetches old messages by itself. RabbitMQ's default is manual."""
    ha_sync_batch_size: int = 4096
    """Most messages in one request of a synchronisation."""
    ha_promote_on_shutdown: Literal["when-synced", "always"] = "when-synced"
    ha_promote_on_failure: Literal["when-synced", "always"] = "when-synced"
    """always: a mirror out of sync may become master when no member in sync is left. The mirror
    serves its messages, the rest is lost. RabbitMQ's default is always."""
    queue_master_locator: Literal["min-masters", "client-local", "random"] = "client-local"
    max_length: int | None = None
    """Most ready messages."""
    max_length_bytes: int | None = None
    """Most bytes of the bodies of ready messages."""
    overflow: Literal["block", "reject-publish", "drop-head"] = "block"
    """Effect of a publish beyond a limit. RabbitMQ's default is drop-head."""
    max_rate: int | None = None
    """Most messages accepted by the master in a second; further messages wait."""
    max_rate_bytes: int | None = None
    """Most bytes of bodies accepted by the master in a second; further messages wait."""
    max_consumers: int | None = None
    """Most consumers at a time."""
    message_ttl: int | None = None
    """ms after which a ready message ends."""
    expires: int | None = None
    """ms without any use after which the queue is deleted."""
    delivery_limit: int | None = None
    """A message returned more often is dead-lettered, or dropped."""
    consumer_timeout: int | None = None
    """ms for which a message may be held unacknowledged; 0: without end. None: by the configuration
    of the master's node (`Config.consumer_timeout_ms`)."""
    dead_letter_queue: str | None = None
    """Name of the queue for messages ended without an ack."""
    min_in_sync: int = 1
    """A confirm needs so many copies in sync, the master's included."""
    durability: Literal["fsync", "replicated"] = "fsync"
    """Basis of a confirm: the disks of all members in sync, or their memory, written behind."""
    unique_window: int = 3_600_000
    """ms for which the queue remembers a unique key of a put without a window."""
    unique_max: int = 1_000_000
    """Most unique keys, and producers, remembered by the queue; a put beyond is refused."""
    single_active_consumer: bool = False
    """Only a single consumer is served at a time; the next takes over at its end."""


DEFAULT = Definition()
"""Definition without a matching policy."""

ARGUMENTS = (
    "consumer-timeout",
    "dead-letter-queue",
    "delivery-limit",
    "expires",
    "max-length",
    "max-length-bytes",
    "message-ttl",
    "overflow",
)
"""Keys also allowed in a queue's declaration, in the order of writing."""
CONNECTION = "connection"
"""Kept beside: connection which owns an exclusive queue, by `connection_of`. Never set by users."""
CLIENT_HANDLE = "client-handle"
"""Kept beside: client handle which owns an exclusive queue, as known to its entry node: the
client's number and its connection."""
OWNERS = (CONNECTION, CLIENT_HANDLE)
_KEPT = (*OWNERS, *ARGUMENTS)
LESSER = frozenset(ARGUMENTS) - {"dead-letter-queue", "overflow"}
"""Keys with the lesser value in force if policy and declaration set both; else the policy's."""

_KEYS = {name.replace("_", "-"): name for name in fields_dict(Definition)}
_CHOICES: dict[str, tuple[str, ...]] = {
    "ha-mode": ("all", "exactly", "nodes"),
    "ha-sync-mode": ("manual", "automatic"),
    "ha-promote-on-shutdown": ("when-synced", "always"),
    "ha-promote-on-failure": ("when-synced", "always"),
    "queue-master-locator": ("min-masters", "client-local", "random"),
    "overflow": ("block", "reject-publish", "drop-head"),
    "durability": ("fsync", "replicated"),
}
_LEAST: dict[str, int] = {
    "ha-sync-batch-size": 1,
    "max-length": 1,
    "max-length-bytes": 1,
    "max-rate": 1,
    "max-rate-bytes": 1,
    "max-consumers": 1,
    "message-ttl": 0,
    "expires": 1,
    "delivery-limit": 0,
    "consumer-timeout": 0,
    "min-in-sync": 1,
    "unique-max": 1,
    "unique-window": 1,
}
"""Least value of each number."""
_TIMES = ("consumer-timeout", "expires", "message-ttl", "unique-window")
"""Numbers of milliseconds; a text with a unit, as "5m", is allowed too."""


@frozen
class Policy:
    """A policy in the catalog."""

    name: str
    pattern: str
    """A regular expression (`name_pattern`), looked for anywhere in the queue's name."""
    definition: Definition
    keys: tuple[str, ...]
    """The given keys, in the order given."""
    priority: int = 0
    apply_to: str = "queues"

    def given(self) -> dict[str, Any]:
        """Return the definition with only the given keys, as given."""
        values = asdict(self.definition)
        found = {key: values[_KEYS[key]] for key in self.keys}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in found.items()}

    def matches(self, queue: str) -> bool:
        return is_found(self.pattern, queue)


def in_force(policies: Iterable[Policy], queue: str) -> Policy | None:
    """Return the policy in force for a queue's name, or None."""
    matching = [policy for policy in policies if policy.matches(queue)]
    return min(matching, key=lambda policy: (-policy.priority, policy.name), default=None)


def parse(
    name: object,
    pattern: object,
    definition: object,
    priority: object = 0,
    apply_to: object = "queues",
) -> Policy:
    """Return the policy from the arguments of `set_policy`.

    Args:
        definition: a mapping of keys in RabbitMQ's spelling (`ha-mode`) to values.

    Raises:
        PolicyError: with the error, the value, and a correct form.
    """
    known_name = _text("a policy's name", name, NAME_CHARS_MAX)
    known_pattern = _pattern(known_name, pattern)
    if not isinstance(priority, int) or isinstance(priority, bool):
        raise PolicyError(f"policy {known_name!r}: priority is a whole number, not {priority!r}")
    if not -PRIORITY_MAX <= priority <= PRIORITY_MAX:
        raise PolicyError(f"policy {known_name!r}: priority {priority} is beyond +-{PRIORITY_MAX}")
    if apply_to not in APPLY_TO:
        raise PolicyError(
            f"policy {known_name!r}: apply-to is one of {', '.join(APPLY_TO)}, not {apply_to!r}"
        )
    if not isinstance(definition, Mapping) or not definition:
        raise PolicyError(
            f"policy {known_name!r}: a definition is a mapping of at least one key to its value, "
            f"such as {{'ha-mode': 'all'}}, not {definition!r}"
        )
    try:
        values: dict[str, Any] = {
            _KEYS[key]: _value(key, definition[key]) for key in _known(definition)
        }
        parsed = Definition(**values)
        _check_together(parsed, definition)
    except PolicyError as error:
        raise PolicyError(f"policy {known_name!r}: {error}") from None
    return Policy(known_name, known_pattern, parsed, tuple(definition), priority, str(apply_to))


def to_text(policy: Policy) -> str:
    """Return the policy without its name as JSON, for the catalog's log and snapshots.

    Only the given keys are in the text, so a later version may add keys.
    """
    fields = (policy.pattern, policy.given(), policy.priority, policy.apply_to)
    return msgspec.json.encode(fields, enc_hook=plain).decode()


def from_text(name: str, text: str) -> Policy:
    """Return the policy in a text of `to_text`.

    Raises:
        PolicyError: the text is no policy, or a policy of a later version.
    """
    try:
        pattern, definition, priority, apply_to = msgspec.json.decode(
            text, type=tuple[str, dict[str, Any], int, str]
        )
    except MALFORMED as error:
        raise PolicyError(f"policy {name!r} is not readable: {error}") from None
    return parse(name, pattern, definition, priority, apply_to)


def arguments_text(given: Mapping[str, object]) -> str:
    """Return a declaration's arguments as catalog text, equal for equal arguments; "": none.

    Raises:
        PolicyError: a key no declaration has, or an invalid value.
    """
    for key in given:
        if key not in _KEPT:
            raise PolicyError(f"unknown argument {key!r}: they are {', '.join(ARGUMENTS)}")
    checked = {key: _value(key, given[key]) for key in _KEPT if key in given}
    return msgspec.json.encode(checked, enc_hook=plain).decode() if checked else ""


@lru_cache(maxsize=512)
def _arguments(text: str) -> tuple[tuple[str, Any], ...]:
    """Return the arguments in a text of `arguments_text`. Raises PolicyError for any other text."""
    try:
        given = msgspec.json.decode(text, type=dict[str, Any]) if text else {}
    except MALFORMED as error:
        raise PolicyError(f"arguments of a queue are not readable: {error}") from None
    arguments_text(given)
    return tuple(given.items())


def arguments_of(text: str) -> dict[str, Any]:
    """Return the arguments in a text of `arguments_text`.

    Raises:
        PolicyError: any other text.
    """
    return dict(_arguments(text))


def owned_arguments(text: str, connection: str) -> str:
    """Return the arguments of a queue exclusive to the connection."""
    return arguments_text({**arguments_of(text), CONNECTION: connection})


def declared_by(text: str, connection: str, handle: str) -> str:
    """Return the arguments of a client's declaration with the client as owner.

    The client does not choose the owner: its own connection replaces any named connection.

    Args:
        handle: the client's handle to own an exclusive queue, "" for any other queue.
    """
    given = arguments_of(text)
    given.pop(CLIENT_HANDLE, None)
    if CONNECTION in given:
        given[CONNECTION] = connection
    if handle:
        given[CLIENT_HANDLE] = handle
    return arguments_text(given)


def owner_of(text: str) -> str:
    """Return the connection which owns a queue with the arguments, "" for a shared queue."""
    owner: str = arguments_of(text).get(CONNECTION, "")
    return owner


def client_handle_of(text: str) -> str:
    """Return the client's handle which owns the queue, "" without an owner."""
    handle: str = arguments_of(text).get(CLIENT_HANDLE, "")
    return handle


def shown_arguments(text: str) -> dict[str, Any]:
    """Return the arguments set by the declarer of a queue."""
    return {key: value for key, value in _arguments(text) if key not in OWNERS}


def arguments_error(text: object) -> str:
    """Return why a text is not in the form of `arguments_text`, "" if valid."""
    if not isinstance(text, str):
        return f"a queue's arguments are text, not {text!r}"
    try:
        known = arguments_text(arguments_of(text))
    except PolicyError as error:
        return str(error)
    return "" if known == text else f"a queue's arguments are written {known}, not {text}"


@lru_cache(maxsize=512)
def definition_with(policy: Policy | None, text: str) -> Definition:
    """Return the definition of a queue declared with the arguments under the policy.

    Where both set a number the lesser holds; for any other key the policy's value holds.
    """
    definition = DEFAULT if policy is None else policy.definition
    spoken = () if policy is None else policy.keys
    changes: dict[str, Any] = {}
    for key, value in _arguments(text):
        if key in OWNERS:
            continue
        name = _KEYS[key]
        if key not in spoken:
            changes[name] = value
        elif key in LESSER:
            changes[name] = _lesser(key, value, getattr(definition, name))
    return evolve(definition, **changes) if changes else definition


def _lesser(key: str, one: int, other: int) -> int:
    if key == "consumer-timeout" and 0 in (one, other):
        return max(one, other)  # 0 means without end
    return min(one, other)


def _text(what: str, value: object, chars_max: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= chars_max:
        raise PolicyError(f"{what} is a string of 1 to {chars_max} characters, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise PolicyError(f"{what} cannot be written as UTF-8: {error.reason}") from None
    wrong = unprintable(what, value)
    if wrong:
        raise PolicyError(wrong)
    return value


def _pattern(name: str, pattern: object) -> str:
    # The empty pattern is found in every name.
    about = f"the pattern of policy {name!r}"
    text = "" if pattern == "" else _text(about, pattern, PATTERN_CHARS_MAX)
    try:
        compiled(text)
    except PatternError as error:
        raise PolicyError(
            f"the pattern {text!r} of policy {name!r} is not a regular expression that policies "
            f"know: {error} (.* matches every name)"
        ) from None
    return text


def _known(definition: Mapping[Any, Any]) -> Iterable[str]:
    for key in definition:
        if key not in _KEYS:
            raise PolicyError(f"unknown key {key!r}: the keys are {', '.join(sorted(_KEYS))}")
    return definition


def _value(key: str, value: object) -> object:
    if key in _CHOICES:
        if not isinstance(value, str) or value not in _CHOICES[key]:
            raise PolicyError(f"{key} is one of {', '.join(_CHOICES[key])}, not {value!r}")
        return value
    if key in _TIMES and isinstance(value, str):
        found = milliseconds_in(value)
        value = value if found is None else math.ceil(found)
    if key in _LEAST:
        return _number(key, value, _LEAST[key])
    if key == "ha-params":
        return _params(value)
    if key == "single-active-consumer":
        if not isinstance(value, bool):
            raise PolicyError(f"{key} is true or false, not {value!r}")
        return value
    return _text(key, value, OWNER_CHARS_MAX if key in OWNERS else NAME_CHARS_MAX)


def _number(key: str, value: object, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= NUMBER_MAX:
        raise PolicyError(f"{key} is a whole number from {least} to {NUMBER_MAX}, not {value!r}")
    return value


def _params(value: object) -> int | tuple[str, ...]:
    if isinstance(value, int):
        return _number("ha-params", value, 1)
    if not isinstance(value, list | tuple):
        raise PolicyError(f"ha-params is a number or a list of node names, not {value!r}")
    names = tuple(_text("a node name in ha-params", name, NAME_CHARS_MAX) for name in value)
    if not names or len(dict.fromkeys(names)) < len(names):
        raise PolicyError(f"ha-params names at least one node, and none twice, not {value!r}")
    return names


def _check_together(parsed: Definition, given: Mapping[str, Any]) -> None:
    """Refuse keys valid alone but not together."""
    params = parsed.ha_params
    if parsed.ha_mode == "exactly" and not isinstance(params, int):
        raise PolicyError(
            f"ha-mode exactly needs the number of copies in ha-params, not {params!r}"
        )
    if parsed.ha_mode == "nodes" and not isinstance(params, tuple):
        raise PolicyError(f"ha-mode nodes needs a list of node names in ha-params, not {params!r}")
    if parsed.ha_mode == "all" and params is not None:
        raise PolicyError(f"ha-mode all takes no ha-params, but {params!r} were given")
    copies = len(params) if isinstance(params, tuple) else params
    if copies is not None and parsed.min_in_sync > copies:
        raise PolicyError(
            f"min-in-sync {parsed.min_in_sync} can never be reached with {copies} copies: "
            "raise ha-params or lower min-in-sync"
        )
