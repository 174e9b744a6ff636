"""Checks of users' arguments, in the caller's thread, before anything is done.

A mistake is raised in the call that made the mistake. A wrong argument that passed the checks would
reach the thread of a node or a client, and an exception there ends the thread and its handles.
"""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterable, Sequence
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING

from mirrorq import clock
from mirrorq.config import Config
from mirrorq.errors import MALFORMED, ConfigError, MessageTooLarge, ProtocolError
from mirrorq.protocol.printable import unprintable

if TYPE_CHECKING:
    from mirrorq.protocol.clients import AnyCall


# Time-outs of calls: the user's value, and the deadline.
def check_timeout(timeout: float) -> None:
    """Refuse an invalid time-out.

    Args:
        timeout: in seconds.

    Raises:
        ValueError: it is below 0, or nan.
        TypeError: it is not a number.
    """
    if type(timeout) is not float and not isinstance(timeout, Real):
        raise TypeError(f"the timeout is {timeout!r}: it must be a number of seconds")
    if not timeout >= 0:
        raise ValueError(f"the timeout is {timeout}: it must be 0 or more seconds")


def deadline_of(timeout: float | None) -> float | None:
    """Return a call's deadline by the clock `time.monotonic`. None: the call may wait for ever, as
    with a time-out of None or `math.inf`.

    Raises:
        ValueError, TypeError: the time-out is invalid (`check_timeout`).
    """
    if timeout is None:
        return None
    check_timeout(timeout)
    return None if timeout == math.inf else clock.monotonic() + float(timeout)


def left_until(deadline: float | None) -> float | None:
    """Return the number of seconds left, 0 or more; None without a deadline."""
    return None if deadline is None else max(deadline - clock.monotonic(), 0)


def checked_body(body: bytes | bytearray | memoryview, properties: bytes, bytes_max: int) -> bytes:
    """Return the body as immutable bytes, after a check of the message's size.

    Args:
        properties: the message's packed properties.

    Raises:
        TypeError: the body is not bytes-like.
        MessageTooLarge: the message is too large.
    """
    if type(body) is not bytes:
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError(_body_text(body))
        body = bytes(body)
    check_size(len(body), len(properties), bytes_max)
    return body


def _body_text(body: object) -> str:
    how = "encode it first"
    if isinstance(body, str):
        how += ", as in text.encode()"
    elif isinstance(body, dict | list | tuple):
        how += ", as in json.dumps(data).encode()"
    elif body is None:
        how += ", an empty one is b''"
    return f"a body is bytes-like, not {type(body).__name__}: {how}"


def checked_path(path: object) -> Path:
    """Return the path of a node's or a spool's directory.

    Raises:
        TypeError, ConfigError: the path is invalid.
    """
    if not isinstance(path, str | os.PathLike):
        raise TypeError(f"path is {path!r}: it must be the name of a directory, such as './data'")
    if "\0" in os.fsdecode(path):
        raise ConfigError(f"path is {path!r}: no file's name has a zero byte in it")
    return Path(path)


def checked_bodies(
    bodies: Sequence[bytes | bytearray | memoryview], properties: bytes, bytes_max: int
) -> list[bytes]:
    """Return the bodies, each checked as by `checked_body`; plain bytes are checked without a loop.

    Args:
        properties: of each message.
    """
    if not isinstance(bodies, Iterable) or isinstance(bodies, bytes | bytearray | memoryview | str):
        raise TypeError(f"put_many takes a list of bodies, not one {type(bodies).__name__}")
    made = list(bodies)
    is_plain = list(map(type, made)).count(bytes) == len(made)
    lengths = list(map(len, made)) if is_plain else []
    # Counting equal lengths is faster than the search for the largest.
    is_even = bool(lengths) and lengths.count(lengths[0]) == len(lengths)
    largest = lengths[0] if is_even else max(lengths, default=0)
    if is_plain and largest + len(properties) <= bytes_max:
        return made  # type: ignore[return-value]
    return [checked_body(body, properties, bytes_max) for body in made]


def check_size(body_bytes: int, properties_bytes: int, bytes_max: int) -> None:
    """Raise MessageTooLarge for a message of more bytes than `message_bytes_max`."""
    size = body_bytes + properties_bytes
    if size > bytes_max:
        raise MessageTooLarge(
            f"a message of {size} bytes is larger than message_bytes_max {bytes_max} ({body_bytes} "
            f"of body, {properties_bytes} of headers, ids, names and key): split it, or raise the "
            "limit on all nodes"
        )


SEQUENCE_MAX = 2**63 - 1
"""Largest sequence of a message, and largest number in a field for sequences."""
COUNT_MAX = 2**53
"""Limit on counts of messages in users' arguments: more than any queue has."""


def check_block(value: object) -> None:
    """Raise TypeError for a `block` that is a number of seconds in the wrong place: `get(5)` would
    wait for ever."""
    if not isinstance(value, bool):
        raise TypeError(
            f"block is {value!r}: it must be True or False. Seconds to wait are timeout="
        )


def check_flags(**flags: object) -> None:
    """Raise TypeError for a flag that is not a bool: the text "no" is true."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {value!r}: it must be True or False")


def check_callable(what: str, value: object) -> None:
    """Raise TypeError for a callback that cannot be called, or is a coroutine function. A thread's
    call would not run its body, and a message would count as done. None is allowed."""
    if value is not None and not callable(value):
        raise TypeError(f"{what} is {value!r}: give a function that can be called")
    if inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value):
        raise TypeError(
            f"{what} is a coroutine function (async def), which nothing would await: give a plain "
            "function. Only a callback of mirrorq.aio's consume is an async def"
        )


def check_returned(what: str, value: object) -> None:
    """Raise TypeError for a coroutine or generator of a function on a thread: it never ran."""
    if isinstance(value, Coroutine | Generator | AsyncGenerator):
        if not isinstance(value, AsyncGenerator):
            value.close()
        raise TypeError(
            f"{what} returned a {type(value).__name__}, so its body never ran: what wraps an async "
            "def must be an async def too, and no yield may be in it"
        )


def check_config(value: object) -> None:
    """Raise ConfigError for a value that is neither a Config nor None."""
    if value is not None and not isinstance(value, Config):
        raise ConfigError(f"config is {value!r}: give a mirrorq.Config(…), or None")


def check_count(what: str, value: object) -> None:
    """Raise for a value that is not a number of messages, from 1 on. A bool is none, and neither
    is a subclass of int: no message to the master has a place for it.

    Raises:
        TypeError: it is not an int.
        ValueError: it is below 1, or more than any queue has.
    """
    if type(value) is not int:
        raise TypeError(f"{what} is {value!r}: it must be a whole number")
    if value < 1:
        raise ValueError(f"{what} is {value}: ask for at least 1")
    if value > COUNT_MAX:
        raise ValueError(f"{what} is {value}: ask for at most {COUNT_MAX}")


def check_sequence(what: str, value: object) -> None:
    """Raise for a value that is neither a sequence nor 0.

    Raises:
        TypeError: it is not an int.
        ValueError: it is below 0 or too large.
    """
    if type(value) is not int:
        raise TypeError(f"{what} is {value!r}: a sequence is a whole number")
    if not 0 <= value <= SEQUENCE_MAX:
        raise ValueError(f"{what} is {value}: a sequence is from 1 to {SEQUENCE_MAX}")


def check_text(what: str, value: object) -> None:
    """Raise ConfigError for a value that is not a str, or cannot be encoded."""
    if not isinstance(value, str):
        raise ConfigError(f"{what} is a string, not {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{what} {value!r} cannot be written as UTF-8: {error.reason}") from None


def check_name(what: str, value: object) -> None:
    """Raise ConfigError for a value that is not a str, or has characters not allowed in a name."""
    check_text(what, value)
    wrong = unprintable(what, str(value))
    if wrong:
        raise ConfigError(wrong)


def checked_call(call: AnyCall) -> AnyCall:
    """Return a user's call as the node that serves it would read it: names of subclasses of str
    are plain texts then.

    Raises:
        ConfigError: no node could read it, whatever checks were made before.
    """
    from mirrorq.protocol.clients import ClientCall
    from mirrorq.wire.messages import decode, encode

    try:
        read = decode(encode(ClientCall(0, call)))
    except (ProtocolError, OverflowError, TypeError, *MALFORMED) as error:
        raise ConfigError(f"this cannot be asked of a cluster: {call}: {error}") from None
    assert isinstance(read, ClientCall)
    return read.call


def not_a_message(values: object) -> TypeError:
    """Return the error for arguments that are not messages."""
    return TypeError(
        f"{values!r} is not what get(), get_many() or a consumer gave: a `Message` is acked"
    )
