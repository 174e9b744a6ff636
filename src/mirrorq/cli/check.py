"""`mirrorq check`: is all as it should be, and may this node be stopped?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import attrs
import click

from mirrorq.cli.connecting import Failed, as_json, echo, looking

if TYPE_CHECKING:
    from mirrorq.client.client import Client
    from mirrorq.monitoring.health import Health


@click.command()
@click.option(
    "--node", "name", metavar="NODE", help="Node that is to stop. Default: the one that answers."
)
@click.option(
    "--acknowledge",
    is_flag=True,
    help="You know of all messages lost so far: end the warnings of them, on all nodes.",
)
@looking
@as_json
def check(client: Client, name: str | None, acknowledge: bool, is_json: bool) -> None:
    """Say whether every queue has its copies in sync, and may do without a node.

    Exit status 0 when all nodes run, every queue has as many copies in sync as its policy wants,
    and no queue has its last one on NODE; else 1 and a list of what is wrong. Ask before each
    step of a rolling upgrade.
    """
    from mirrorq.monitoring.health import judge

    if acknowledge:
        _acknowledge(client)
    nodes = client.nodes()
    asked = name or client.entry_node
    if asked not in [node.name for node in nodes]:
        known = ", ".join(node.name for node in nodes)
        raise Failed(f"the cluster has no node {asked!r}: its nodes are {known}")
    health = judge(asked, nodes, client.queues(shards=True))
    if is_json:
        echo(json.dumps(_shown(health), indent=2))
    else:
        for one in (*health.troubles, *health.warnings):
            echo(f"{one.kind}\t{one.name}\t{one.text}")
    if not health.is_good:
        raise Failed(health.summary)
    if not is_json:
        echo(health.summary)


def _acknowledge(client: Client) -> None:
    for queue in client.queues(shards=True):
        if queue.messages_lost and not queue.shards:
            client.acknowledge_losses(queue.name, queue.messages_lost)


def _shown(health: Health) -> dict[str, object]:
    return {"ok": health.is_good, "summary": health.summary, **attrs.asdict(health)}
