"""Commands that begin, show and end the synchronisation of a queue's mirrors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from mirrorq.cli.connecting import Failed, acted, as_json, connecting
from mirrorq.cli.progress import progress_bar

if TYPE_CHECKING:
    from mirrorq.client.client import Client
    from mirrorq.monitoring.status import QueueStatus


def _left(status: QueueStatus) -> str:
    left = f"{status.sync_messages_left:,} messages"
    if status.sync_bytes_left:
        left += f", {status.sync_bytes_left / 1e6:,.1f} MB"
    if status.sync_seconds_left is not None:
        left += f", {status.sync_seconds_left:,.0f} s"
    return f"{left} left"


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option("--no-wait", is_flag=True, help="Only begin; do not wait until it is done.")
@connecting
@as_json
def sync_queue(client: Client, name: str, no_wait: bool, is_json: bool) -> None:
    """Have the mirrors of QUEUE fetch what they lack, and wait until they are in sync.

    The queue goes on meanwhile. Ctrl-C ends the waiting, not the synchronisation.
    """
    if no_wait:
        client.sync_queue(name)
        acted(is_json, f"synchronising: {name}", queue=name, in_sync=False)
        return
    try:
        with progress_bar(name) as show:

            def on_progress(status: QueueStatus) -> None:
                if show is not None:
                    share = 1.0 if status.sync_progress is None else status.sync_progress
                    show(share, 1.0, f"{name}: {_left(status)}")

            client.sync_queue(name, wait=True, on_progress=on_progress)
    except KeyboardInterrupt:
        raise Failed(
            f"no longer waiting; queue {name!r} goes on synchronising. To end that: "
            f"mirrorq queue cancel-sync {name}"
        ) from None
    acted(is_json, f"in sync: {name}", queue=name, in_sync=True)


@click.command()
@click.argument("name", metavar="QUEUE")
@connecting
@as_json
def cancel_sync_queue(client: Client, name: str, is_json: bool) -> None:
    """Have the mirrors of QUEUE fetch no more; they keep what they have."""
    was_syncing = client.cancel_sync(name)
    text = f"cancelled: {name}" if was_syncing else f"not syncing: {name}"
    acted(is_json, text, queue=name, cancelled=was_syncing)
