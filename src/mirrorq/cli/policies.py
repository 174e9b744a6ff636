"""Commands for policies of queues, and for the place of masters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from mirrorq.cli.connecting import acted, as_json, connecting, looking, print_rows

if TYPE_CHECKING:
    from mirrorq.client.client import Client

COLUMNS = ("name", "pattern", "definition", "priority", "apply_to")


def _definition(context: click.Context, parameter: click.Parameter, text: str) -> Any:
    """Return a JSON text's value; the library judges the definition."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(
            f"""{text!r} is not JSON ({error}): write it as '{{"ha-mode": "all"}}'"""
        ) from None


@click.command()
@click.argument("name")
@click.argument("pattern")
@click.argument("definition", callback=_definition)
@click.option(
    "--priority",
    default=0,
    show_default=True,
    help="Of several that match, the highest is in force.",
)
@click.option(
    "--apply-to", default="queues", show_default=True, help="What it is for: queues or all."
)
@connecting
@as_json
def set_policy(
    client: Client,
    name: str,
    pattern: str,
    definition: Any,
    priority: int,
    apply_to: str,
    is_json: bool,
) -> None:
    """Make the policy NAME, or replace it.

    It holds at once for every queue whose name PATTERN, a regular expression, is found in.
    DEFINITION is JSON, such as '{"ha-mode": "exactly", "ha-params": 2}'.
    """
    client.set_policy(name, pattern, definition, priority, apply_to)
    acted(is_json, f"set: {name}", set=name)


@click.command()
@click.argument("name")
@connecting
@as_json
def clear_policy(client: Client, name: str, is_json: bool) -> None:
    """Take the policy NAME away; no error when there is none."""
    client.clear_policy(name)
    acted(is_json, f"cleared: {name}", cleared=name)


@click.command()
@looking
@as_json
def list_policies(client: Client, is_json: bool) -> None:
    """List the policies of a cluster."""
    rows = [
        [
            policy.name,
            policy.pattern,
            policy.definition if is_json else json.dumps(policy.definition),
            policy.priority,
            policy.apply_to,
        ]
        for policy in client.policies()
    ]
    print_rows(COLUMNS, rows, is_json=is_json)


@click.command()
@click.argument("queue")
@click.argument("node")
@connecting
@as_json
def transfer_master(client: Client, queue: str, node: str, is_json: bool) -> None:
    """Make NODE, which must be in sync, the master of QUEUE."""
    client.transfer_master(queue, node)
    acted(is_json, f"master of {queue}: {node}", queue=queue, master=node)


@click.command()
@connecting
@as_json
def rebalance(client: Client, is_json: bool) -> None:
    """Level masters over the nodes; only members in sync take over, nothing is copied."""
    count = client.rebalance()
    acted(is_json, f"moved: {count}", moved=count)
