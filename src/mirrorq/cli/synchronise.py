"""Commands that begin, show and end the synchronisation of a queue's mirrors."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from mirrorq.cli.connecting import Failed, connecting

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from mirrorq.client.client import Client
    from mirrorq.monitoring.status import QueueStatus

__all__ = ["cancel_sync_queue", "sync_queue"]


class _Bar:
    """A progress bar on standard error; nothing is drawn where that is no terminal."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._task: TaskID = progress.add_task(name, total=1.0, left="")

    def show(self, status: QueueStatus) -> None:
        left = f"{status.sync_messages_left:,} messages"
        if status.sync_bytes_left:
            left += f", {status.sync_bytes_left / 1e6:,.1f} MB"
        if status.sync_seconds_left is not None:
            left += f", {status.sync_seconds_left:,.0f} s"
        share = 1.0 if status.sync_progress is None else status.sync_progress
        self._progress.update(self._task, completed=share, left=f"{left} left")


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[left]}"),
        console=Console(stderr=True),
        transient=True,
    )


@click.command()
@click.argument("name", metavar="QUEUE")
@click.option("--no-wait", is_flag=True, help="Only begin; do not wait until it is done.")
@connecting
def sync_queue(client: Client, name: str, no_wait: bool) -> None:
    """Have the mirrors of QUEUE fetch what they lack, and wait until they are in sync.

    The queue goes on meanwhile. Ctrl-C ends the waiting, not the synchronisation.
    """
    if no_wait:
        client.sync_queue(name)
        click.echo(f"synchronising: {name}")
        return
    try:
        with _progress() if sys.stderr.isatty() else nullcontext() as progress:
            on_progress = None if progress is None else _Bar(progress, name).show
            client.sync_queue(name, wait=True, on_progress=on_progress)
    except KeyboardInterrupt:
        raise Failed(
            f"no longer waiting; queue {name!r} goes on synchronising. To end that: "
            f"mirrorq cancel-sync-queue {name}"
        ) from None
    click.echo(f"in sync: {name}")


@click.command()
@click.argument("name", metavar="QUEUE")
@connecting
def cancel_sync_queue(client: Client, name: str) -> None:
    """Have the mirrors of QUEUE fetch no more; they keep what they have."""
    was_syncing = client.cancel_sync(name)
    click.echo(f"cancelled: {name}" if was_syncing else f"not syncing: {name}")
