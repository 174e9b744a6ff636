"""Celery over mirrorq: workers that are processes, results by rpc://."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import celery
import pytest
from shop import CELERY_WORKER, Shop
from tests.kit import DEADLINE_S, until

import mirrorq


@pytest.fixture
def shop(url: str, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(url, tmp_path)
    yield made
    made.end()


def start(shop: Shop, *options: str) -> subprocess.Popen[bytes]:
    """Start a worker of the app."""
    return shop.start((*CELERY_WORKER, *options))


@pytest.fixture
def app(url: str) -> Iterator[Any]:
    """An app that publishes and waits for results; what its tasks do, workers know."""
    made = celery.Celery("shop", broker=url, backend="rpc://", set_as_current=False)
    yield made
    made.close()


def call(app: Any, name: str, *arguments: Any) -> Any:
    """A task of the app with its arguments, not yet published."""
    return app.signature(f"shop_tasks.{name}", args=arguments)


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_tasks_retries_groups_and_chords(app: Any, shop: Shop, pool: str) -> None:
    """A worker runs tasks and its results come by rpc://; what retries comes again; a group is
    joined."""
    start(shop, "-P", pool, "-c", "2")
    assert call(app, "add", 2, 3).delay().get(timeout=DEADLINE_S) == 5
    assert call(app, "third_time").delay().get(timeout=DEADLINE_S) == 2
    numbers = celery.group([call(app, "add", number, 1) for number in range(20)])
    assert numbers.delay().get(timeout=DEADLINE_S) == list(range(1, 21))


def test_a_worker_is_killed(app: Any, shop: Shop) -> None:
    """Of a worker that is killed with all its children, the task comes again, once, and says so."""
    flag = str(shop.path / "flag")
    first = start(shop, "-P", "prefork", "-c", "1")
    result = call(app, "hang_once", flag).delay()
    until(lambda: Path(flag).exists())
    shop.kill(first)
    start(shop, "-P", "prefork", "-c", "1")
    assert result.get(timeout=DEADLINE_S) is True
    assert shop.lines() == [f"{flag} begun", f"{flag} begun", f"{flag} done"]


def test_an_eta_waits_in_the_queue(app: Any, shop: Shop, node: mirrorq.Node) -> None:
    """A task that is due later is held by no worker, so that a worker's end means nothing to it,
    and does not begin before its time."""
    due = datetime.now(UTC) + timedelta(seconds=2)
    start(shop, "-P", "threads", "-c", "1")
    call(app, "when").apply_async(eta=due + timedelta(days=1))
    result = call(app, "when").apply_async(eta=due)
    assert call(app, "add", 1, 1).delay().get(timeout=DEADLINE_S) == 2  # the worker takes others
    assert result.get(timeout=DEADLINE_S) >= due.timestamp()

    def counts() -> tuple[int, int]:
        status = queue.status()
        return status.messages_unacknowledged, status.messages

    with node.queue("celery", passive=True) as queue:
        until(lambda: counts() == (0, 1))


@pytest.mark.soak
def test_inspect_and_control(app: Any, shop: Shop) -> None:
    """Broadcasts reach every worker, and their answers come back."""
    for _ in range(2):
        start(shop, "-P", "threads", "-c", "1")
    until(lambda: len(app.control.ping(timeout=1.0)) == 2)
    registered: dict[str, list[str]] = {}
    inspect = app.control.inspect(timeout=2.0)

    def is_answered() -> bool:
        # Who is late for one question is not for the next.
        registered.update(inspect.registered() or {})
        return len(registered) == 2

    until(is_answered)
    assert sorted(registered) == ["w0@here", "w1@here"]
    assert all("shop_tasks.add" in tasks for tasks in registered.values())
