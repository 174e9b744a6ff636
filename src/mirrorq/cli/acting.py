"""Commands that end, move or hold back messages of a queue."""

from __future__ import annotations

import re
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click
from attrs import frozen

from mirrorq.cli.connecting import Failed, Misused, acted, as_json, connecting

if TYPE_CHECKING:
    from mirrorq.api.queue import MirroredQueue
    from mirrorq.client.client import Client

_SPAN = re.compile(r"(?:(\d+):)?(\d+)(?:-(\d+))?")


@frozen
class Span:
    """Messages named by a user."""

    text: str
    shard: int | None
    first: int
    last: int


def _span(context: click.Context, parameter: click.Parameter, text: str | None) -> Span | None:
    if text is None:
        return None
    found = _SPAN.fullmatch(text)
    if found is None:
        raise Misused(
            f"{text!r} names no messages: give a sequence as 17, a range as 17-30, and of a "
            "sharded queue the shard before it, as 2:17-30"
        )
    shard, *ends = found.groups()
    first, last = int(ends[0]), int(ends[1] or ends[0])
    if not 1 <= first <= last < 2**63:
        raise Misused(f"{text!r} names no messages: sequences count from 1, and a range rises")
    return Span(text, None if shard is None else int(shard), first, last)


def _ring(opened: ExitStack, queue: MirroredQueue, span: Span) -> MirroredQueue:
    """Return the queue, or the shard of the sequences."""
    if not queue.shards and span.shard is not None:
        raise Failed(f"queue {queue.name!r} has no shards: leave {span.shard}: out")
    if queue.shards and span.shard is None:
        raise Failed(f"queue {queue.name!r} has {queue.shards} shards: give one, as 0:{span.text}")
    return queue if span.shard is None else opened.enter_context(queue.shard(span.shard))


@click.command()
@click.argument("name", metavar="QUEUE")
@click.argument("span", metavar="[SHARD:]SEQUENCE[-SEQUENCE]", callback=_span)
@click.option("--yes", is_flag=True, help="Do not ask.")
@connecting
@as_json
def delete(client: Client, name: str, span: Span, yes: bool, is_json: bool) -> None:
    """End one message of QUEUE, or those of a range, by sequence: `mirrorq queue browse` shows it.

    Messages that a consumer holds stay.
    """
    with ExitStack() as opened:
        ring = _ring(opened, opened.enter_context(client.queue(name, passive=True)), span)
        if not yes and not click.confirm(f"End message(s) {span.text} of {name!r}?", err=True):
            raise Failed("nothing was changed")
        count = ring.delete_messages(span.first, span.last)
    acted(is_json, f"deleted: {count}", deleted=count)


@click.command()
@click.argument("name", metavar="QUEUE")
@click.argument("span", metavar="[SHARD:]SEQUENCE[-SEQUENCE]", callback=_span)
@click.option("--to", "target", required=True, metavar="QUEUE", help="The queue they go to.")
@connecting
@as_json
def move(client: Client, name: str, span: Span, target: str, is_json: bool) -> None:
    """Move one message of QUEUE, or those of a range, to another queue, each exactly once.

    Messages that a consumer holds stay.
    """
    with ExitStack() as opened:
        ring = _ring(opened, opened.enter_context(client.queue(name, passive=True)), span)
        count = ring.move_messages(span.first, span.last, to=target)
    acted(is_json, f"moved: {count}", moved=count)


@click.command()
@click.argument("name", metavar="QUEUE")
@click.argument("span", metavar="[[SHARD:]SEQUENCE[-SEQUENCE]]", required=False, callback=_span)
@click.option("--count", "count_max", type=click.IntRange(min=0), help="Move at most this many.")
@connecting
@as_json
def redrive(
    client: Client, name: str, span: Span | None, count_max: int | None, is_json: bool
) -> None:
    """Move dead letters in QUEUE back to the queues in which they ended: all, or those named."""
    if span is not None and count_max is not None:
        raise Misused("give messages or --count, not both")
    with ExitStack() as opened:
        queue = opened.enter_context(client.queue(name, passive=True))
        if span is None:
            count = queue.redrive(count_max)
        else:
            count = _ring(opened, queue, span).redrive(first=span.first, last=span.last)
    acted(is_json, f"moved: {count}", moved=count)


@click.command()
@click.argument("name", metavar="QUEUE")
@connecting
@as_json
def pause(client: Client, name: str, is_json: bool) -> None:
    """Have QUEUE hand out nothing until `mirrorq queue resume`. Puts and acks go on."""
    with client.queue(name, passive=True) as queue:
        queue.pause()
    acted(is_json, f"paused: {name}", paused=name)


@click.command()
@click.argument("name", metavar="QUEUE")
@connecting
@as_json
def resume(client: Client, name: str, is_json: bool) -> None:
    """Have QUEUE hand out messages again."""
    with client.queue(name, passive=True) as queue:
        queue.resume()
    acted(is_json, f"resumed: {name}", resumed=name)
