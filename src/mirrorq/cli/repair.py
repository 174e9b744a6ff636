"""`mirrorq store repair`: read all that nodes hold, so that what is damaged is found and mended."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from mirrorq import bulk
from mirrorq.cli.connecting import Failed, as_json, cluster_options, connected, echo, failing
from mirrorq.cli.progress import progress_bar
from mirrorq.containers.ranges import RangeSet
from mirrorq.errors import PreconditionFailed, QueueDown, QueueNotFound
from mirrorq.protocol.shard_names import logical_name

if TYPE_CHECKING:
    from mirrorq.api.queue import MirroredQueue
    from mirrorq.client.client import Client

SEQUENCE_MAX = (1 << 63) - 2
SPAN = 100_000
"""Messages between two steps of the progress bar."""


@attrs.define
class Copy:
    """Result of the read of one copy."""

    node: str
    queue: str
    messages: int = 0
    damaged: list[tuple[int, int]] = attrs.field(factory=list)
    """Sequences that no member has whole."""
    skipped: str = ""
    """Why the copy was not read, "" if read."""
    is_down: bool = False
    """Whether the node has no copy in sync, or the queue no master."""


@click.command()
@click.argument("names", nargs=-1, metavar="[QUEUE]...")
@click.option(
    "--discard",
    is_flag=True,
    help="End the messages that no member has whole. Nobody else may consume the queue meanwhile.",
)
@cluster_options(required=True)
@as_json
def repair(
    names: tuple[str, ...],
    discard: bool,
    endpoints: str,
    insecure: bool,
    wait: float,
    keys: Path | None,
    is_json: bool,
) -> None:
    """Read every message of QUEUE (of all queues) on the disk of every node.

    A node that meets damaged bytes fetches them from another one by itself: here it is made to
    look at all. Takes nothing, and the queues go on. Exit status 0 when all is whole then (or was
    discarded); else 1, with what no member has whole, or the queues that have no copy to read.
    """

    def at(where: str) -> AbstractContextManager[Client]:
        return connected(where, insecure=insecure, wait=wait, keys=keys, looks=False)

    copies: list[Copy] = []
    discarded: dict[str, int] = {}
    with failing():
        with at(endpoints) as client:
            nodes = [one for one in client.nodes() if one.alive and not one.witness]
            rings = [one.name for one in client.queues(shards=True) if not one.shards]
        chosen = _chosen(rings, names)
        for node in nodes:
            with at(node.endpoint) as client, progress_bar(node.name) as on_progress:
                for done, name in enumerate(chosen):
                    if on_progress is not None:
                        on_progress(done, len(chosen), f"{node.name}: {name}")
                    copies.append(_read(client, node.name, name))
        if discard:
            with at(endpoints) as client:
                discarded = dict(_discarded(client, copies))
    left = [one for one in copies if one.damaged and one.queue not in discarded]
    read = {one.queue for one in copies if not one.skipped}
    unread = sorted({one.queue for one in copies if one.is_down} - read)
    if is_json:
        found = {"ok": not left and not unread, "copies": [attrs.asdict(one) for one in copies]}
        echo(json.dumps({**found, "discarded": discarded}, indent=2))
    else:
        for one in copies:
            echo("\t".join(_shown(one)))
        for name, count in discarded.items():
            echo(f"discarded\t{name}\t{count}")
    if left:
        queues = ", ".join(sorted({one.queue for one in left}))
        raise Failed(
            f"not all messages of {queues} are whole: start nodes that may have them, or drop what "
            "no member has with --discard"
        )
    if unread:
        raise Failed(f"no copy of {', '.join(unread)} could be read: start the nodes that have one")


def _chosen(rings: list[str], names: tuple[str, ...]) -> list[str]:
    """Return the queues and shards to be read: all, or those named and the shards of those named.

    Raises:
        QueueNotFound: no queue has a name.
    """
    for name in names:
        if not any(name in (one, logical_name(one)) for one in rings):
            raise QueueNotFound(f"no queue is named {name!r}: see mirrorq queue ls")
    return [one for one in rings if not names or one in names or logical_name(one) in names]


def _shown(copy: Copy) -> tuple[str, ...]:
    if copy.skipped:
        return "skipped", copy.node, copy.queue, copy.skipped
    spans = ", ".join(f"{first} to {last}" for first, last in copy.damaged)
    state = "damaged" if spans else "whole"
    return (state, copy.node, copy.queue, f"{copy.messages} messages", *([spans] if spans else []))


def _read(client: Client, node: str, name: str) -> Copy:
    """Read one copy whole, by the node that has the copy."""
    copy = Copy(node, name)
    try:
        with client.queue(name, passive=True) as queue:
            for first, last in bulk.reader(queue).live_ranges(1, SEQUENCE_MAX):
                for low in range(first, last + 1, SPAN):
                    _read_span(queue, low, min(low + SPAN - 1, last), copy)
    except (QueueDown, QueueNotFound, PreconditionFailed) as error:
        copy.skipped = str(error)
        copy.is_down = isinstance(error, QueueDown)
    return copy


def _read_span(queue: MirroredQueue, first: int, last: int, copy: Copy) -> None:
    """Read a span; if unreadable, read its halves, down to the damaged messages."""
    reached, count = first, 0
    try:
        for batch in bulk.reader(queue).read(first, last):
            count += batch.count
            reached = batch.first + batch.count
        copy.messages += count
    except QueueDown:
        copy.messages += count
        if reached < last:
            middle = (reached + last) // 2
            _read_span(queue, reached, middle, copy)
            _read_span(queue, middle + 1, last, copy)
        elif bulk.reader(queue).live_ranges(reached, last):
            if copy.damaged and copy.damaged[-1][1] == reached - 1:
                copy.damaged[-1] = (copy.damaged[-1][0], last)
            else:
                copy.damaged.append((reached, last))


def _discarded(client: Client, copies: list[Copy]) -> Iterator[tuple[str, int]]:
    """End messages that are whole in none of the copies that were read."""
    for name in dict.fromkeys(copy.queue for copy in copies if copy.damaged):
        read = [RangeSet(one.damaged) for one in copies if one.queue == name and not one.skipped]
        spans = list(read[0])
        for damaged in read[1:]:
            spans = [piece for span in spans for piece in damaged.within(*span)]
        if spans:
            with (
                client.queue(name, passive=True) as queue,
                bulk.claim(queue, "mirrorq store repair") as claim,
            ):
                yield name, sum(claim.ack(*span) for span in spans)
