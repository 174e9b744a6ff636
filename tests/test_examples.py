"""Every example runs as a script, ends by itself, and prints what its text promises."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.real

EXAMPLES = Path(__file__).parent.parent / "examples"
EXAMPLE_S = 120


def run(name: str, path: Path) -> list[str]:
    """Lines that an example printed, with its data under `path`."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), str(path / "data")],
        capture_output=True,
        timeout=EXAMPLE_S,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_example_is_run_here() -> None:
    """An example that nobody runs breaks unseen."""
    tested = {"embedded.py", "three_peers.py", "worker_pool.py", "flights_pipeline.py"}
    tested |= {"order_service.py", "request_reply.py"}
    tested |= {"dramatiq_shop.py", "taskiq_shop.py", "traces.py"}  # contrib/test_framework_pages.py
    tested |= {"celery_shop.py"}  # contrib/test_celery_page.py
    assert {path.name for path in EXAMPLES.glob("*.py")} == tested


def test_the_pipeline_says_how_it_is_used() -> None:
    """It takes minutes and a Java: `make pipeline` runs it whole. Here it only starts."""
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "flights_pipeline.py"), "--help"],
        capture_output=True,
        timeout=EXAMPLE_S,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "--limit" in done.stdout


@pytest.mark.smoke
def test_embedded(tmp_path: Path) -> None:
    """What the first run leaves, the second serves first."""
    first = run("embedded.py", tmp_path)
    assert first[0] == "on disk: messages 1 to 3"
    assert first[1] == "served 2 coffees, delivery 1"
    assert first[-1] == "left for the next run: 1"
    second = run("embedded.py", tmp_path)
    assert second[0] == "on disk: messages 4 to 6"
    assert second[1].startswith("served 3 cakes, delivery ")
    assert second[-1] == "left for the next run: 2"


@pytest.mark.smoke
def test_three_peers(tmp_path: Path) -> None:
    """Every job that one process publishes is confirmed, and done by another."""
    lines = run("three_peers.py", tmp_path)
    assert "confirmed: 1000" in lines
    assert "done: 1000" in lines


def test_worker_pool(tmp_path: Path) -> None:
    """What a worker fails on is done later, and everything is done."""
    assert run("worker_pool.py", tmp_path) == [
        "numbers done: 200",
        "failed once and done later: 4",
        f"sum of squares: {sum(number * number for number in range(200))}",
    ]


def test_request_reply(tmp_path: Path) -> None:
    """Each question has its own answer; what cannot be answered is gone, too."""
    assert run("request_reply.py", tmp_path) == ["first: 3", "second: 7", "third: 11", "left: 0"]


def test_order_service(tmp_path: Path) -> None:
    """The simulator finds what is wrong with the first form, and nothing with the second."""
    first, second = run("order_service.py", tmp_path)
    assert first.startswith("bill: seed ")
    assert "20 of 20 orders billed, more than once: ['invoice for order " in first
    assert second == "bill_once: each order billed once, under 30 seeds"
