"""Commands about the users of a cluster."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import attrs
import click

from mirrorq.cli.connecting import acted, as_json, connecting, echo, looking, print_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mirrorq.client.client import Client
    from mirrorq.monitoring.presence import Attendance

OF_CLIENTS = (
    "name",
    "node",
    "address",
    "since",
    "key",
    "queues",
    "consumers",
    "messages_unacknowledged",
)
OF_CONSUMERS = (
    "queue",
    "tag",
    "client",
    "node",
    "prefetch",
    "messages_unacknowledged",
    "exclusive",
    "auto_ack",
    "active",
)


@click.command()
@looking
@as_json
def clients(client: Client, is_json: bool) -> None:
    """List the clients of a cluster: who they are, where, and what they hold."""
    found = client._attendance()
    _show("clients", found.clients, OF_CLIENTS, found, is_json)


@click.command()
@click.argument("queue", required=False)
@looking
@as_json
def consumers(client: Client, queue: str | None, is_json: bool) -> None:
    """List the consumers of a cluster, or of QUEUE."""
    found = client._attendance()
    listed = found.consumers if queue is None else found.of_queue(queue)
    _show("consumers", listed, OF_CONSUMERS, found, is_json)


def _show(
    what: str, listed: Sequence[Any], columns: Sequence[str], found: Attendance, is_json: bool
) -> None:
    if is_json:
        shown = [attrs.asdict(each) for each in listed]
        rest = {"unheard": found.unheard, "left_off": found.left_off}
        echo(json.dumps({what: shown, **rest}, indent=2))
        return
    rows = [[_shown(column, getattr(each, column)) for column in columns] for each in listed]
    print_rows(columns, rows, is_json=False)
    if found.unheard:
        nodes = ", ".join(found.unheard)
        echo(
            f"mirrorq: no answer from {nodes}: their clients and consumers are missing here",
            err=True,
        )
    if found.left_off:
        echo(f"mirrorq: {found.left_off} more consumers are not listed", err=True)


def _shown(column: str, value: Any) -> Any:
    if column == "since":
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    return "-" if value == "" else value


@click.command()
@click.argument("name", metavar="CLIENT|TAG")
@click.option("--reason", default="", help="Told to the client, and written to the logs.")
@connecting
@as_json
def disconnect(client: Client, name: str, reason: str, is_json: bool) -> None:
    """Disconnect CLIENT, by its name as `mirrorq client ls` lists it, or the one consumer with the
    TAG that `mirrorq client consumers` lists. Needs the role admin.

    What it holds goes back to the queues. It does not come again by itself; its program may
    connect, or consume, anew.
    """
    client.disconnect(name, reason)
    acted(is_json, f"disconnected: {name}", disconnected=name)
