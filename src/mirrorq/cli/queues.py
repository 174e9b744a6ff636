"""Commands that ask a cluster about its queues, and end queues or what is in them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs
import click

from mirrorq.cli.connecting import Misused, as_json, connecting, echo, looking, print_rows

if TYPE_CHECKING:
    from mirrorq.client.client import Client

COLUMNS = (
    "name",
    "state",
    "master",
    "synchronised_mirrors",
    "policy",
    "messages_ready",
    "messages_unacknowledged",
)


@click.command()
@looking
@as_json
def status(client: Client, is_json: bool) -> None:
    """Show the nodes and the queues of a cluster."""
    nodes = [attrs.asdict(node) for node in client.nodes()]
    queues = [attrs.asdict(queue) for queue in client.queues()]
    if is_json:
        echo(json.dumps({"nodes": nodes, "queues": queues}, indent=2))
        return
    of_nodes = (
        *("name", "endpoint", "alive", "leader", "witness", "incarnation"),
        *("alarms", "messages_spooled"),
    )
    print_rows(of_nodes, [[node[column] for column in of_nodes] for node in nodes], is_json=False)
    echo()
    columns = (*COLUMNS, "shards") if any(queue["shards"] for queue in queues) else COLUMNS
    print_rows(columns, [[queue[column] for column in columns] for queue in queues], is_json=False)


def _columns(
    context: click.Context, parameter: click.Parameter, columns: tuple[str, ...]
) -> tuple[str, ...]:
    """What list-queues was given; looked at before any node is."""
    from mirrorq.monitoring.status import QueueStatus

    known = [field.name for field in attrs.fields(QueueStatus)]
    for column in columns:
        if column not in known:
            raise Misused(f"no column {column!r}: choose from {', '.join(known)}")
    return columns


@click.command()
@click.argument("columns", nargs=-1, metavar="[COLUMN]...", callback=_columns)
@click.option("--shards", is_flag=True, help="List the shards of each sharded queue, too.")
@looking
@as_json
def list_queues(client: Client, columns: tuple[str, ...], shards: bool, is_json: bool) -> None:
    """List the queues of a cluster; COLUMN is any field of their status."""
    queues = client.queues(shards=shards)
    is_sharded = any(queue.shards for queue in queues)
    columns = columns or ((*COLUMNS, "shards") if is_sharded else COLUMNS)
    rows = [[getattr(queue, column) for column in columns] for queue in queues]
    if not is_json:
        rows = [[json.dumps(one) if isinstance(one, dict) else one for one in row] for row in rows]
    print_rows(columns, rows, is_json=is_json)


@click.command()
@click.argument("name", metavar="QUEUE")
@connecting
def purge_queue(client: Client, name: str) -> None:
    """End all ready messages of QUEUE."""
    with client.queue(name, passive=True) as queue:
        echo(f"purged: {queue.purge()}")


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option("--count", "count_max", type=click.IntRange(min=0), help="Move at most this many.")
@connecting
def redrive(client: Client, name: str, count_max: int | None) -> None:
    """Move the dead letters in QUEUE back to the queues in which they ended."""
    with client.queue(name, passive=True) as queue:
        echo(f"moved: {queue.redrive(count_max)}")


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option("--if-empty", is_flag=True, help="Only when it has no messages.")
@click.option("--if-unused", is_flag=True, help="Only when it has no consumers.")
@connecting
def delete_queue(client: Client, name: str, if_empty: bool, if_unused: bool) -> None:
    """Delete QUEUE with everything in it."""
    with client.queue(name, passive=True) as queue:
        queue.delete(if_empty=if_empty, if_unused=if_unused)
    echo(f"deleted: {name}")
