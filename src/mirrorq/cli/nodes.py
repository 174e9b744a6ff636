"""Commands about the nodes of a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mirrorq.cli.connecting import connecting

if TYPE_CHECKING:
    from mirrorq.client import Client

__all__ = ["forget_node"]


@click.command()
@click.argument("name", metavar="NODE")
@click.option(
    "--force", is_flag=True, help="Even if that deletes queues of which it has the last copy."
)
@connecting
def forget_node(client: Client, name: str, force: bool) -> None:
    """Take NODE, which does not run, out of the cluster: its vote and its copies.

    It may join anew with an empty directory, and not with the one that it had.
    """
    client.forget_node(name, force)
    click.echo(f"forgotten: {name}")
