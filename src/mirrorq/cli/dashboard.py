"""`mirrorq dashboard`: a web page that shows a cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from mirrorq.cli.connecting import Failed, echo, looking
from mirrorq.cli.ending import signals_counted

if TYPE_CHECKING:
    from mirrorq.client.client import Client

ADMIN_KEY = "MIRRORQ_ADMIN_KEY"
LOOK_S = 0.5
"""A signal received by another thread is noticed after this time."""


@click.command()
@click.option(
    "--listen",
    "address",
    default="127.0.0.1:7480",
    show_default=True,
    metavar="[HOST:]PORT",
    help="Where the page is.",
)
@click.option("--open", "is_open", is_flag=True, help="Allow other addresses than loopback.")
@click.option(
    "--admin-key",
    envvar=ADMIN_KEY,
    metavar="KEY",
    help="Who gives this key on the page may look at messages and act on queues. Better given as "
    f"${ADMIN_KEY}: arguments are seen by others.",
)
@looking
def dashboard(client: Client, address: str, is_open: bool, admin_key: str | None) -> None:
    """Show a cluster on a web page, until SIGTERM or Ctrl-C.

    Rings with masters, mirrors and their state, rates and depths, synchronisation, failovers and
    policies. Read-only without an admin key.
    """
    try:
        from mirrorq.dashboard import Dashboard
    except ImportError as error:
        raise Failed(str(error)) from error
    with (
        signals_counted() as ended,
        Dashboard(client, address, admin_key=admin_key, insecure=is_open) as running,
    ):
        echo(f"dashboard at {running.url}")
        while not ended:
            time.sleep(LOOK_S)
