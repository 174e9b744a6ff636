"""`publish`, `get` and `browse`: messages as lines on standard input and output."""

from __future__ import annotations

import json
import math
import os
import signal
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from itertools import chain, cycle, islice
from random import shuffle
from typing import TYPE_CHECKING, Any, NoReturn

import click

from mirrorq.api.arguments import check_size
from mirrorq.cli.connecting import (
    Failed,
    Misused,
    Number,
    acted,
    as_json,
    connecting,
    print_rows,
    standard_input,
    standard_output,
)
from mirrorq.cli.ending import sigterm_as_ctrl_c
from mirrorq.cli.progress import progress_bar
from mirrorq.errors import MirrorQError, NotConfirmed, QueueNotFound

if TYPE_CHECKING:
    from mirrorq.api.confirmation import Confirmation
    from mirrorq.api.message import Message
    from mirrorq.api.queue import MirroredQueue
    from mirrorq.client.client import Client

READ_BYTES = 1 << 20
"""Lines that arrive together are published together."""
TAKE_MAX = 500
BATCH_MAX = 100_000
"""Limit of a batch: a batch must fit into a handle's unconfirmed messages."""
BROWSED = ("sequence", "put", "returned", "key", "died in", "body")
PROPERTIES = ("key", "message_id", "reply_to", "correlation_id", "content_type")
"""Fields of a message that are found by name; all other names are headers."""
BODY_BYTES = 60
"""So much of a body is shown in a table."""
CONFIRM_S = 30.0
"""Longest wait for the outcome of sent messages, at the end."""


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option("--transient", is_flag=True, help="Declare the queue as not durable.")
@click.option("--shards", type=click.IntRange(1), help="Declare it with this many shards.")
@click.option(
    "--batch",
    default=1,
    show_default=True,
    type=click.IntRange(1, BATCH_MAX),
    help="Lines that are stored together, or not at all.",
)
@connecting
@as_json
def publish(
    client: Client, name: str, transient: bool, shards: int | None, batch: int, is_json: bool
) -> None:
    """Publish each line of standard input to QUEUE, declared if it is not there.

    Each line is a put of its own: those that fit into a queue with a limit are published. With
    --batch so many lines that arrive together are one put_many. Ends when every line is confirmed,
    and prints how many there were. If it ends earlier, by a line that is refused, by Ctrl-C or
    SIGTERM, it says how many are confirmed.
    """
    lines = _Lines()
    filled = _queue_to_fill(client, name, transient=transient, shards=shards)
    with sigterm_as_ctrl_c(), filled as queue, _targets(queue) as targets, lines.reporting():
        _publish_input(targets, lines, batch, client.config.message_bytes_max)
    acted(is_json, f"confirmed: {lines.confirmed}", confirmed=lines.confirmed)


def _publish_input(
    targets: Iterator[MirroredQueue], lines: _Lines, batch: int, bytes_max: int
) -> None:
    """Publish until the end of standard input, and until all lines are confirmed."""
    size = _input_size()
    with progress_bar("published") as show:
        for arrived in _arriving_lines(standard_input().buffer, bytes_max):
            target = next(targets)
            for first in range(0, len(arrived), batch):
                sent = arrived[first : first + batch]
                put = target.put(sent[0]) if len(sent) == 1 else target.put_many(sent)
                lines.note_sent(put, len(sent), sum(map(len, sent)))
            if show is not None:
                show(lines.bytes, size, f"published {lines.read}")
        lines.wait()


@contextmanager
def _targets(queue: MirroredQueue) -> Iterator[Iterator[MirroredQueue]]:
    """Yield targets for lines that arrive together, in order: each time the next shard, if the
    queue has shards."""
    with ExitStack() as opened:
        shards = [opened.enter_context(queue.shard(number)) for number in range(queue.shards)]
        shuffle(shards)
        yield cycle(shards or [queue])


class _Lines:
    """Progress of the lines of an input."""

    def __init__(self) -> None:
        self.read = 0
        self.bytes = 0
        self.confirmed = 0
        self._refused = 0
        """Number of the first refused line, from 1; 0 without a refusal."""
        self._open: deque[tuple[Confirmation, int]] = deque()
        """Puts, and the number of lines of each."""

    def note_sent(self, confirmation: Confirmation, count: int, size: int) -> None:
        """Note sent lines. Raises the error of an earlier line."""
        self.read += count
        self.bytes += size + count
        self._open.append((confirmation, count))
        while self._open and self._open[0][0].done():
            self._take()

    def wait(self) -> None:
        """Wait until all lines have an outcome; raises the first error."""
        while self._open:
            self._take()

    def _take(self) -> None:
        confirmation, count = self._open[0]
        try:
            confirmation.result(CONFIRM_S)
        except NotConfirmed as error:
            self._refuse(error)
        self.confirmed += count
        self._open.popleft()

    def _refuse(self, error: NotConfirmed) -> NoReturn:
        """Stop after a refused line: wait for the outcomes of sent lines."""
        self._refused = self.read - sum(count for _, count in self._open) + 1
        self._open.popleft()
        while self._open:
            confirmation, count = self._open[0]
            with suppress(NotConfirmed):
                confirmation.result(CONFIRM_S)
                self.confirmed += count
            self._open.popleft()
        raise error

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Add the progress to any error that ends the work early."""
        try:
            yield
        except KeyboardInterrupt:
            # Lines on their way have their outcome soon; a second Ctrl-C does not wait.
            with suppress(KeyboardInterrupt, MirrorQError, TimeoutError):
                self.wait()
            raise Failed(f"interrupted; {self._reach()}") from None
        except (MirrorQError, TimeoutError) as error:
            raise Failed(f"{error}; {self._reach()}") from error

    def _reach(self) -> str:
        if self.confirmed == self.read:
            return f"all {self.read} lines that were read are confirmed"
        if self._refused:
            return (
                f"line {self._refused} was refused first, {self.confirmed} of the {self.read} "
                "lines that were read are confirmed"
            )
        return (
            f"of {self.read} lines that were read the first {self.confirmed} are confirmed; "
            "of the others any may be"
        )


def _queue_to_fill(
    client: Client, name: str, *, transient: bool, shards: int | None
) -> MirroredQueue:
    """Return an existing queue unchanged, or declare a queue with the given terms."""
    if not transient and shards is None:
        with suppress(QueueNotFound):
            return client.queue(name, passive=True)
    return client.queue(name, durable=not transient, shards=shards)


def _input_size() -> int | None:
    """Return the bytes on standard input, None unless standard input is a file."""
    try:
        found = os.fstat(standard_input().fileno())
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _arriving_lines(stream: Any, bytes_max: int) -> Iterator[list[bytes]]:
    """Lines without their ends, as many at a time as there are: a slow input is not held up.

    Raises:
        MessageTooLarge: a line is longer than `bytes_max`, which may be seen before its end.
    """
    rest: list[bytes] = []
    size = 0
    while chunk := stream.read1(READ_BYTES):
        end, *lines = chunk.split(b"\n")
        rest.append(end)
        size += len(end)
        check_size(size, 0, bytes_max)
        if lines:
            yield [b"".join(rest), *lines[:-1]]
            rest = lines[-1:]
            size = len(rest[0])
    if any(rest):
        yield [b"".join(rest)]


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option("-n", "--count", default=1, show_default=True, type=click.IntRange(1))
@click.option("--all", "is_all", is_flag=True, help="Until no more comes within --timeout.")
@click.option(
    "--timeout",
    default=5.0,
    show_default=True,
    type=Number(min=0),
    help="Seconds to wait for a message.",
)
@connecting
@as_json
def get(
    client: Client,
    name: str,
    count: int,
    is_all: bool,
    timeout: float,
    is_json: bool,
) -> None:
    """Take messages from QUEUE and write each as a line; acked once it is written."""
    taken, output = 0, standard_output().buffer
    with client.queue(name, passive=True) as queue, _bar_beside_output() as show:
        while is_all or taken < count:
            wanted = TAKE_MAX if is_all else min(TAKE_MAX, count - taken)
            messages = queue.get_many(wanted, timeout=timeout)
            if not messages:
                break
            taken += len(messages)
            if show is not None:
                show(taken, None if is_all else count, f"taken {taken}")
            with interrupts_wait():
                # What is written is acked, too: it shall not come again for a Ctrl-C.
                output.write(b"".join(_line(message, is_json) for message in messages))
                output.flush()
                queue.ack_many(messages).result(CONFIRM_S)
    if not is_all and taken < count:
        raise Failed(f"only {taken} of {count} messages came within {timeout} s")


def _wanted(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, str]:
    wanted = {}
    for one in given:
        name, sign, text = one.partition("=")
        if not (name and sign):
            raise Misused(f"--where {one!r}: give FIELD=TEXT, as x-death-reason=expired")
        wanted[name] = text
    return wanted


def _is_wanted(message: Message, wanted: dict[str, str]) -> bool:
    return all(_field(message, name) == text for name, text in wanted.items())


def _field(message: Message, name: str) -> str | None:
    value = getattr(message, name) if name in PROPERTIES else message.headers.get(name)
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option("--from", "start", type=click.IntRange(1, 2**63 - 1), help="First sequence shown.")
@click.option("-n", "--count", default=20, show_default=True, type=click.IntRange(1, sys.maxsize))
@click.option("--all", "is_all", is_flag=True, help="All messages.")
@click.option(
    "--where",
    "wanted",
    multiple=True,
    metavar="FIELD=TEXT",
    callback=_wanted,
    help="Only messages of which this is true: a header, key, message_id, reply_to, "
    "correlation_id or content_type. Several: all of them.",
)
@connecting
@as_json
def browse(
    client: Client,
    name: str,
    start: int | None,
    count: int,
    is_all: bool,
    wanted: dict[str, str],
    is_json: bool,
) -> None:
    """Show messages of QUEUE, ready, held and delayed, and take none.

    Of a dead letter it shows where it died and why; --where x-death-queue=orders shows those of one
    queue. With --json a line for each message, as `get` has it; without, the bodies are cut.
    """
    with client.queue(name, passive=True) as queue, ExitStack() as opened:
        shards = [opened.enter_context(queue.shard(number)) for number in range(queue.shards)]
        browsed = chain.from_iterable(_browsed(ring, start) for ring in shards or [queue])
        found = (message for message in browsed if _is_wanted(message, wanted))
        shown = found if is_all else islice(found, count)
        if is_json:
            output = standard_output().buffer
            for message in shown:
                output.write(_line(message, is_json=True))
            output.flush()
        else:
            print_rows(BROWSED, [_row(message) for message in shown], is_json=False)


def _browsed(queue: MirroredQueue, start: int | None) -> Iterator[Message]:
    """All messages from a sequence on, as many at a time as `TAKE_MAX`."""
    while messages := queue.browse(start, TAKE_MAX):
        yield from messages
        start = messages[-1].sequence + 1


def _row(message: Message) -> list[Any]:
    death = [message.headers.get(f"x-death-{what}") for what in ("queue", "reason")]
    return [
        message.sequence if message.shard is None else f"{message.shard}:{message.sequence}",
        datetime.fromtimestamp(message.timestamp).isoformat(" ", "milliseconds"),
        message.delivery_count - 1,
        message.key,
        " by ".join(map(str, filter(None, death))) or None,
        _shown(message.body[:BODY_BYTES]),
    ]


@contextmanager
def _bar_beside_output() -> Iterator[Callable[..., None] | None]:
    """Yield a progress bar, or None if messages are written to a terminal."""
    if standard_output().isatty():
        yield None
        return
    with progress_bar("taken") as show:
        yield show


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Have a Ctrl-C wait for the end of the block; a second Ctrl-C does not wait."""
    came: list[int] = []

    def note(number: int, _frame: object) -> None:
        if came:
            raise KeyboardInterrupt
        came.append(number)

    before = signal.getsignal(signal.SIGINT)
    if before == signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _line(message: Message, is_json: bool) -> bytes:
    if not is_json:
        return message.body + b"\n"
    shown = {
        "sequence": message.sequence,
        "shard": message.shard,
        "redelivered": message.redelivered,
        "delivery_count": message.delivery_count,
        "timestamp": message.timestamp,
        "message_id": message.message_id,
        "reply_to": message.reply_to,
        "correlation_id": message.correlation_id,
        "content_type": message.content_type,
        "key": message.key,
        "headers": message.headers,
        "body": message.body,
    }
    return json.dumps(_shown(shown)).encode() + b"\n"


def _shown(value: Any) -> Any:
    """Return a value for JSON, which has neither bytes nor nan: bytes outside UTF-8 are escaped."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return value
