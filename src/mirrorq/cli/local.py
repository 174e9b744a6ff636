"""`mirrorq local`: the node of this machine that processes start by `mirrorq.local`."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from mirrorq.cli.connecting import Failed, Number, as_json, echo

if TYPE_CHECKING:
    from mirrorq.node.local import LocalFolder

STOP_S = 20.0
"""Time limit for a node to end; the store is closed within half of the limit."""
LOOK_S = 0.05


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--stop", is_flag=True, help="End it, even while clients use it.")
@click.option(
    "--linger",
    type=Number(min=0),
    metavar="SECONDS",
    help="End it this many seconds after its last client has left; inf: never.",
)
@as_json
def local(path: Path, stop: bool, linger: float | None, is_json: bool) -> None:
    """Show the node that mirrorq.local("PATH") starts, or end it.

    Exit status 1 when none runs there. One that was stopped stays so until a process calls
    mirrorq.local again; clients that are left wait for that.
    """
    from mirrorq.node.local import LocalFolder

    place = LocalFolder.of(path)
    pid = place.pid()
    if pid is None:
        raise Failed(f"no local node runs in {place.path}{_ended(place.record())}")
    if linger is not None:
        place.write_linger(linger)
    if stop:
        os.kill(pid, signal.SIGTERM)
        _wait_ended(place, pid)
    linger_s = place.linger_s()
    said = {
        "state": "stopped" if stop else "runs",
        "pid": pid,
        "endpoint": place.endpoint,
        "linger_s": None if math.isinf(linger_s) else linger_s,
        "log": str(place.log_path),
    }
    if is_json:
        echo(json.dumps(said, indent=2))
    else:
        echo("\t".join(f"{name} {value}" for name, value in said.items()))


def _ended(told: dict[str, object]) -> str:
    ended = told.get("ended")
    return f": the last one has ended ({ended})" if ended else ""


def _wait_ended(place: LocalFolder, pid: int) -> None:
    end = time.monotonic() + STOP_S
    while place.pid() == pid:
        if time.monotonic() >= end:
            raise Failed(f"process {pid} was told to end and has not within {STOP_S:g} s")
        time.sleep(LOOK_S)
