"""Commands about the nodes of a cluster."""

from __future__ import annotations

from pathlib import Path

import click

from mirrorq.cli.booting import boot
from mirrorq.cli.connecting import URL, acted, as_json, cluster_options, connected, failing


@click.command()
@click.argument("name", metavar="NODE")
@click.option(
    "--force", is_flag=True, help="Also when that deletes queues of which it has the last copy."
)
@click.option(
    "--path",
    type=click.Path(path_type=Path),
    help="Offline: the store of the only other node, when NODE is lost for good (see force-boot).",
)
@click.option("--yes", is_flag=True, help="With --path: do not ask.")
@cluster_options(required=False)
@as_json
def forget_node(
    name: str,
    force: bool,
    path: Path | None,
    yes: bool,
    endpoints: str | None,
    insecure: bool,
    wait: float,
    keys: Path | None,
    is_json: bool,
) -> None:
    """Take NODE, which does not run, out of the cluster: its vote and its copies.

    It may join anew with an empty directory, and not with the one that it had. A majority of
    the other nodes has to run. Of two nodes the one that is left has none: stop it, and say
    --path with its directory.
    """
    with failing():
        if path is not None:
            boot(path, name, is_agreed=yes, is_json=is_json)
            return
        if endpoints is None:
            raise click.UsageError(f"say --connect (or ${URL}), or --path of a stopped node")
        with connected(endpoints, insecure=insecure, wait=wait, keys=keys) as client:
            client.forget_node(name, force)
    acted(is_json, f"forgotten: {name}", forgotten=name)
