"""`mirrorq top`: nodes and queues, and their throughput, redrawn periodically."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from attrs import asdict, frozen

from mirrorq.cli.connecting import (
    Number,
    as_json,
    cell_text,
    echo,
    looking,
    print_rows,
    standard_output,
)
from mirrorq.errors import MirrorQError
from mirrorq.protocol.printable import escaped

if TYPE_CHECKING:
    from rich.console import Group

    from mirrorq.client.client import Client
    from mirrorq.monitoring.status import NodeStatus, QueueStatus

NODE_COLUMNS = ("node", "state", "leads", "masters", "in_sync", "alarms", "spooled")
QUEUE_COLUMNS = (
    "queue",
    "state",
    "master",
    "in_sync",
    "ready",
    "unacked",
    "consumers",
    "put_s",
    "get_s",
    "ack_s",
    "syncing",
    "note",
)
NOTE_LENGTH = 60
RATES = ("messages_published", "messages_delivered", "messages_acknowledged")


@frozen
class _Look:
    """State of the cluster at one moment."""

    at_s: float
    nodes: tuple[NodeStatus, ...]
    queues: tuple[QueueStatus, ...]

    @classmethod
    def at(cls, client: Client) -> _Look:
        nodes, queues = client.nodes(), client.queues()
        return cls(time.monotonic(), tuple(nodes), tuple(queues))


@click.command()
@click.option(
    "--once",
    is_flag=True,
    help="Print one table after one interval. The default without a terminal.",
)
@click.option(
    "--interval",
    default=1.0,
    show_default=True,
    type=Number(min=0.1, max=3600),
    help="Seconds between two looks; rates are counted over it.",
)
@looking
@as_json
def top(client: Client, once: bool, interval: float, is_json: bool) -> None:
    """Show nodes, queues, and messages a second, until Ctrl-C."""
    with suppress(KeyboardInterrupt):
        if once or is_json or not standard_output().isatty():
            _show_once(client, interval, is_json=is_json)
        else:
            _show_on(client, interval)


def _show_once(client: Client, interval: float, *, is_json: bool) -> None:
    before = _Look.at(client)
    time.sleep(interval)
    now = _Look.at(client)
    if is_json:
        rates = {row[0]: row[7:10] for row in _queue_rows(before, now)}
        queues = [
            {**asdict(queue), **dict(zip(QUEUE_COLUMNS[7:10], rates[queue.name], strict=True))}
            for queue in now.queues
        ]
        shown = {"nodes": [asdict(node) for node in now.nodes], "queues": queues}
        echo(json.dumps(shown, indent=2))
        return
    print_rows(NODE_COLUMNS, list(_node_rows(now)), is_json=False)
    echo()
    print_rows(QUEUE_COLUMNS, list(_queue_rows(before, now)), is_json=False)


def _show_on(client: Client, interval: float) -> None:
    from rich.live import Live

    before = now = _Look.at(client)
    with Live(_drawn(before, now, ""), auto_refresh=False, transient=False) as live:
        while True:
            time.sleep(interval)
            trouble = ""
            try:
                before, now = now, _Look.at(client)
            except MirrorQError as error:
                # What was seen last stays; the client looks for another node meanwhile.
                trouble = " ".join(str(error).split())
            live.update(_drawn(before, now, trouble), refresh=True)


def _drawn(before: _Look, now: _Look, trouble: str) -> Group:
    from rich.console import Group
    from rich.text import Text

    tables = (
        _table(NODE_COLUMNS, list(_node_rows(now))),
        _table(QUEUE_COLUMNS, list(_queue_rows(before, now))),
    )
    style = "red" if trouble else "dim"
    return Group(*tables, Text(escaped(trouble) or "Ctrl-C ends", style=style))


def _table(columns: tuple[str, ...], rows: list[list[Any]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(expand=False)
    for column in columns:
        table.add_column(column.replace("_s", "/s"), no_wrap=column in ("node", "queue"))
    for row in rows:
        # As texts: a name in brackets is no markup.
        table.add_row(*(Text(cell_text(value)) for value in row))
    return table


def _node_rows(look: _Look) -> Iterator[list[Any]]:
    for node in look.nodes:
        masters = sum(queue.master == node.name for queue in look.queues)
        in_sync = sum(
            node.name in (queue.master, *queue.synchronised_mirrors) for queue in look.queues
        )
        state = "witness" if node.witness else "running"
        yield [
            node.name,
            state if node.alive else "down",
            "yes" if node.leader else "no",
            masters,
            in_sync,
            ",".join(node.alarms) or None,
            _spooled_text(node),
        ]


def _spooled_text(node: NodeStatus) -> str | None:
    count, oldest_s = node.messages_spooled, node.spooled_oldest_s
    return f"{count}, {oldest_s} s" if count else None


def _queue_rows(before: _Look, now: _Look) -> Iterator[list[Any]]:
    earlier = {queue.name: queue for queue in before.queues}
    for queue in now.queues:
        known = earlier.get(queue.name)
        copies = len(queue.mirrors) + 1
        in_sync = len(queue.synchronised_mirrors) + (queue.master is not None)
        note = queue.blocked_by or next(iter(queue.warnings), "")
        yield [
            queue.name,
            queue.state,
            queue.master,
            f"{in_sync}/{copies}",
            queue.messages_ready,
            queue.messages_unacknowledged,
            queue.consumers,
            *(_rate(known, queue, name, now.at_s - before.at_s) for name in RATES),
            None if queue.sync_progress is None else f"{queue.sync_progress:.0%}",
            note[:NOTE_LENGTH] or None,
        ]


def _rate(before: QueueStatus | None, now: QueueStatus, name: str, seconds: float) -> float | None:
    """Growth of a counter a second; None when it has begun anew, or is seen for the first time."""
    if before is None or seconds <= 0 or before.epoch != now.epoch:
        return None
    growth: int = getattr(now, name) - getattr(before, name)
    return round(growth / seconds, 1) if growth >= 0 else None
