"""`mirrorq forward`: messages of one queue go into a queue of another cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import click

from mirrorq.cli.connecting import (
    Misused,
    Number,
    as_json,
    connected,
    echo,
    failing,
    reach_options,
)

if TYPE_CHECKING:
    from mirrorq.spool.forwarder import ForwardStatus


@click.command()
@click.argument("source", metavar="FROM/QUEUE")
@click.argument("target", metavar="TO/QUEUE")
@click.option("--key", help="Move only the messages with this key; the others stay.")
@click.option("--rate", type=Number(0, min_open=True), help="Most messages a second, on average.")
@click.option(
    "--label", default="", help="Another one has what TO has refused tried again; see the manual."
)
@click.option("--once", is_flag=True, help="End when all that is there is moved.")
@reach_options
@as_json
def forward(
    source: str,
    target: str,
    key: str | None,
    rate: float | None,
    label: str,
    once: bool,
    wait: float,
    insecure: bool,
    keys: Path | None,
    is_json: bool,
) -> None:
    """Move messages from one cluster's queue into another's, each exactly once.

    FROM and TO are nodes, as tcp://host:port joined by commas; QUEUE is the queue's name there. The
    target is declared if it is not there. A message is acked in FROM when TO has confirmed it.
    Nobody else may consume it in FROM meanwhile. Goes on until Ctrl-C; begun again it goes on where
    it was. Each second it prints how many were moved, how many are left, and how old the oldest is.
    """
    from mirrorq.spool.forwarder import Forwarder

    (nodes, name), (others, other) = _split(source), _split(target)
    progress = _Progress(is_json=is_json)
    with (
        failing(),
        connected(nodes, insecure=insecure, wait=wait, keys=keys, looks=False) as here,
        connected(others, insecure=insecure, wait=wait, keys=keys, looks=False) as there,
        here.queue(name, passive=True) as emptied,
        there.queue(other) as filled,
    ):
        forwarder = Forwarder(emptied, filled, key=key, rate=rate, label=label)
        try:
            forwarder.run(once=once, on_status=progress.show)
        except KeyboardInterrupt:
            # What was on its way has had its outcome by now.
            pass
        finally:
            progress.show(forwarder.status(), is_last=True)


def _split(place: str) -> tuple[str, str]:
    """Endpoints and name of a queue."""
    nodes, slash, name = place.rpartition("/")
    if not slash or not name or nodes.endswith("/"):
        raise Misused(f"{place!r} names no queue: give tcp://host:port/QUEUE")
    return nodes, name


class _Progress:
    """A line a second."""

    def __init__(self, *, is_json: bool) -> None:
        self._is_json = is_json
        self._calls = 0

    def show(self, status: ForwardStatus, *, is_last: bool = False) -> None:
        self._calls += 1
        if not is_last and self._calls % 2:
            return
        if self._is_json:
            echo(json.dumps(attrs.asdict(status)))
            return
        kept = f", {status.kept} kept" if status.kept else ""
        why = f" ({status.why})" if status.why else ""
        echo(f"moved {status.moved}, left {status.left}, oldest {status.oldest_s:.1f} s{kept}{why}")
