"""`mirrorq bench`: throughput of a whole cluster of three peer processes on this machine.

This process is one of the three and the queue's master, like a service that embeds a queue; the
other two are processes of their own. Every message is confirmed: on disk on all three. Figures
depend on the disk and the cores, so --ceiling also measures three bare processes that only write
and pass on the same bytes.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import queue
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click
from attrs import frozen

from mirrorq.cli.connecting import Number, as_json, echo
from mirrorq.cli.ending import sigterm_as_ctrl_c
from mirrorq.errors import MirrorQError

if TYPE_CHECKING:
    from mirrorq.api.queue import MirroredQueue

BODY = b"x" * 100
BATCH = 1_000
OUTCOME_S = 60.0
"""Longest duration of a figure; a longer figure is a failure."""
START_S = 30.0


@frozen
class Figure:
    """One line of the result."""

    name: str
    value: float
    unit: str


@click.command()
@click.option(
    "--path",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory on the disk that counts; a temporary one is made in it.",
)
@click.option(
    "--scale",
    default=1.0,
    show_default=True,
    type=Number(min=0, max=1000),
    help="Multiply the number of messages by this.",
)
@click.option("--ceiling", is_flag=True, help="Measure the bare machine too (benches/ceiling.py).")
@as_json
def bench(path: Path | None, scale: float, ceiling: bool, is_json: bool) -> None:
    """Measure a whole cluster: three peer processes, 100-byte messages, synced on all."""
    module = _ceiling_module() if ceiling else None
    figures = measure(path, scale)
    if module is not None:
        figures += _ceiling(module, path, figures[0].value)
    if is_json:
        shown = {figure.name: {"value": figure.value, "unit": figure.unit} for figure in figures}
        echo(json.dumps(shown, indent=2))
    else:
        _print_figures(figures)


def measure(path: Path | None = None, scale: float = 1.0) -> list[Figure]:
    """Start three peers, measure, end the peers.

    Args:
        path: directory on the measured disk. None: the system's temporary directory.
        scale: factor on the number of messages of each figure.
    """
    from mirrorq.demo.children import Child
    from mirrorq.demo.ports import free_ports
    from mirrorq.node.node import Node

    with sigterm_as_ctrl_c(), ExitStack() as stack:
        place = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="mirrorq-bench-", dir=path))
        )
        peers = {
            name: f"tcp://127.0.0.1:{port}" for name, port in zip("abc", free_ports(3), strict=True)
        }
        reports: queue.Queue[Any] = queue.Queue()
        for name in "bc":
            settings = {"name": name, "path": str(place / name), "peers": peers}
            stack.callback(Child(settings, place / f"{name}.log", reports).end)
        node = stack.enter_context(Node("a", path=place / "a", peers=peers))
        handle = node.queue("bench", timeout=START_S)
        _wait_in_sync(handle, mirrors=2)
        return _figures(handle, scale)


def _wait_in_sync(handle: MirroredQueue, mirrors: int) -> None:
    deadline = time.monotonic() + START_S
    while len(handle.status().synchronised_mirrors) < mirrors:
        if time.monotonic() >= deadline:
            raise MirrorQError(f"the peers are not in sync after {START_S:.0f} s")
        # A small confirmed message waits for the cluster, and leaves the queue unchanged.
        handle.put(BODY).result(OUTCOME_S)
        handle.get(timeout=OUTCOME_S).ack().result(OUTCOME_S)


def _figures(handle: MirroredQueue, scale: float) -> list[Figure]:
    batches = max(1, int(500 * scale))
    singles = max(1, int(100_000 * scale))
    taken = max(1, int(50_000 * scale))
    waits = max(1, int(300 * scale))
    _put_many(handle, max(1, batches // 10))
    _take_batches(handle, max(1, batches // 10) * BATCH)
    many = _rate(lambda: _put_many(handle, batches), batches * BATCH)
    got_many = _rate(lambda: _take_batches(handle, batches * BATCH), batches * BATCH)
    one = _rate(lambda: _put_one_by_one(handle, singles), singles)
    got_one = _rate(lambda: _take_one_by_one(handle, min(taken, singles)), min(taken, singles))
    waited = sorted(_waits(handle, waits))
    return [
        Figure("put_many of 1,000", many, "messages/s"),
        Figure("put one by one", one, "messages/s"),
        Figure("get + ack one by one", got_one, "messages/s"),
        Figure("get_many + ack_many", got_many, "messages/s"),
        Figure("one put confirmed, p50", waited[len(waited) // 2], "ms"),
        Figure("one put confirmed, p99", waited[len(waited) * 99 // 100], "ms"),
    ]


def _rate(work: Callable[[], None], count: int) -> float:
    start = time.perf_counter()
    work()
    return round(count / (time.perf_counter() - start))


def _put_many(handle: MirroredQueue, batches: int) -> None:
    bodies = [BODY] * BATCH
    confirmations = [handle.put_many(bodies) for _ in range(batches)]
    for confirmation in confirmations:
        confirmation.result(OUTCOME_S)


def _put_one_by_one(handle: MirroredQueue, count: int) -> None:
    confirmations = [handle.put(BODY) for _ in range(count)]
    for confirmation in confirmations:
        confirmation.result(OUTCOME_S)


def _take_batches(handle: MirroredQueue, count: int) -> None:
    settlements = []
    while count > 0:
        messages = handle.get_many(min(BATCH, count), timeout=OUTCOME_S)
        if not messages:
            raise MirrorQError(f"{count} messages did not come within {OUTCOME_S:.0f} s")
        settlements.append(handle.ack_many(messages))
        count -= len(messages)
    for settlement in settlements:
        settlement.result(OUTCOME_S)


def _take_one_by_one(handle: MirroredQueue, count: int) -> None:
    settlements = [handle.get(timeout=OUTCOME_S).ack() for _ in range(count)]
    for settlement in settlements:
        settlement.result(OUTCOME_S)


def _waits(handle: MirroredQueue, count: int) -> Iterator[float]:
    for _ in range(count):
        start = time.perf_counter()
        handle.put(BODY).result(OUTCOME_S)
        yield round((time.perf_counter() - start) * 1000, 3)


def _ceiling_module() -> ModuleType:
    for name in ("benches.ceiling", "ceiling"):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            return importlib.import_module(name)
    raise MirrorQError(
        "benches/ceiling.py cannot be imported: run from a checkout, with "
        "PYTHONPATH=benches mirrorq bench --ceiling"
    )


def _ceiling(module: ModuleType, path: Path | None, put_many_rate: float) -> list[Figure]:
    result = module.measure(path)
    share = put_many_rate * 100 / result.messages_per_second
    return [
        Figure("ceiling", round(result.messages_per_second), "messages/s"),
        Figure("put_many of 1,000, share of it", round(share, 1), "%"),
        Figure("ceiling, one at a time, p50", round(result.latency_p50_ms, 3), "ms"),
        Figure("ceiling, one at a time, p99", round(result.latency_p99_ms, 3), "ms"),
    ]


def _print_figures(figures: list[Figure]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Three peer processes, 100-byte messages, synced on all three")
    table.add_column("what")
    table.add_column("", justify="right")
    table.add_column("")
    for figure in figures:
        table.add_row(figure.name, f"{figure.value:,}", figure.unit)
    Console().print(table)
