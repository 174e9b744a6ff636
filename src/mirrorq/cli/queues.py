"""Commands that show queues, and end queues or their messages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs
import click

from mirrorq.cli.connecting import (
    Misused,
    acted,
    as_json,
    cell_text,
    connecting,
    echo,
    looking,
    print_rows,
)
from mirrorq.errors import QueueNotFound
from mirrorq.protocol.shard_names import logical_name

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


OF_NODES = (
    *("name", "endpoint", "alive", "leader", "witness", "incarnation"),
    *("alarms", "messages_spooled"),
)


@click.command()
@looking
@as_json
def list_nodes(client: Client, is_json: bool) -> None:
    """List the nodes of a cluster."""
    nodes = [attrs.asdict(node) for node in client.nodes()]
    if is_json:
        echo(json.dumps(nodes, indent=2))
        return
    print_rows(OF_NODES, [[node[column] for column in OF_NODES] for node in nodes], is_json=False)


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
    print_rows(OF_NODES, [[node[column] for column in OF_NODES] for node in nodes], is_json=False)
    echo()
    columns = (*COLUMNS, "shards") if any(queue["shards"] for queue in queues) else COLUMNS
    print_rows(columns, [[queue[column] for column in columns] for queue in queues], is_json=False)


def _columns(
    context: click.Context, parameter: click.Parameter, columns: tuple[str, ...]
) -> tuple[str, ...]:
    """Check the names of columns before any node is asked."""
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
@looking
@as_json
def info(client: Client, name: str, is_json: bool) -> None:
    """Show all that is known of QUEUE: each field of its status, and its shards."""
    queues = client.queues(shards=True)
    found = [queue for queue in queues if name in (queue.name, logical_name(queue.name))]
    if not found:
        raise QueueNotFound(f"no queue is named {name!r}: see mirrorq queue ls")
    shown = [attrs.asdict(queue) for queue in found]
    if is_json:
        echo(json.dumps(shown[0] | {"shard_status": shown[1:]}, indent=2))
        return
    for number, fields in enumerate(shown):
        if number:
            echo()
        for field, value in fields.items():
            echo(f"{field}\t{json.dumps(value) if isinstance(value, dict) else cell_text(value)}")


@click.command()
@click.argument("name", metavar="QUEUE")
@connecting
@as_json
def purge_queue(client: Client, name: str, is_json: bool) -> None:
    """End all ready messages of QUEUE."""
    with client.queue(name, passive=True) as queue:
        count = queue.purge()
    acted(is_json, f"purged: {count}", purged=count)


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option("--if-empty", is_flag=True, help="Only when it has no messages.")
@click.option("--if-unused", is_flag=True, help="Only when it has no consumers.")
@connecting
@as_json
def delete_queue(client: Client, name: str, if_empty: bool, if_unused: bool, is_json: bool) -> None:
    """Delete QUEUE with everything in it."""
    with client.queue(name, passive=True) as queue:
        queue.delete(if_empty=if_empty, if_unused=if_unused)
    acted(is_json, f"deleted: {name}", deleted=name)
