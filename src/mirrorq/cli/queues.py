"""Commands that ask a cluster about its queues, fill and empty them."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import attrs
import click

from mirrorq.cli.connecting import Failed, Misused, as_json, connecting, print_rows
from mirrorq.cli.progress import progress_bar
from mirrorq.errors import QueueNotFound

if TYPE_CHECKING:
    from mirrorq.client import Client
    from mirrorq.confirmation import Confirmation
    from mirrorq.message import Message
    from mirrorq.queue import MirroredQueue

__all__ = ["delete_queue", "get", "list_queues", "publish", "purge_queue", "redrive", "status"]

COLUMNS = (
    "name",
    "state",
    "master",
    "synchronised_mirrors",
    "policy",
    "messages_ready",
    "messages_unacknowledged",
)
READ_BYTES = 1 << 20
"""Lines that arrive together are published together."""
TAKE_MAX = 500
CONFIRM_S = 30.0
"""Longest wait for the outcome of what was sent, at the end."""


@click.command()
@connecting
@as_json
def status(client: Client, is_json: bool) -> None:
    """Show the nodes and the queues of a cluster."""
    nodes = [attrs.asdict(node) for node in client.nodes()]
    queues = [attrs.asdict(queue) for queue in client.queues()]
    if is_json:
        click.echo(json.dumps({"nodes": nodes, "queues": queues}, indent=2))
        return
    of_nodes = ("name", "endpoint", "alive", "leader", "witness", "incarnation", "alarms")
    print_rows(of_nodes, [[node[column] for column in of_nodes] for node in nodes], is_json=False)
    click.echo()
    columns = (*COLUMNS, "shards") if any(queue["shards"] for queue in queues) else COLUMNS
    print_rows(columns, [[queue[column] for column in columns] for queue in queues], is_json=False)


def _columns(
    context: click.Context, parameter: click.Parameter, columns: tuple[str, ...]
) -> tuple[str, ...]:
    """What list-queues was given; looked at before any node is."""
    from mirrorq.status import QueueStatus

    known = [field.name for field in attrs.fields(QueueStatus)]
    for column in columns:
        if column not in known:
            raise Misused(f"no column {column!r}: choose from {', '.join(known)}")
    return columns


@click.command()
@click.argument("columns", nargs=-1, metavar="[COLUMN]...", callback=_columns)
@click.option("--shards", is_flag=True, help="List the shards of each sharded queue, too.")
@connecting
@as_json
def list_queues(client: Client, columns: tuple[str, ...], shards: bool, is_json: bool) -> None:
    """List the queues of a cluster; COLUMN is any field of their status."""
    queues = client.queues(shards=shards)
    is_sharded = any(queue.shards for queue in queues)
    columns = columns or ((*COLUMNS, "shards") if is_sharded else COLUMNS)
    rows = [[getattr(queue, column) for column in columns] for queue in queues]
    print_rows(columns, rows, is_json=is_json)


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option("--transient", is_flag=True, help="Declare the queue as not durable.")
@click.option("--shards", type=click.IntRange(1), help="Declare it with so many shards.")
@connecting
def publish(client: Client, name: str, transient: bool, shards: int | None) -> None:
    """Publish each line of standard input to QUEUE, declared if it is not there.

    Ends when every line is confirmed, and prints how many there were.
    """
    count = read = 0
    size = _input_size()
    with (
        _queue_to_fill(client, name, transient=transient, shards=shards) as queue,
        progress_bar("published") as show,
    ):
        open_confirmations: list[Confirmation] = []
        for lines in _arriving_lines(sys.stdin.buffer):
            open_confirmations = [each for each in open_confirmations if not _is_confirmed(each)]
            open_confirmations.append(queue.put_many(lines))
            count += len(lines)
            read += sum(map(len, lines)) + len(lines)
            if show is not None:
                show(read, size, f"published {count}")
        for confirmation in open_confirmations:
            confirmation.result(CONFIRM_S)
    click.echo(f"confirmed: {count}")


def _queue_to_fill(
    client: Client, name: str, *, transient: bool, shards: int | None
) -> MirroredQueue:
    """As it is, whatever it is; made, or held against what was asked for, if need be."""
    if not transient and shards is None:
        with suppress(QueueNotFound):
            return client.queue(name, passive=True)
    return client.queue(name, durable=not transient, shards=shards)


def _input_size() -> int | None:
    """Bytes on standard input, where that is a file; else nobody knows."""
    try:
        found = os.fstat(sys.stdin.fileno())
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _is_confirmed(confirmation: Confirmation) -> bool:
    """Whether it is done; raises what went wrong."""
    if not confirmation.done():
        return False
    confirmation.result(0)
    return True


def _arriving_lines(stream: Any) -> Iterator[list[bytes]]:
    """Lines without their ends, as many at a time as there are: a slow input is not held up."""
    rest = b""
    while chunk := stream.read1(READ_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
    if rest:
        yield [rest]


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option("-n", "--count", default=1, show_default=True, type=click.IntRange(1))
@click.option("--all", "is_all", is_flag=True, help="Until no more comes within --timeout.")
@click.option(
    "--timeout",
    default=5.0,
    show_default=True,
    type=click.FloatRange(min=0),
    help="Seconds to wait for a message.",
)
@click.option("--no-ack", is_flag=True, help="Give the messages back after they are shown.")
@connecting
@as_json
def get(
    client: Client,
    name: str,
    count: int,
    is_all: bool,
    timeout: float,
    no_ack: bool,
    is_json: bool,
) -> None:
    """Take messages from QUEUE and write each as a line; acked once it is written."""
    taken = 0
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
                sys.stdout.buffer.write(b"".join(_line(message, is_json) for message in messages))
                sys.stdout.buffer.flush()
                if no_ack:
                    for message in messages:
                        message.nack()
                else:
                    queue.ack_many(messages).result(CONFIRM_S)
    if not is_all and taken < count:
        raise Failed(f"only {taken} of {count} messages came within {timeout} s")


@contextmanager
def _bar_beside_output() -> Iterator[Callable[..., None] | None]:
    """Where messages are written to a terminal they are progress enough."""
    if sys.stdout.isatty():
        yield None
        return
    with progress_bar("taken") as show:
        yield show


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Have a Ctrl-C meanwhile wait for the end of this; a second one does not."""
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
        "key": message.key,
        "headers": message.headers,
        "body": message.body,
    }
    return json.dumps(_shown(shown)).encode() + b"\n"


def _shown(value: Any) -> Any:
    """JSON has no bytes: what is no UTF-8 is shown escaped."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    return value


@click.command()
@click.argument("name", metavar="QUEUE")
@connecting
def purge_queue(client: Client, name: str) -> None:
    """End all ready messages of QUEUE."""
    with client.queue(name, passive=True) as queue:
        click.echo(f"purged: {queue.purge()}")


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option("--count", "count_max", type=click.IntRange(min=0), help="At most so many.")
@connecting
def redrive(client: Client, name: str, count_max: int | None) -> None:
    """Move the dead letters in QUEUE back to the queues in which they ended."""
    with client.queue(name, passive=True) as queue:
        click.echo(f"moved: {queue.redrive(count_max)}")


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option("--if-empty", is_flag=True, help="Only when it has no messages.")
@click.option("--if-unused", is_flag=True, help="Only when it has no consumers.")
@connecting
def delete_queue(client: Client, name: str, if_empty: bool, if_unused: bool) -> None:
    """Delete QUEUE with everything in it."""
    with client.queue(name, passive=True) as queue:
        queue.delete(if_empty=if_empty, if_unused=if_unused)
    click.echo(f"deleted: {name}")
